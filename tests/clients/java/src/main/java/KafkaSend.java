import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

public class KafkaSend {
    private static KafkaProducer<String, String> producer;

    // Returns when Kafka has the record on all its replicas.
    static void send(String key, String body, Map<String, String> headers) throws Exception {
        var record = new ProducerRecord<>("orders.delayed", key, body);
        headers.forEach((name, value) -> record.headers().add(name, value.getBytes(UTF_8)));
        producer.send(record).get(30, TimeUnit.SECONDS);
    }

    public static void main(String[] args) throws Exception {
        Map<String, Object> config = Map.of("bootstrap.servers", System.getenv("KAFKA_BROKERS"), "acks", "all");
        producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());

        send("order-6", "in two seconds", Map.of("x-delay", "2s"));
        String moment = Long.toString(System.currentTimeMillis() + 2000);
        send("order-9", "at a moment", Map.of("x-deliver-at", moment, "x-delay-expires", "30s"));

        // With a name: the same key keeps a command behind its message.
        send("order-7", "never", Map.of("x-delay", "3s", "x-delay-id", "order-7"));
        send("order-7", "", Map.of("x-delay-op", "cancel", "x-delay-id", "order-7"));

        send("order-8", "sooner", Map.of("x-delay", "1h", "x-delay-id", "order-8"));
        send("order-8", "", Map.of("x-delay-op", "reschedule", "x-delay-id", "order-8", "x-delay", "3s"));

        send("order-11", "the old text", Map.of("x-delay", "1h", "x-delay-id", "order-11"));
        send("order-11", "the new text", Map.of("x-delay-op", "replace", "x-delay-id", "order-11", "x-delay", "3s"));
        // [test]
        send("order-10", "not a delay", Map.of("x-delay", "2 seconds"));
        // [/test]
        producer.close();
    }
}
