import { connect } from "amqplib";

const connection = await connect(process.env.AMQP_URL);
const channel = await connection.createConfirmChannel();

// Resolves when the queue has the message on disk. One at a time: await each.
const send = (routingKey, body, headers) =>
  new Promise((resolve, reject) => {
    const returned = (message) => reject(new Error(`returned: ${message.fields.replyText}`));
    channel.once("return", returned);
    channel.once("error", reject); // the exchange is missing, for example
    const options = { persistent: true, mandatory: true, headers };
    channel.publish("mail.in", routingKey, Buffer.from(body), options, (error) => {
      channel.off("return", returned);
      channel.off("error", reject);
      error ? reject(error) : resolve();
    });
  });

await send("mail.welcome", "in two seconds", { "x-delay": 2000 });
await send("mail.welcome", "at a moment", { "x-deliver-at": Date.now() + 2000, "x-delay-expires": "30s" });

await send("mail.welcome", "never", { "x-delay": 3000, "x-delay-id": "order-7" });
await send("mail.welcome", "", { "x-delay-op": "cancel", "x-delay-id": "order-7" });

await send("mail.welcome", "sooner", { "x-delay": "1h", "x-delay-id": "order-8" });
await send("mail.welcome", "", { "x-delay-op": "reschedule", "x-delay-id": "order-8", "x-delay": 3000 });

await send("mail.welcome", "the old text", { "x-delay": "1h", "x-delay-id": "order-11" });
await send("mail.welcome", "the new text", { "x-delay-op": "replace", "x-delay-id": "order-11", "x-delay": 3000 });
// [test]
await send("mail.welcome", "not a delay", { "x-delay": "2 seconds" });
await send("nobody", "nowhere", { "x-delay": 2000 }).catch((error) => console.log(error.message));
// [/test]
await connection.close();
