import { Kafka } from "kafkajs";

const kafka = new Kafka({ brokers: process.env.KAFKA_BROKERS.split(",") });
const producer = kafka.producer();
await producer.connect();

// Resolves when Kafka has the record on all its replicas.
const send = (key, value, headers) =>
  producer.send({ topic: "orders.delayed", acks: -1, timeout: 30_000, messages: [{ key, value, headers }] });

await send("order-6", "in two seconds", { "x-delay": "2s" });
const moment = String(Date.now() + 2000);
await send("order-9", "at a moment", { "x-deliver-at": moment, "x-delay-expires": "30s" });

// With a name: the same key keeps a command behind its message.
await send("order-7", "never", { "x-delay": "3s", "x-delay-id": "order-7" });
await send("order-7", "", { "x-delay-op": "cancel", "x-delay-id": "order-7" });

await send("order-8", "sooner", { "x-delay": "1h", "x-delay-id": "order-8" });
await send("order-8", "", { "x-delay-op": "reschedule", "x-delay-id": "order-8", "x-delay": "3s" });

await send("order-11", "the old text", { "x-delay": "1h", "x-delay-id": "order-11" });
await send("order-11", "the new text", { "x-delay-op": "replace", "x-delay-id": "order-11", "x-delay": "3s" });
// [test]
await send("order-10", "not a delay", { "x-delay": "2 seconds" });
// [/test]
await producer.disconnect();
