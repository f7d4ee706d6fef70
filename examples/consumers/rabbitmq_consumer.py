# SPDX-License-Identifier: MIT
"""A consumer of RabbitMQ with pika: DATABASE_URL=postgres://... AMQP_URL=amqp://... python3 rabbitmq_consumer.py QUEUE

Each message books one payment and sends one event, once: through copies, poison, and the death of this process, of the
database and of the broker. What fails is kept in the database with its payload, and run again by the thread below.
"""
import logging
import os
import signal
import sys
import threading

import pika
from psycopg_pool import ConnectionPool

from semel import Inbox, Message, Outbox, Rejected, StoreError, Unavailable

log = logging.getLogger("billing")
pool = ConnectionPool(os.environ["DATABASE_URL"], min_size=1, max_size=4)
inbox, payments = Inbox("billing", pool, permanent=(KeyError, TypeError)), Outbox("payment")


@inbox.handler
def book(tx, message):
    order = message.json
    if order["account"] == "closed":
        raise Rejected("the account is closed")
    tx.execute("INSERT INTO ledger VALUES (%s, %s, %s)", [message.id, order["account"], order["cents"]])
    payments.put(tx, order["account"], "booked", {"cents": order["cents"]})


def retries():
    try:
        inbox.work()
    except StoreError:
        log.exception("retries cannot run")
        os._exit(1)  # and with them the consumer: its supervisor starts both again


def message_of(properties, body):
    """An id that is no UTF-8, which pika leaves as bytes, makes a quarantined message."""
    id_ = properties.message_id
    return Message(id_.decode("utf-8", "replace") if isinstance(id_, bytes) else id_, body, properties.headers,
                   type=properties.type)


def settle(connection, channel, tag, message):
    """Acknowledges what is committed. What is not comes again, after a pause that does not stop the others."""
    try:
        again = not inbox.deliver(message).acknowledge
    except Unavailable as error:
        log.warning("store unavailable: %s", error)
        again = True
    if again:
        connection.call_later(1, lambda: channel.basic_nack(tag, requeue=True))
    else:
        channel.basic_ack(tag)


def consume(queue, stop):
    with pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"])) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=50)
        for method, properties, body in channel.consume(queue, inactivity_timeout=0.5):
            if stop.is_set():
                return
            if method is not None:
                settle(connection, channel, method.delivery_tag, message_of(properties, body))


def main():
    logging.basicConfig(level=logging.INFO)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=retries, daemon=True).start()
    while not stop.is_set():
        try:
            consume(sys.argv[1], stop)
        except pika.exceptions.AMQPError as error:
            log.warning("broker unavailable: %r; tried again in 1 s", error)
            stop.wait(1)


main()
