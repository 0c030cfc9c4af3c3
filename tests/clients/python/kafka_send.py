import os
import time

from confluent_kafka import Producer

producer = Producer({"bootstrap.servers": os.environ["KAFKA_BROKERS"], "acks": "all"})


def send(key, body, headers):
    """Returns when Kafka has the record on all its replicas."""
    answers = []
    producer.produce("orders.delayed", key=key, value=body, headers=headers,
                     on_delivery=lambda error, record: answers.append(error))
    producer.flush(30)
    if answers != [None]:
        raise RuntimeError(f"not sent: {answers}")


send("order-6", "in two seconds", {"x-delay": "2s"})
moment = int(time.time() * 1000) + 2000
send("order-9", "at a moment", {"x-deliver-at": str(moment), "x-delay-expires": "30s"})

# With a name: the same key keeps a command behind its message.
send("order-7", "never", {"x-delay": "3s", "x-delay-id": "order-7"})
send("order-7", "", {"x-delay-op": "cancel", "x-delay-id": "order-7"})

send("order-8", "sooner", {"x-delay": "1h", "x-delay-id": "order-8"})
send("order-8", "", {"x-delay-op": "reschedule", "x-delay-id": "order-8", "x-delay": "3s"})

send("order-11", "the old text", {"x-delay": "1h", "x-delay-id": "order-11"})
send("order-11", "the new text", {"x-delay-op": "replace", "x-delay-id": "order-11", "x-delay": "3s"})
# [test]
send("order-10", "not a delay", {"x-delay": "2 seconds"})
# [/test]
