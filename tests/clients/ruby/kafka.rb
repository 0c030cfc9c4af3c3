require "rdkafka"

PRODUCER = Rdkafka::Config.new("bootstrap.servers": ENV.fetch("KAFKA_BROKERS"), acks: "all").producer

# Returns when Kafka has the record on all its replicas.
def deliver(key, body, headers)
  PRODUCER.produce(topic: "orders.delayed", key: key, payload: body, headers: headers).wait(max_wait_timeout_ms: 30_000)
end

deliver("order-6", "in two seconds", { "x-delay" => "2s" })
moment = (Time.now.to_f * 1000).to_i + 2000
deliver("order-9", "at a moment", { "x-deliver-at" => moment.to_s, "x-delay-expires" => "30s" })

# With a name: the same key keeps a command behind its message.
deliver("order-7", "never", { "x-delay" => "3s", "x-delay-id" => "order-7" })
deliver("order-7", "", { "x-delay-op" => "cancel", "x-delay-id" => "order-7" })

deliver("order-8", "sooner", { "x-delay" => "1h", "x-delay-id" => "order-8" })
deliver("order-8", "", { "x-delay-op" => "reschedule", "x-delay-id" => "order-8", "x-delay" => "3s" })

deliver("order-11", "the old text", { "x-delay" => "1h", "x-delay-id" => "order-11" })
deliver("order-11", "the new text", { "x-delay-op" => "replace", "x-delay-id" => "order-11", "x-delay" => "3s" })
# [test]
deliver("order-10", "not a delay", { "x-delay" => "2 seconds" })
# [/test]
PRODUCER.close
