"""Reads a queue over AMQP 0-9-1 for some seconds: read.py QUEUE SECONDS. Prints how late each message came, its body, and
its headers with the letters of their types. Wants pika."""

import os
import sys
import time

import pika
import pika.data

decode_value = pika.data.decode_value


def decode_typed(encoded, offset):
    value, end = decode_value(encoded, offset)
    return (chr(encoded[offset]), value), end


pika.data.decode_value = decode_typed


def show(channel, deliver, properties, body):
    now = time.time() * 1000
    headers = properties.headers or {}
    due = headers.get("x-delay-due")
    late = f"{now - due[1]:.0f} ms late" if due else "not delayed"
    print(f"{late} | {body!r} | {properties.type} | {headers}", flush=True)
    channel.basic_ack(deliver.delivery_tag)


connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
connection.channel().basic_consume(sys.argv[1], show)
end = time.time() + float(sys.argv[2])
while time.time() < end:
    connection.process_data_events(0.2)
connection.close()
