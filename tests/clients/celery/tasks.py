"""A Celery application whose delays Postdate keeps."""

import json
import os
import time

from celery import Celery

app = Celery("shop", broker=os.environ["BROKER"])
app.conf.broker_connection_retry_on_startup = True


def log(task, what):
    line = {"what": what, "id": task.request.id, "retries": task.request.retries, "ms": int(time.time() * 1000)}
    with open(os.environ["RUNS"], "a", encoding="utf-8") as runs:
        runs.write(json.dumps(line) + "\n")


@app.task(bind=True, acks_late=True)
def note(self, what):
    log(self, what)


@app.task(bind=True, acks_late=True, max_retries=3)
def stubborn(self, what):
    """Works at the third try. Its own retries are delayed by Postdate too."""
    log(self, what)
    if self.request.retries < 2:
        raise self.retry(countdown=1, queue="celery.delayed")
