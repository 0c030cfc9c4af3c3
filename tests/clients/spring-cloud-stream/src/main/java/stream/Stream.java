package stream;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.springframework.amqp.rabbit.connection.CorrelationData;
import org.springframework.amqp.support.AmqpHeaders;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.cloud.stream.function.StreamBridge;
import org.springframework.context.annotation.Bean;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;

// Delayed messages and consumer retries with Spring Cloud Stream, as docs/migrate/spring-cloud-stream.md shows them.
// The profile, kafka or rabbit, chooses the binder. Ends after SECONDS.
@SpringBootApplication
public class Stream {
    // A body says at which of its retries the message is done with: "retry 2", or "retry never".
    @Bean
    Consumer<Message<String>> orders() {
        return message -> {
            String body = message.getPayload();
            long count = count(message);
            long due = number(message.getHeaders().get("x-delay-due"));
            long now = System.currentTimeMillis();
            System.out.printf("{\"body\":\"%s\",\"count\":%d,\"ms\":%d,\"late\":%d}%n", body, count, now, now - due);
            if (body.startsWith("retry") && !body.equals("retry " + count)) throw new IllegalStateException("not yet");
        };
    }

    static long count(Message<?> message) {
        Object count = message.getHeaders().get("x-delay-retry");
        return count == null ? 0 : number(count);
    }

    // The Kafka binder hands over bytes, the RabbitMQ binder a Long.
    static long number(Object header) {
        return header instanceof byte[] text ? Long.parseLong(new String(text, UTF_8)) : (Long) header;
    }

    // Returns when the broker has the message.
    static void send(StreamBridge bridge, boolean isRabbit, String body, Map<String, Object> headers) throws Exception {
        var message = MessageBuilder.withPayload(body).copyHeaders(headers);
        if (!isRabbit) {
            bridge.send("later-out-0", message.build());
            return;
        }
        var sent = new CorrelationData();
        bridge.send("later-out-0", message.setHeader(AmqpHeaders.PUBLISH_CONFIRM_CORRELATION, sent).build());
        if (!sent.getFuture().get(30, TimeUnit.SECONDS).ack()) throw new IllegalStateException("refused");
    }

    public static void main(String[] args) throws Exception {
        var context = SpringApplication.run(Stream.class, args);
        var bridge = context.getBean(StreamBridge.class);
        boolean isRabbit = context.getEnvironment().matchesProfiles("rabbit");

        send(bridge, isRabbit, "text", Map.of("x-delay", "2s"));
        send(bridge, isRabbit, "number", Map.of("x-delay", 2000L));
        send(bridge, isRabbit, "cancelled", Map.of("x-delay", "3s", "x-delay-id", "order-7"));
        send(bridge, isRabbit, "", Map.of("x-delay-op", "cancel", "x-delay-id", "order-7"));
        send(bridge, isRabbit, "retry 2", Map.of("x-delay", "1s", "x-delay-id", "order-8"));
        send(bridge, isRabbit, "retry never", Map.of("x-delay", "1s", "x-delay-id", "order-9"));

        Thread.sleep(TimeUnit.SECONDS.toMillis(Long.parseLong(System.getenv("SECONDS"))));
        context.close();
    }
}
