package stream;

import java.util.Map;
import org.apache.kafka.clients.producer.ProducerInterceptor;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;

// The Kafka binder adds a stack trace each time that a record fails, and never takes one out.
public class NoStackTrace implements ProducerInterceptor<Object, Object> {
    public ProducerRecord<Object, Object> onSend(ProducerRecord<Object, Object> record) {
        record.headers().remove("x-exception-stacktrace");
        return record;
    }

    public void onAcknowledgement(RecordMetadata metadata, Exception failure) {}

    public void close() {}

    public void configure(Map<String, ?> config) {}
}
