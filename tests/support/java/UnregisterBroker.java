import java.util.Map;
import org.apache.kafka.clients.admin.Admin;

/**
 * Takes a broker out of its cluster: the cluster knows it no more until it is started again, and it names no broker in what it
 * answers meanwhile.
 *
 * <p>Arguments: bootstrap servers, the broker's id.
 */
public class UnregisterBroker {
  public static void main(String[] arguments) throws Exception {
    try (Admin admin = Admin.create(Map.<String, Object>of("bootstrap.servers", arguments[0]))) {
      admin.unregisterBroker(Integer.parseInt(arguments[1])).all().get();
    }
  }
}
