require "bunny"

connection = Bunny.new(ENV.fetch("AMQP_URL")).start
channel = connection.create_channel
channel.confirm_select
EXCHANGE = channel.exchange("mail.in", passive: true, type: :topic)
RETURNED = []
EXCHANGE.on_return { |info, _properties, _body| RETURNED << info.reply_text }

# Returns when the queue has the message on disk.
def deliver(routing_key, body, headers)
  RETURNED.clear
  EXCHANGE.publish(body, routing_key: routing_key, persistent: true, mandatory: true, headers: headers)
  raise "refused" unless EXCHANGE.wait_for_confirms
  raise "returned: #{RETURNED.first}" if RETURNED.any?
end

deliver("mail.welcome", "in two seconds", { "x-delay" => 2000 })
moment = (Time.now.to_f * 1000).to_i + 2000
deliver("mail.welcome", "at a moment", { "x-deliver-at" => moment, "x-delay-expires" => "30s" })

deliver("mail.welcome", "never", { "x-delay" => 3000, "x-delay-id" => "order-7" })
deliver("mail.welcome", "", { "x-delay-op" => "cancel", "x-delay-id" => "order-7" })

deliver("mail.welcome", "sooner", { "x-delay" => "1h", "x-delay-id" => "order-8" })
deliver("mail.welcome", "", { "x-delay-op" => "reschedule", "x-delay-id" => "order-8", "x-delay" => 3000 })

deliver("mail.welcome", "the old text", { "x-delay" => "1h", "x-delay-id" => "order-11" })
deliver("mail.welcome", "the new text", { "x-delay-op" => "replace", "x-delay-id" => "order-11", "x-delay" => 3000 })
# [test]
deliver("mail.welcome", "not a delay", { "x-delay" => "2 seconds" })
begin
  deliver("nobody", "nowhere", { "x-delay" => 2000 })
rescue RuntimeError => error
  puts error.message
end
# [/test]
connection.close
