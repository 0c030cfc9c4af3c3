import static java.nio.charset.StandardCharsets.UTF_8;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.Return;
import java.io.IOException;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;

public class RabbitmqSend {
    private static final AtomicReference<Return> returned = new AtomicReference<>();
    private static Channel channel;

    // Returns when the queue has the message on disk. For one thread at a time, as any channel.
    static void send(String routingKey, String body, Map<String, Object> headers) throws Exception {
        var properties = new AMQP.BasicProperties.Builder().deliveryMode(2).headers(headers).build();
        channel.basicPublish("mail.in", routingKey, true, properties, body.getBytes(UTF_8));
        channel.waitForConfirmsOrDie(30_000);
        Return back = returned.getAndSet(null);
        if (back != null) {
            throw new IOException("returned: " + back.getReplyText());
        }
    }

    public static void main(String[] args) throws Exception {
        var factory = new ConnectionFactory();
        factory.setUri(System.getenv("AMQP_URL"));
        try (var connection = factory.newConnection()) {
            channel = connection.createChannel();
            channel.confirmSelect();
            channel.addReturnListener(returned::set);

            send("mail.welcome", "in two seconds", Map.of("x-delay", 2000));
            long moment = System.currentTimeMillis() + 2000;
            send("mail.welcome", "at a moment", Map.of("x-deliver-at", moment, "x-delay-expires", "30s"));

            send("mail.welcome", "never", Map.of("x-delay", 3000, "x-delay-id", "order-7"));
            send("mail.welcome", "", Map.of("x-delay-op", "cancel", "x-delay-id", "order-7"));

            send("mail.welcome", "sooner", Map.of("x-delay", "1h", "x-delay-id", "order-8"));
            send("mail.welcome", "", Map.of("x-delay-op", "reschedule", "x-delay-id", "order-8", "x-delay", 3000));

            send("mail.welcome", "the old text", Map.of("x-delay", "1h", "x-delay-id", "order-11"));
            send("mail.welcome", "the new text", Map.of("x-delay-op", "replace", "x-delay-id", "order-11", "x-delay", 3000));
            // [test]
            send("mail.welcome", "not a delay", Map.of("x-delay", "2 seconds"));
            try {
                send("nobody", "nowhere", Map.of("x-delay", 2000));
            } catch (IOException error) {
                System.out.println(error.getMessage());
            }
            // [/test]
        }
    }
}
