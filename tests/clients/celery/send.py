"""Sends tasks by way of Postdate: they go to the queue that Postdate reads, and reach the workers' own when they are due."""

import json
import time
from datetime import datetime, timedelta, timezone

from tasks import app, note, stubborn

DELAYED = {"queue": "celery.delayed"}


def told(what, result, due_ms):
    print(json.dumps({"what": what, "id": result.id, "due_ms": due_ms}), flush=True)


def now_ms():
    return int(time.time() * 1000)


told("at once", note.apply_async(("at once",), **DELAYED), now_ms())
told("countdown", note.apply_async(("countdown",), countdown=2, **DELAYED), now_ms() + 2000)
eta = datetime.now(timezone.utc) + timedelta(seconds=3)
told("eta", note.apply_async(("eta",), eta=eta, **DELAYED), int(eta.timestamp() * 1000))
told("wanted", note.apply_async(("wanted",), countdown=2, expires=60, **DELAYED), now_ms() + 2000)
told("stubborn", stubborn.apply_async(("stubborn",), countdown=1, **DELAYED), now_ms() + 1000)

cancelled = note.apply_async(("cancelled",), countdown=4, **DELAYED)
with app.producer_pool.acquire(block=True) as producer:
    producer.publish(
        b"",
        exchange="",
        routing_key="celery.delayed",
        headers={"x-delay-op": "cancel", "x-delay-id": cancelled.id},
    )
told("cancelled", cancelled, None)
