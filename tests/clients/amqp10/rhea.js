// Sends to the queue that a route with `dialects = ["amqp10"]` reads. AMQP10_HOST is HOST:PORT. ADDRESS of a queue Q is
// /queues/Q on RabbitMQ 4, and /amq/queue/Q on RabbitMQ 3 with its plugin rabbitmq_amqp1_0.
import rhea from "rhea";

const { message, types } = rhea;
const [host, port] = process.env.AMQP10_HOST.split(":");
const login = { username: "guest", password: "guest", reconnect: false };
const connection = rhea.create_container().connect({ host, port: Number(port), ...login });
const sender = connection.open_sender({ target: { address: process.env.ADDRESS } });
await new Promise((resolve, reject) => {
  sender.once("sendable", resolve);
  const errors = ["sender_error", "session_error", "connection_error", "disconnected"];
  for (const error of errors) connection.once(error, reject);
});

let settle;
for (const outcome of ["accepted", "rejected", "released"]) sender.on(outcome, () => settle(outcome));

// Resolves when RabbitMQ has accepted the message. One at a time: await each. The body is a data section: what RabbitMQ
// makes of any other is encoded in AMQP 1.0 still.
const send = (body, sections) =>
  new Promise((resolve, reject) => {
    settle = (outcome) => (outcome === "accepted" ? resolve() : reject(new Error(`${body}: ${outcome}`)));
    sender.send({ durable: true, ...sections, body: message.data_section(Buffer.from(body)) });
  });
const annotated = (name, value) => ({ message_annotations: { [name]: value } });
const properties = (application_properties) => ({ application_properties });

const delays = { uint: types.wrap_uint, ulong: types.wrap_ulong, int: types.wrap_int, long: types.wrap_long };
for (const [type, wrap] of Object.entries(delays)) {
  await send(`annotation, delay, ${type}`, annotated("x-opt-delivery-delay", wrap(2000)));
  await send(`property, delay, ${type}`, properties({ "x-delay": wrap(2000) }));
}
// Not at a whole second, which shows what is cut off.
const moment = Math.ceil(Date.now() / 1000) * 1000 + 2945;
const moments = { timestamp: types.wrap_timestamp, long: types.wrap_long, ulong: types.wrap_ulong };
for (const [type, wrap] of Object.entries(moments)) {
  await send(`annotation, ${moment}, ${type}`, annotated("x-opt-delivery-time", wrap(moment)));
  await send(`property, ${moment}, ${type}`, properties({ "x-deliver-at": wrap(moment) }));
}
await send("property, delay, text", properties({ "x-delay": "2s" }));
await send("property, delay and id", properties({ "x-delay": 2000, "x-delay-id": "order-6" }));
await send("annotation, own name", annotated("x-delay", 2000));
await send("never", properties({ "x-delay": "3s", "x-delay-id": "order-7" }));
await send("cancel", properties({ "x-delay-op": "cancel", "x-delay-id": "order-7" }));
await send("not a delay", annotated("x-opt-delivery-delay", types.wrap_int(-1)));
connection.close();
