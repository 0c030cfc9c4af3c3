package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

type sender struct {
	channel  *amqp.Channel
	returned chan amqp.Return
}

// send returns when the queue has the message on disk. One at a time.
func (s *sender) send(routingKey, body string, headers amqp.Table) error {
	deadline, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	message := amqp.Publishing{DeliveryMode: amqp.Persistent, Headers: headers, Body: []byte(body)}
	confirm, err := s.channel.PublishWithDeferredConfirmWithContext(deadline, "mail.in", routingKey, true, false, message)
	if err != nil {
		return err
	}
	if acked, err := confirm.WaitContext(deadline); err != nil || !acked {
		return errors.Join(errors.New("not confirmed"), err)
	}
	select {
	case back := <-s.returned:
		return fmt.Errorf("returned: %s", back.ReplyText)
	default:
		return nil
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	connection, err := amqp.Dial(os.Getenv("AMQP_URL"))
	must(err)
	defer connection.Close()
	channel, err := connection.Channel()
	must(err)
	must(channel.Confirm(false))
	s := &sender{channel, channel.NotifyReturn(make(chan amqp.Return, 1))}

	must(s.send("mail.welcome", "in two seconds", amqp.Table{"x-delay": int64(2000)}))
	moment := time.Now().Add(2 * time.Second).UnixMilli()
	must(s.send("mail.welcome", "at a moment", amqp.Table{"x-deliver-at": moment, "x-delay-expires": "30s"}))

	must(s.send("mail.welcome", "never", amqp.Table{"x-delay": int64(3000), "x-delay-id": "order-7"}))
	must(s.send("mail.welcome", "", amqp.Table{"x-delay-op": "cancel", "x-delay-id": "order-7"}))

	must(s.send("mail.welcome", "sooner", amqp.Table{"x-delay": time.Hour.String(), "x-delay-id": "order-8"}))
	must(s.send("mail.welcome", "", amqp.Table{"x-delay-op": "reschedule", "x-delay-id": "order-8", "x-delay": int64(3000)}))

	must(s.send("mail.welcome", "the old text", amqp.Table{"x-delay": time.Hour.String(), "x-delay-id": "order-11"}))
	must(s.send("mail.welcome", "the new text", amqp.Table{"x-delay-op": "replace", "x-delay-id": "order-11", "x-delay": int64(3000)}))
	// [test]
	must(s.send("mail.welcome", "not a delay", amqp.Table{"x-delay": "2 seconds"}))
	fmt.Println(s.send("nobody", "nowhere", amqp.Table{"x-delay": int64(2000)}))
	// [/test]
}
