import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.ContainerProperties;
import org.springframework.kafka.listener.DeadLetterPublishingRecoverer;
import org.springframework.kafka.listener.DefaultErrorHandler;
import org.springframework.kafka.listener.KafkaMessageListenerContainer;
import org.springframework.kafka.listener.MessageListener;
import org.springframework.util.backoff.FixedBackOff;

// A listener whose failures go to the topic of a route with `consumer_retry`, as docs/migrate/kafka-retry-topics.md shows it.
public class Retry {
    static DefaultErrorHandler errorHandler(KafkaTemplate<Object, Object> template) {
        var giveBack = new DeadLetterPublishingRecoverer(template,
            (record, failure) -> new TopicPartition(record.topic() + ".retry", -1));
        return new DefaultErrorHandler(giveBack, new FixedBackOff(0, 0));    // no tries in place
    }

    // A key says at which of its retries the record is done with: "2", or "never".
    static void handle(ConsumerRecord<Object, Object> record) {
        var header = record.headers().lastHeader("x-delay-retry");
        String count = header == null ? "0" : new String(header.value(), UTF_8);
        System.out.printf("{\"key\":\"%s\",\"count\":%s,\"ms\":%d}%n", record.key(), count, System.currentTimeMillis());
        if (!count.equals(record.key())) throw new IllegalStateException("not yet");
    }

    public static void main(String[] args) throws Exception {
        String brokers = System.getenv("KAFKA_BROKERS");
        Map<String, Object> sends = Map.of("bootstrap.servers", brokers, "acks", "all",
            "key.serializer", StringSerializer.class, "value.serializer", StringSerializer.class);
        Map<String, Object> reads = Map.of("bootstrap.servers", brokers, "group.id", "orders", "auto.offset.reset", "earliest",
            "key.deserializer", StringDeserializer.class, "value.deserializer", StringDeserializer.class);
        var template = new KafkaTemplate<>(new DefaultKafkaProducerFactory<Object, Object>(sends));
        var properties = new ContainerProperties("orders");
        properties.setMessageListener((MessageListener<Object, Object>) Retry::handle);
        var container = new KafkaMessageListenerContainer<>(new DefaultKafkaConsumerFactory<Object, Object>(reads), properties);
        container.setCommonErrorHandler(errorHandler(template));
        container.start();
        new CountDownLatch(1).await();
    }
}
