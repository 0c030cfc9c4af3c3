import os
import time

import pika

connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
channel = connection.channel()
channel.confirm_delivery()


def send(routing_key, body, headers):
    """Returns when the queue has the message on disk. Raises UnroutableError if no queue is bound for it."""
    properties = pika.BasicProperties(delivery_mode=2, headers=headers)
    channel.basic_publish("mail.in", routing_key, body, properties, mandatory=True)


send("mail.welcome", "in two seconds", {"x-delay": 2000})
moment = int(time.time() * 1000) + 2000
send("mail.welcome", "at a moment", {"x-deliver-at": moment, "x-delay-expires": "30s"})

send("mail.welcome", "never", {"x-delay": 3000, "x-delay-id": "order-7"})
send("mail.welcome", "", {"x-delay-op": "cancel", "x-delay-id": "order-7"})

send("mail.welcome", "sooner", {"x-delay": "1h", "x-delay-id": "order-8"})
send("mail.welcome", "", {"x-delay-op": "reschedule", "x-delay-id": "order-8", "x-delay": 3000})

send("mail.welcome", "the old text", {"x-delay": "1h", "x-delay-id": "order-11"})
send("mail.welcome", "the new text", {"x-delay-op": "replace", "x-delay-id": "order-11", "x-delay": 3000})
# [test]
send("mail.welcome", "not a delay", {"x-delay": "2 seconds"})
try:
    send("nobody", "nowhere", {"x-delay": 2000})
except pika.exceptions.UnroutableError as error:
    print("returned:", error)
# [/test]
connection.close()
