# SPDX-License-Identifier: MIT
"""Debezium's outbox router on our table, as it is: who has Debezium may keep it, who leaves Semel may take it.

Kafka Connect (standalone) from the archives of tools/debezium.list, which `make test` does not fetch: `tools/jars
debezium` does. Only with SEMEL_LONG=1.
"""
import collections
import json
import os
import shutil
import subprocess

import psycopg2
import pytest

from kafka import archives, kafka  # noqa: F401
from pg import Database, Server, free_port, wait_for

LONG = os.environ.get("SEMEL_LONG") is not None
PARTITIONS = 2
TOPIC = "outbox.event.order"  # where the router's defaults send events of the aggregate type `order`

WORKER = """\
bootstrap.servers={kafka}
listeners=http://127.0.0.1:{port}
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=io.debezium.converters.BinaryDataConverter
offset.storage.file.filename={dir}/offsets
offset.flush.interval.ms=1000
"""
CONNECTOR = """\
name=outbox
connector.class=io.debezium.connector.postgresql.PostgresConnector
plugin.name=pgoutput
publication.autocreate.mode=filtered
database.hostname=127.0.0.1
database.port={port}
database.user=postgres
database.password=none
database.dbname={database}
topic.prefix=semel
table.include.list=semel.outbox
snapshot.mode=no_data
poll.interval.ms=10
transforms=outbox
transforms.outbox.type=io.debezium.transforms.outbox.EventRouter
"""


@pytest.fixture
def database():
    server = Server("wal_level=logical")
    made = Database(server, "shop")
    assert made.semel("migrate").code == 0
    yield made
    server.done()


@pytest.fixture
def connect(tmp_path, database, kafka):  # noqa: F811
    """Kafka Connect, with the connector on the outbox of that database."""
    jars, java = archives("debezium"), os.environ.get("SEMEL_JAVA") or shutil.which("java")
    if jars is None:
        pytest.skip("Debezium's archives are not here (tools/jars debezium; or SEMEL_JARS=FOLDER)")
    kafka.topic(TOPIC, PARTITIONS)
    (tmp_path / "worker").write_text(WORKER.format(kafka=kafka.address, port=free_port(), dir=tmp_path))
    (tmp_path / "connector").write_text(CONNECTOR.format(port=database.server.port, database=database.name))
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(
            [java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", ":".join(map(str, jars)),
             "org.apache.kafka.connect.cli.ConnectStandalone", tmp_path / "worker", tmp_path / "connector"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    db = psycopg2.connect(database.url)
    db.autocommit = True

    def streams():
        assert process.poll() is None, (tmp_path / "log").read_text(errors="replace")[-4000:]
        with db.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_replication_slots WHERE active")
            return cursor.fetchone()[0] == 1
    try:
        wait_for(streams, "Debezium reads the log of the database", 400)
        yield process
    finally:
        db.close()
        process.kill()
        process.wait()


@pytest.mark.skipif(not LONG, reason="SEMEL_LONG=1 lets Debezium's router read our table")
def test_debeziums_router_reads_our_table_with_its_defaults(database, connect, kafka):  # noqa: F811
    # O1, O4, O5
    put = collections.defaultdict(list)
    with psycopg2.connect(database.url) as db, db.cursor() as cursor:
        for n in range(30):
            key, payload = f"o{n % 3}", json.dumps({"n": n}, separators=(",", ":"))
            cursor.execute("SELECT semel.outbox_put('order', %s, 'changed', raw => %s)", (key, payload.encode()))
            put[key].append((cursor.fetchone()[0], payload.encode()))
            db.commit()
        cursor.execute("SELECT semel.outbox_put('order', 'o0', 'removed')")
        put["o0"].append((cursor.fetchone()[0], None))
        db.commit()
        cursor.execute("SELECT semel.outbox_put('order', 'o1', 'never')")
        db.rollback()
    records = wait_for(lambda: (lambda r: r if len(r) >= 31 else None)(kafka.read(TOPIC, PARTITIONS)), "all came", 120)
    came = collections.defaultdict(list)
    for _, key, payload, headers in records:
        came[key.decode()].append((headers["id"], payload))
    assert came == put
