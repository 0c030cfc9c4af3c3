<?php
// The extension rdkafka is in PHP: pecl install rdkafka.
$config = new RdKafka\Conf();
$config->set('bootstrap.servers', getenv('KAFKA_BROKERS'));
$config->set('acks', 'all');
$failure = null;
$config->setDrMsgCb(function ($producer, $record) use (&$failure) {
    $failure = $record->err === RD_KAFKA_RESP_ERR_NO_ERROR ? null : rd_kafka_err2str($record->err);
});
$producer = new RdKafka\Producer($config);
$topic = $producer->newTopic('orders.delayed');

// Returns when Kafka has the record on all its replicas.
function send(string $key, string $body, array $headers): void
{
    global $producer, $topic, $failure;
    $failure = 'no answer within 30 s';
    $topic->producev(RD_KAFKA_PARTITION_UA, 0, $body, $key, $headers);
    $producer->flush(30_000);
    if ($failure !== null) {
        throw new RuntimeException($failure);
    }
}

send('order-6', 'in two seconds', ['x-delay' => '2s']);
$moment = (int) (microtime(true) * 1000) + 2000;
send('order-9', 'at a moment', ['x-deliver-at' => (string) $moment, 'x-delay-expires' => '30s']);

// With a name: the same key keeps a command behind its message.
send('order-7', 'never', ['x-delay' => '3s', 'x-delay-id' => 'order-7']);
send('order-7', '', ['x-delay-op' => 'cancel', 'x-delay-id' => 'order-7']);

send('order-8', 'sooner', ['x-delay' => '1h', 'x-delay-id' => 'order-8']);
send('order-8', '', ['x-delay-op' => 'reschedule', 'x-delay-id' => 'order-8', 'x-delay' => '3s']);

send('order-11', 'the old text', ['x-delay' => '1h', 'x-delay-id' => 'order-11']);
send('order-11', 'the new text', ['x-delay-op' => 'replace', 'x-delay-id' => 'order-11', 'x-delay' => '3s']);
// [test]
send('order-10', 'not a delay', ['x-delay' => '2 seconds']);
// [/test]
