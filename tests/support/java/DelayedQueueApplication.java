import java.util.Base64;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RBlockingQueue;
import org.redisson.api.RDelayedQueue;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.Codec;
import org.redisson.client.codec.StringCodec;
import org.redisson.codec.JsonJacksonCodec;
import org.redisson.codec.Kryo5Codec;
import org.redisson.config.Config;

/**
 * An application that uses a delayed queue of Redisson's.
 *
 * <p>Arguments: URL, queue, codec (kryo, string, json), prefix of the values, count, least delay in ms, range of the delays
 * in ms, pause between two offers in ms, and what it does at the end: end, or stay. As a client that has the queue, it then
 * goes on to move what is due to the destination.
 *
 * <p>Prints a line for each offer: the bytes that the codec wrote, in base64, and the value.
 */
public final class DelayedQueueApplication {
    public static void main(String[] args) throws Exception {
        Codec codec = switch (args[2]) {
            case "string" -> new StringCodec();
            case "json" -> new JsonJacksonCodec();
            default -> new Kryo5Codec();
        };
        Config config = new Config();
        config.useSingleServer().setAddress(args[0]).setConnectionMinimumIdleSize(1).setConnectionPoolSize(4);
        config.setCodec(codec);
        RedissonClient client = Redisson.create(config);
        RBlockingQueue<String> destination = client.getBlockingQueue(args[1]);
        RDelayedQueue<String> queue = client.getDelayedQueue(destination);
        int count = Integer.parseInt(args[4]);
        long least = Long.parseLong(args[5]);
        long range = Long.parseLong(args[6]);
        long pause = Long.parseLong(args[7]);
        for (int n = 0; n < count; n++) {
            String value = args[3] + n;
            // Delays that neither grow nor fall with the order of the offers.
            queue.offer(value, least + (n * 7919L) % (range + 1), TimeUnit.MILLISECONDS);
            byte[] bytes = io.netty.buffer.ByteBufUtil.getBytes(codec.getValueEncoder().encode(value));
            System.out.println("offered " + Base64.getEncoder().encodeToString(bytes) + " " + value);
            if (pause > 0) {
                Thread.sleep(pause);
            }
        }
        System.out.println("all offered");
        if (args[8].equals("stay")) {
            Thread.currentThread().join();
        }
        client.shutdown();
    }
}
