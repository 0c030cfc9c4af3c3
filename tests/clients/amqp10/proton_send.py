"""Sends to the queue that a route with `dialects = ["amqp10"]` reads: see rhea.js. Wants Debian's python3-qpid-proton."""

import os
import time

from proton import Message, int32, symbol, timestamp, uint, ulong
from proton.utils import BlockingConnection

connection = BlockingConnection("amqp://" + os.environ["AMQP10_HOST"], user="guest", password="guest", allowed_mechs="PLAIN")
sender = connection.create_sender(os.environ["ADDRESS"])


def send(body, **sections):
    """Returns when RabbitMQ has accepted the message. `inferred` makes the body a data section."""
    sender.send(Message(body=body.encode(), inferred=True, durable=True, **sections))


for of_type in (int, int32, uint, ulong):
    send("annotation, delay, " + of_type.__name__, annotations={symbol("x-opt-delivery-delay"): of_type(2000)})
    send("property, delay, " + of_type.__name__, properties={"x-delay": of_type(2000)})
# Not at a whole second, which shows what is cut off.
moment = int(time.time()) * 1000 + 3945
for of_type in (int, timestamp):
    name = f"{moment}, {of_type.__name__}"
    send("annotation, " + name, annotations={symbol("x-opt-delivery-time"): of_type(moment)})
    send("property, " + name, properties={"x-deliver-at": of_type(moment)})
send("property, delay, text", properties={"x-delay": "2s"})
send("never", properties={"x-delay": "3s", "x-delay-id": "order-8"})
send("cancel", properties={"x-delay-op": "cancel", "x-delay-id": "order-8"})
connection.close()
