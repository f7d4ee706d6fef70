# SPDX-License-Identifier: MIT
"""A consumer of Kafka with confluent-kafka, in batches: DATABASE_URL=postgres://... KAFKA=host:port python3
kafka_consumer.py TOPIC

A batch is one transaction. An offset is committed when every message before it is: booked, a copy, or kept in the
database with its failure, where the thread below runs it again. The id of an event is in its header `id`.
"""
import logging
import os
import signal
import sys
import threading

from confluent_kafka import Consumer, KafkaException
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


def message_of(record):
    headers = {name: value for name, value in record.headers() or []}
    id_ = headers.get("id")
    return Message(None if id_ is None else id_.decode("utf-8", "surrogateescape"), record.value(), headers,
                   source=record.topic())


def settle(messages, stop):
    """Returns when all of them are committed, or it is time to stop: False."""
    while messages and not stop.is_set():
        try:
            answers = inbox.deliver_many(messages)
            messages = [message for message, answer in zip(messages, answers) if not answer.acknowledge]
        except Unavailable as error:
            log.warning("store unavailable: %s", error)
        if messages:
            stop.wait(0.5)
    return not messages


def main():
    logging.basicConfig(level=logging.INFO)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=retries, daemon=True).start()
    consumer = Consumer({"bootstrap.servers": os.environ["KAFKA"], "group.id": os.environ.get("GROUP", "billing"),
                         "enable.auto.commit": False, "auto.offset.reset": "earliest"})
    consumer.subscribe([sys.argv[1]])
    while not stop.is_set():
        taken = consumer.consume(100, 0.5)
        for error in [record.error() for record in taken if record.error() is not None]:
            log.warning("broker: %s", error)  # such as a topic that is not there: the library tries again
        records = [record for record in taken if record.error() is None]
        if records and settle([message_of(record) for record in records], stop):
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as error:  # such as a partition that is another member's now: it sees copies
                log.warning("offsets not committed: %s", error)
    consumer.close()


main()
