import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.Map;
import jakarta.jms.JMSException;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import org.apache.qpid.jms.JmsConnectionFactory;

/**
 * Sends to the queue that a route reads: see rhea.js. JMS allows no hyphen in the name of a property, so the route names its
 * headers {@code x_delay}, {@code x_deliver_at}, {@code x_delay_id} and {@code x_delay_op}.
 */
public class JmsSend {
    private static Session session;
    private static MessageProducer producer;

    // Returns when RabbitMQ has accepted the message.
    static void send(String body, Map<String, Object> properties) throws JMSException {
        // Bytes: of a text message RabbitMQ makes a body that only AMQP 1.0 clients can read.
        var message = session.createBytesMessage();
        message.writeBytes(body.getBytes(UTF_8));
        for (var property : properties.entrySet()) {
            message.setObjectProperty(property.getKey(), property.getValue());
        }
        producer.send(message);
    }

    public static void main(String[] args) throws JMSException {
        try (var connection = new JmsConnectionFactory("amqp://" + System.getenv("AMQP10_HOST")).createConnection("guest", "guest")) {
            session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            producer = session.createProducer(session.createQueue(System.getenv("ADDRESS")));

            send("jms: text", Map.of("x_delay", "2s"));
            send("jms: int", Map.of("x_delay", 2000));
            send("jms: long", Map.of("x_delay", 2000L));
            send("jms: at a moment", Map.of("x_deliver_at", System.currentTimeMillis() + 2000));
            send("jms: never", Map.of("x_delay", "3s", "x_delay_id", "order-7"));
            send("", Map.of("x_delay_op", "cancel", "x_delay_id", "order-7"));

            producer.setDeliveryDelay(2000);
            try {
                send("jms: setDeliveryDelay", Map.of());
            } catch (JMSException error) {
                System.out.println("setDeliveryDelay: " + error.getMessage());
            }
        }
    }
}
