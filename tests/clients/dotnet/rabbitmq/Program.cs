using System.Text;
using RabbitMQ.Client;
using RabbitMQ.Client.Exceptions;

var factory = new ConnectionFactory { Uri = new Uri(Environment.GetEnvironmentVariable("AMQP_URL")!) };
await using var connection = await factory.CreateConnectionAsync();
var options = new CreateChannelOptions(publisherConfirmationsEnabled: true, publisherConfirmationTrackingEnabled: true);
await using var channel = await connection.CreateChannelAsync(options);

// Completes when the queue has the message on disk. Throws PublishException if it is refused or returned.
async Task Send(string routingKey, string body, Dictionary<string, object?> headers)
{
    using var deadline = new CancellationTokenSource(TimeSpan.FromSeconds(30));
    var properties = new BasicProperties { Persistent = true, Headers = headers };
    await channel.BasicPublishAsync("mail.in", routingKey, true, properties, Encoding.UTF8.GetBytes(body), deadline.Token);
}

await Send("mail.welcome", "in two seconds", new() { ["x-delay"] = 2000 });
var moment = DateTimeOffset.UtcNow.AddSeconds(2).ToUnixTimeMilliseconds();
await Send("mail.welcome", "at a moment", new() { ["x-deliver-at"] = moment, ["x-delay-expires"] = "30s" });

await Send("mail.welcome", "never", new() { ["x-delay"] = 3000, ["x-delay-id"] = "order-7" });
await Send("mail.welcome", "", new() { ["x-delay-op"] = "cancel", ["x-delay-id"] = "order-7" });

await Send("mail.welcome", "sooner", new() { ["x-delay"] = "1h", ["x-delay-id"] = "order-8" });
await Send("mail.welcome", "", new() { ["x-delay-op"] = "reschedule", ["x-delay-id"] = "order-8", ["x-delay"] = 3000 });

await Send("mail.welcome", "the old text", new() { ["x-delay"] = "1h", ["x-delay-id"] = "order-11" });
await Send("mail.welcome", "the new text", new() { ["x-delay-op"] = "replace", ["x-delay-id"] = "order-11", ["x-delay"] = 3000 });
// [test]
await Send("mail.welcome", "not a delay", new() { ["x-delay"] = "2 seconds" });
try
{
    await Send("nobody", "nowhere", new() { ["x-delay"] = 2000 });
}
catch (PublishException error) when (error.IsReturn)
{
    Console.WriteLine($"returned: {error.Message}");
}
// [/test]
