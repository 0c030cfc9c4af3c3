package main

import (
	"context"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// send returns when Kafka has the record on all its replicas. Headers come as name, value, name, value.
func send(client *kgo.Client, key, body string, headers ...string) {
	record := &kgo.Record{Topic: "orders.delayed", Key: []byte(key), Value: []byte(body)}
	for i := 0; i < len(headers); i += 2 {
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: headers[i], Value: []byte(headers[i+1])})
	}
	deadline, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := client.ProduceSync(deadline, record).FirstErr(); err != nil {
		log.Fatalf("not sent: %v", err)
	}
}

func main() {
	// franz-go waits for all replicas, and is idempotent, by default.
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(os.Getenv("KAFKA_BROKERS"), ",")...))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	send(client, "order-6", "in two seconds", "x-delay", "2s")
	moment := time.Now().Add(2 * time.Second).UnixMilli()
	send(client, "order-9", "at a moment", "x-deliver-at", strconv.FormatInt(moment, 10), "x-delay-expires", "30s")

	// With a name: the same key keeps a command behind its message. A Duration prints itself as x-delay reads it.
	send(client, "order-7", "never", "x-delay", (3 * time.Second).String(), "x-delay-id", "order-7")
	send(client, "order-7", "", "x-delay-op", "cancel", "x-delay-id", "order-7")

	send(client, "order-8", "sooner", "x-delay", time.Hour.String(), "x-delay-id", "order-8")
	send(client, "order-8", "", "x-delay-op", "reschedule", "x-delay-id", "order-8", "x-delay", "3s")

	send(client, "order-11", "the old text", "x-delay", time.Hour.String(), "x-delay-id", "order-11")
	send(client, "order-11", "the new text", "x-delay-op", "replace", "x-delay-id", "order-11", "x-delay", "3s")
	// [test]
	send(client, "order-10", "not a delay", "x-delay", "2 seconds")
	// [/test]
}
