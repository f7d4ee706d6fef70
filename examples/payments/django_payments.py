# SPDX-License-Identifier: MIT
"""A payment endpoint with Django: DATABASE_URL=postgres://... python3 django_payments.py PORT

The charge and the answer commit together. A client that retries under its key gets the first answer.
"""
import json
import os
import sys
from urllib.parse import urlsplit

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import connection
from django.http import JsonResponse
from django.urls import path

CUSTOMERS = {"Bearer secret-of-ada": "ada", "Bearer secret-of-bob": "bob"}  # yours: a session, or a verified token


def customer(request):
    return CUSTOMERS.get(request.headers.get("Authorization"))


url = urlsplit(os.environ["DATABASE_URL"])
settings.configure(
    ROOT_URLCONF=__name__, SECRET_KEY="change this", ALLOWED_HOSTS=["127.0.0.1"],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": url.path[1:], "USER": url.username,
                           "PASSWORD": url.password or "", "HOST": url.hostname, "PORT": url.port or 5432}},
    MIDDLEWARE=["semel.django.Idempotency"],
    SEMEL={"caller": customer, "rule": lambda method, path: "required" if method == "POST" else "off"})


def charge(request):
    cents = json.loads(request.body)["cents"]
    if cents <= 0:
        return JsonResponse({"detail": "cents must be positive"}, status=422)  # rolled back; the key may be used again
    with connection.cursor() as cursor:  # or the ORM: it is the same transaction
        cursor.execute("INSERT INTO charge (customer, cents) VALUES (%s, %s) RETURNING id", [customer(request), cents])
        return JsonResponse({"id": cursor.fetchone()[0], "cents": cents}, status=201)


urlpatterns = [path("charges", charge)]

if __name__ == "__main__":
    django.setup()
    execute_from_command_line(["", "runserver", "--noreload", f"127.0.0.1:{sys.argv[1]}"])
