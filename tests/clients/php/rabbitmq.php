<?php
// [test]
require 'PhpAmqpLib/autoload.php';
// [/test]
use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

// Composer's autoloader stands before this: require 'vendor/autoload.php';
$at = parse_url(getenv('AMQP_URL'));
$connection = new AMQPStreamConnection($at['host'], $at['port'], $at['user'], $at['pass'], '/');
$channel = $connection->channel();
$channel->confirm_select();
$returned = null;
$channel->set_return_listener(function ($code, $text) use (&$returned) { $returned = $text; });
$refused = false;
$channel->set_nack_handler(function () use (&$refused) { $refused = true; });

// Returns when the queue has the message on disk.
function send(string $routingKey, string $body, array $headers): void
{
    global $channel, $returned, $refused;
    $returned = null;
    $refused = false;
    $message = new AMQPMessage($body, [
        'delivery_mode' => AMQPMessage::DELIVERY_MODE_PERSISTENT,
        'application_headers' => new AMQPTable($headers),
    ]);
    $channel->basic_publish($message, 'mail.in', $routingKey, true);
    $channel->wait_for_pending_acks_returns(30);
    if ($returned !== null || $refused) {
        throw new RuntimeException($refused ? 'refused' : "returned: $returned");
    }
}

send('mail.welcome', 'in two seconds', ['x-delay' => 2000]);
$moment = (int) (microtime(true) * 1000) + 2000;
send('mail.welcome', 'at a moment', ['x-deliver-at' => $moment, 'x-delay-expires' => '30s']);

send('mail.welcome', 'never', ['x-delay' => 3000, 'x-delay-id' => 'order-7']);
send('mail.welcome', '', ['x-delay-op' => 'cancel', 'x-delay-id' => 'order-7']);

send('mail.welcome', 'sooner', ['x-delay' => '1h', 'x-delay-id' => 'order-8']);
send('mail.welcome', '', ['x-delay-op' => 'reschedule', 'x-delay-id' => 'order-8', 'x-delay' => 3000]);

send('mail.welcome', 'the old text', ['x-delay' => '1h', 'x-delay-id' => 'order-11']);
send('mail.welcome', 'the new text', ['x-delay-op' => 'replace', 'x-delay-id' => 'order-11', 'x-delay' => 3000]);
// [test]
send('mail.welcome', 'not a delay', ['x-delay' => '2 seconds']);
try {
    send('nobody', 'nowhere', ['x-delay' => 2000]);
} catch (RuntimeException $error) {
    echo $error->getMessage(), "\n";
}
// [/test]
$connection->close();
