import java.io.IOException;
import java.net.URI;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.springframework.amqp.core.MessagePostProcessor;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory.ConfirmType;
import org.springframework.amqp.rabbit.connection.CorrelationData;
import org.springframework.amqp.rabbit.core.RabbitTemplate;

public class RabbitmqSend {
    private static RabbitTemplate template;

    // Returns when the queue has the message on disk: Spring's messages are persistent.
    static void send(String routingKey, String body, MessagePostProcessor headers) throws Exception {
        var sent = new CorrelationData();
        template.convertAndSend("mail.in", routingKey, body, headers, sent);
        var confirm = sent.getFuture().get(30, TimeUnit.SECONDS);
        if (sent.getReturned() != null) {
            throw new IOException("returned: " + sent.getReturned().getReplyText());
        }
        if (!confirm.ack()) {
            throw new IOException("refused: " + confirm.reason());
        }
    }

    static MessagePostProcessor headers(Map<String, Object> headers) {
        return message -> {
            message.getMessageProperties().getHeaders().putAll(headers);
            return message;
        };
    }

    public static void main(String[] args) throws Exception {
        // With Spring Boot: spring.rabbitmq.publisher-confirm-type=correlated, spring.rabbitmq.publisher-returns=true,
        // spring.rabbitmq.template.mandatory=true, and the template injected.
        var factory = new CachingConnectionFactory(URI.create(System.getenv("AMQP_URL")));
        factory.setPublisherConfirmType(ConfirmType.CORRELATED);
        factory.setPublisherReturns(true);
        template = new RabbitTemplate(factory);
        template.setMandatory(true);

        // setDelayLong writes the header x-delay.
        send("mail.welcome", "in two seconds", message -> {
            message.getMessageProperties().setDelayLong(2000L);
            return message;
        });
        long moment = System.currentTimeMillis() + 2000;
        send("mail.welcome", "at a moment", headers(Map.of("x-deliver-at", moment, "x-delay-expires", "30s")));

        send("mail.welcome", "never", headers(Map.of("x-delay", 3000L, "x-delay-id", "order-7")));
        send("mail.welcome", "", headers(Map.of("x-delay-op", "cancel", "x-delay-id", "order-7")));

        send("mail.welcome", "sooner", headers(Map.of("x-delay", "1h", "x-delay-id", "order-8")));
        send("mail.welcome", "", headers(Map.of("x-delay-op", "reschedule", "x-delay-id", "order-8", "x-delay", 3000L)));

        send("mail.welcome", "the old text", headers(Map.of("x-delay", "1h", "x-delay-id", "order-11")));
        send("mail.welcome", "the new text", headers(Map.of("x-delay-op", "replace", "x-delay-id", "order-11", "x-delay", 3000L)));
        // [test]
        send("mail.welcome", "not a delay", headers(Map.of("x-delay", "2 seconds")));
        try {
            send("nobody", "nowhere", headers(Map.of("x-delay", 2000L)));
        } catch (IOException error) {
            System.out.println(error.getMessage());
        }
        // [/test]
        factory.destroy();
    }
}
