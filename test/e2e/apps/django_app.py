# SPDX-License-Identifier: MIT
"""An application for middleware.py: python3 django_app.py PORT. A request says what its view does."""
import json
import os
import sys
import time
from urllib.parse import urlsplit

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.core.servers.basehttp import WSGIServer
from django.db import connection
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import path

url = urlsplit(os.environ["DATABASE_URL"])
settings.configure(
    ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="of a test", USE_TZ=True,
    MIDDLEWARE=["semel.django.Idempotency"],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": url.path[1:], "USER": url.username,
                           "HOST": url.hostname, "PORT": url.port}},
    SEMEL={"caller": lambda request: request.headers.get("X-User"), "wait": float(os.environ.get("WAIT", "20")),
           "rule": lambda method, path: "required" if path.startswith("/act") else "off", "max_stored": 100_000,
           "max_answer": 1_000_000})


def act(request):
    asked = json.loads(request.body)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO ledger VALUES (%s, 1) RETURNING clock_timestamp()::text",
                       [request.headers["Idempotency-Key"]])
        body = cursor.fetchone()[0].encode() + b"x" * asked.get("size", 0)
    time.sleep(asked.get("sleep", 0))
    if asked.get("raise"):
        raise ValueError("as it was asked")
    made = StreamingHttpResponse((body[i:i + 5000] for i in range(0, len(body), 5000))) if asked.get("stream") \
        else HttpResponse(body)
    made.status_code = asked.get("status", 201)
    for name, value in asked.get("headers", []):
        made[name] = value
    return made


def up(request):
    return HttpResponse(b"up")


urlpatterns = [path("act", act), path("act/", act), path("", up)]

if __name__ == "__main__":
    django.setup()
    WSGIServer.request_queue_size = 256
    execute_from_command_line(["", "runserver", "--noreload", f"127.0.0.1:{sys.argv[1]}"])
