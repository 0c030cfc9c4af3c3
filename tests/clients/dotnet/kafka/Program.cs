using System.Text;
using Confluent.Kafka;

var config = new ProducerConfig
{
    BootstrapServers = Environment.GetEnvironmentVariable("KAFKA_BROKERS"),
    Acks = Acks.All,
    MessageTimeoutMs = 30_000,
};
using var producer = new ProducerBuilder<string, string>(config).Build();

// Completes when Kafka has the record on all its replicas.
async Task Send(string key, string body, params (string Name, string Value)[] headers)
{
    var message = new Message<string, string> { Key = key, Value = body, Headers = new Headers() };
    foreach (var (name, value) in headers)
    {
        message.Headers.Add(name, Encoding.UTF8.GetBytes(value));
    }
    await producer.ProduceAsync("orders.delayed", message);
}

await Send("order-6", "in two seconds", ("x-delay", "2s"));
var moment = DateTimeOffset.UtcNow.AddSeconds(2).ToUnixTimeMilliseconds();
await Send("order-9", "at a moment", ("x-deliver-at", moment.ToString()), ("x-delay-expires", "30s"));

// With a name: the same key keeps a command behind its message.
await Send("order-7", "never", ("x-delay", "3s"), ("x-delay-id", "order-7"));
await Send("order-7", "", ("x-delay-op", "cancel"), ("x-delay-id", "order-7"));

await Send("order-8", "sooner", ("x-delay", "1h"), ("x-delay-id", "order-8"));
await Send("order-8", "", ("x-delay-op", "reschedule"), ("x-delay-id", "order-8"), ("x-delay", "3s"));

await Send("order-11", "the old text", ("x-delay", "1h"), ("x-delay-id", "order-11"));
await Send("order-11", "the new text", ("x-delay-op", "replace"), ("x-delay-id", "order-11"), ("x-delay", "3s"));
// [test]
await Send("order-10", "not a delay", ("x-delay", "2 seconds"));
// [/test]
