# SPDX-License-Identifier: MIT
"""`semel check --online`: what the database, the brokers and the servers say of the settings."""
import concurrent.futures
import http.server
import json
import os
import pathlib
import socket
import threading

import pytest

import scenes
from conftest import run
from daemon import Daemon
from kafka import kafka  # noqa: F401
from pg import empty_pg, free_port, pg_server  # noqa: F401
from rabbit import rabbit  # noqa: F401
from sqs import sqs  # noqa: F401

SOURCE = pathlib.Path(os.environ["SEMEL_SOURCE"])
SECRETS = {"TOKEN": "a-token-of-the-tests", "PASSWORD": "hunter2hunter2",
           "HOOK": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}
LISTEN = {"listen": "127.0.0.1:8090", "token": "${TOKEN}"}
SQL = {"sql": "INSERT INTO ledger (id) VALUES ($1)"}
DAY_MS = 24 * 3600 * 1000


def route(source=None, do=None, **more):
    made = {"from": source or LISTEN, "do": do or {"exec": "cat"}, **more}
    if "sql" in made["do"]:
        made["values"] = ["id"]
    return made


def check(folder, url, routes, *more, env=None, outboxes=None, gateways=None):
    """Runs it. No secret is ever shown, and nothing that asks has crashed."""
    file = folder / "semel.yaml"
    file.write_text(json.dumps({"store": url, **({"routes": routes} if routes else {}),
                                **({"outboxes": outboxes} if outboxes else {}),
                                **({"gateways": gateways} if gateways else {})}))
    result = run("check", file, "--online", *more, env={**SECRETS, **(env or {})})
    assert "Sanitizer" not in result.err, result
    assert not any(secret in result.out + result.err for secret in SECRETS.values()), result
    return result


def answers(folder, url, routes, **more):
    """{(route, outbox or None, question): (result, text)}"""
    result = check(folder, url, routes, "--json", **more)
    told = result.json["online"]
    failed = any(answer["result"] == "failed" for answer in told)
    assert (result.code, result.json["ok"]) == ((1, False) if failed else (0, True)), result
    return {(answer["route"] or answer["outbox"] or answer["gateway"], answer["question"]):
            (answer["result"], answer["text"]) for answer in told}


@pytest.fixture
def ledger(store):
    store.sql("CREATE TABLE ledger (id text)")
    return store


# ---- SQLite and the two forms ----


# P26
def test_sqlite_is_asked_for_its_schema_its_version_and_the_statements(tmp_path, ledger):
    found = answers(tmp_path, ledger.url, {"good": route(do=SQL), "bad": route(
        {**LISTEN, "path": "/b"}, {"sql": "INSERT INTO nowhere (id) VALUES ($1)"})})
    assert found[None, "reach"][0] == "ok" and found[None, "reach"][1].startswith("SQLite 3.")
    assert found[None, "schema"][0] == "ok" and "which is current" in found[None, "schema"][1]
    result, text = found[None, "version"]
    assert (result == "warning") == ("before 3.51.3" in text)
    assert found[None, "transaction"] == ("ok", "one can be begun")
    assert found["good", "statement"] == ("ok", "it can be prepared")
    assert found["bad", "statement"] == ("failed", "handler: no such table: nowhere")


def test_people_get_a_line_an_answer_and_warnings_alone_are_no_failure(tmp_path, ledger):
    shown = check(tmp_path, ledger.url, {"good": route(do=SQL)})
    assert shown.code == 0 and "good: ATOMIC for 45 days (from listen, do sql)\n" in shown.out
    assert "\nok       store: schema: version " in shown.out
    assert "\nok       route good: statement: it can be prepared\n" in shown.out
    ledger.sql("DROP TABLE ledger")
    shown = check(tmp_path, ledger.url, {"good": route(do=SQL)})
    assert shown.code == 1 and "\nfailed   route good: statement: handler: no such table: ledger\n" in shown.out
    assert shown.out.endswith(" 1 failed\n")


def test_a_file_with_a_mistake_asks_nobody(tmp_path, ledger):
    told = check(tmp_path, ledger.url, {"r": route(nonsense=1)}, "--json")
    assert told.code == 1 and "online" not in told.json and told.json["mistakes"]


def test_a_store_that_is_not_there_or_has_no_schema_is_told(tmp_path, ledger):
    url = f"sqlite:{tmp_path}/none.db"
    result, text = answers(tmp_path, url, {"r": route()})[None, "reach"]
    assert result == "failed" and "there is no database" in text and "semel migrate" in text
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "none.db").touch()
    found = answers(tmp_path, url, {"r": route()})
    assert found[None, "reach"][0] == "ok"
    assert found[None, "schema"][0] == "failed" and "semel migrate" in found[None, "schema"][1]


# ---- handlers ----


def test_servers_of_handlers_are_connected_to_and_sent_nothing(tmp_path, ledger):
    closed = free_port()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = answers(tmp_path, ledger.url, {
            "up": route(do={"http": f"http://127.0.0.1:{port}/pay?x=1",
                            "reconcile": f"http://localhost:{port}/q/{{key}}"}),
            "down": route({**LISTEN, "path": "/d"}, {"http": f"http://127.0.0.1:{closed}/"}),
            "nowhere": route({**LISTEN, "path": "/n"}, {"http": "https://nowhere.invalid/"}),
            "queue": route({"amqp": f"amqp://127.0.0.1:{closed}", "queue": "q", "user": "u",
                            "password": "${PASSWORD}"}),
            "program": route({**LISTEN, "path": "/p"}, {"exec": "cat"})})
        connection, _ = server.accept()
        with connection:
            assert connection.recv(100) == b""
    assert found["up", "http"] == ("ok", f"127.0.0.1 port {port} accepts connections")
    assert found["up", "reconcile"][0] == "ok"
    assert found["down", "http"] == ("failed", f"cannot be reached: 127.0.0.1 port {closed}: Connection refused")
    result, text = found["nowhere", "http"]
    assert result == "failed" and "the name nowhere.invalid is not known" in text
    assert found["queue", "queue q"][0] == "failed" and "cannot be reached" in found["queue", "queue q"][1]
    assert found["program", "exec"][0] == "ok" and "can be run" in found["program", "exec"][1]


def test_servers_that_are_down_or_silent_are_told_and_never_waited_for_long(tmp_path, ledger):
    """Three at once, since each waits for its time-outs."""
    with socket.create_server(("127.0.0.1", 0)) as silent, concurrent.futures.ThreadPoolExecutor(3) as pool:
        port, closed = silent.getsockname()[1], free_port()
        queue = {"sqs": f"http://127.0.0.1:{port}/0/q", "region": "x", "access_key": "a", "secret_key": "${PASSWORD}"}
        topic = {"kafka": f"127.0.0.1:{closed}", "topic": "payments"}
        asked = {}
        for name, url, source in (("store", f"postgres://app:${{PASSWORD}}@127.0.0.1:{port}/shop", LISTEN),
                                  ("sqs", ledger.url, queue), ("kafka", ledger.url, topic)):
            (tmp_path / name).mkdir()
            asked[name] = pool.submit(answers, tmp_path / name, url, {"r": route(source)})
        result, text = asked["store"].result()[None, "reach"]
        assert result == "failed" and text.startswith("cannot be reached: the server did not answer in time")
        result, text = asked["sqs"].result()["r", "queue"]
        assert result == "failed" and text.startswith("cannot be reached: ")
        result, text = asked["kafka"].result()["r", "kafka"]
        assert result == "failed" and text.startswith("cannot be reached: ")


# ---- gateways ----


def gateway(upstream, **more):
    return {"listen": f"127.0.0.1:{free_port()}", "upstream": {"url": upstream},
            "caller": {"header": "X-User", "trusted_from": ["127.0.0.1"]}, **more}


def test_servers_behind_gateways_are_connected_to_and_sent_nothing(tmp_path, ledger):
    closed, path = free_port(), tmp_path / "app.sock"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(path))
        local.listen()
        port = server.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        guard = [{"match": "POST /pay", "on_unknown": "reconcile", "reconcile": f"{url}/by-key/{{key}}"}]
        found = answers(tmp_path, ledger.url, {}, gateways={
            "up": gateway(url, guard=guard), "down": gateway(f"http://127.0.0.1:{closed}"),
            "local": gateway(f"unix:{path}"), "gone": gateway(f"unix:{path}.no")})
        connection, _ = server.accept()
        with connection:
            assert connection.recv(100) == b""
    assert found[None, "transaction"] == ("ok", "one can be begun")
    assert found["up", "upstream"] == ("ok", f"127.0.0.1 port {port} accepts connections")
    assert found["up", "reconcile"][0] == "ok"
    assert found["down", "upstream"] == ("failed", f"cannot be reached: 127.0.0.1 port {closed}: Connection refused")
    assert found["local", "upstream"] == ("ok", f"{path} accepts connections")
    assert found["gone", "upstream"][0] == "failed" and "cannot be reached" in found["gone", "upstream"][1]
    shown = check(tmp_path, ledger.url, {}, gateways={"down": gateway(f"http://127.0.0.1:{closed}")})
    assert shown.code == 1 and "failed   gateway down: upstream: cannot be reached" in shown.out, shown


# ---- PostgreSQL ----


@pytest.fixture
def shop(empty_pg):  # noqa: F811
    """A database whose tables belong to an owner, and a worker that has its rights by roles.sql."""
    empty_pg.server.psql("postgres", "DROP ROLE IF EXISTS w; CREATE ROLE w LOGIN;")
    assert empty_pg.semel("migrate").code == 0
    roles = (SOURCE / "sql" / "postgres" / "roles.sql").read_text()
    empty_pg.server.psql(empty_pg.name, "\\set worker w\n" + roles)
    empty_pg.sql("CREATE TABLE ledger (id text)")
    yield empty_pg
    empty_pg.server.psql(empty_pg.name, "DROP OWNED BY w CASCADE; DROP ROLE w;")


def as_worker(shop):
    return shop.server.url(shop.name, "w")


def test_a_worker_role_may_do_what_routes_need_and_its_statements_are_tried(tmp_path, shop, kafka):  # noqa: F811
    topic = {"kafka": kafka.address, "topic": "no", "offsets": "store"}
    routes = {"r": route(do=SQL), "called": route({**LISTEN, "path": "/c"}, {"sql": "CALL note($1)"})}
    shop.sql("CREATE PROCEDURE note(id text) LANGUAGE sql AS 'SELECT 1'")
    found = answers(tmp_path, as_worker(shop), routes)
    assert found[None, "reach"][1].startswith("PostgreSQL ")
    assert found[None, "schema"][0] == "ok"
    assert found[None, "rights"] == ("ok", "role w may do what routes need")
    assert found[None, "durability"] == ("warning", "fsync is off: a power failure can lose or damage everything")
    assert found[None, "transaction"][0] == "ok"
    result, text = found["r", "statement"]
    assert result == "failed" and "permission denied for table ledger" in text
    assert found["called", "statement"][0] == "ok"
    shop.sql("GRANT INSERT ON ledger TO w; REVOKE UPDATE ON semel.position FROM w")
    found = answers(tmp_path, as_worker(shop), routes)
    assert found["r", "statement"] == ("ok", "it can be prepared, and the role may run it")
    assert shop.sql("SELECT count(*) FROM ledger") == [("0",)]
    found = answers(tmp_path, as_worker(shop), {"r": route(topic, do=SQL)})
    assert found[None, "rights"][0] == "failed" and "role w lacks UPDATE on semel.position;" in found[None, "rights"][1]


def test_rights_that_a_role_lacks_are_named(tmp_path, shop):
    shop.sql("SET ROLE w; SELECT * FROM semel._inbox_new('c', '', now(), '{1}', '{a}', NULL, NULL, NULL, NULL, NULL, "
             "NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)")
    shop.sql("REVOKE DELETE ON semel.record FROM w; REVOKE USAGE ON SEQUENCE semel.arrival FROM w; "
             "REVOKE EXECUTE ON FUNCTION semel._inbox_new FROM w")
    result, text = answers(tmp_path, as_worker(shop), {"r": route()})[None, "rights"]
    assert result == "failed"
    assert text.startswith("role w lacks EXECUTE on semel._inbox_new, USAGE on semel.arrival, DELETE on semel.record; "
                           "sql/postgres/roles.sql")
    shop.sql("REVOKE USAGE ON SCHEMA semel FROM w")
    result, text = answers(tmp_path, as_worker(shop), {"r": route()})[None, "rights"]
    assert result == "failed" and "permission denied for schema semel" in text


def test_rights_that_a_gateway_lacks_are_named(tmp_path, shop):
    with socket.create_server(("127.0.0.1", 0)) as server:
        gateways = {"payments": gateway(f"http://127.0.0.1:{server.getsockname()[1]}")}
        assert answers(tmp_path, as_worker(shop), {}, gateways=gateways)[None, "rights"] == (
            "ok", "role w may do what routes and gateways need")
        shop.sql("REVOKE DELETE ON semel.idempotency FROM w")
        result, text = answers(tmp_path, as_worker(shop), {}, gateways=gateways)[None, "rights"]
        assert result == "failed" and "DELETE on semel.idempotency" in text, text


# B3 P85
def test_a_schema_public_in_which_everybody_may_create_is_warned_of(tmp_path, shop):
    shop.sql("GRANT CREATE ON SCHEMA public TO PUBLIC")
    result, text = answers(tmp_path, as_worker(shop), {"r": route()})[None, "public"]
    assert result == "warning" and text.endswith("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    shop.sql("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    assert (None, "public") not in answers(tmp_path, as_worker(shop), {"r": route()})


# P72
def test_commits_that_would_not_last_are_refused(tmp_path, shop):
    shop.sql("ALTER ROLE w SET synchronous_commit TO off")
    found = answers(tmp_path, as_worker(shop), {"r": route()})
    assert found[None, "durability"][0] == "failed" and "synchronous_commit is off" in found[None, "durability"][1]
    assert found[None, "transaction"][0] == "failed"


def test_a_database_without_the_schema_and_one_that_is_not_there_are_told(tmp_path, empty_pg):  # noqa: F811
    found = answers(tmp_path, empty_pg.url, {"r": route()})
    assert found[None, "schema"][0] == "failed" and "semel migrate" in found[None, "schema"][1]
    result, text = answers(tmp_path, empty_pg.url + "_not", {"r": route()})[None, "reach"]
    assert result == "failed" and text.startswith("cannot be reached: ") and "does not exist" in text


# ---- brokers ----


# I18
def test_kafka_is_asked_for_topics_and_what_it_keeps(tmp_path, ledger, kafka):  # noqa: F811
    for name, settings in {"week": {"retention.ms": 7 * DAY_MS}, "month": {"retention.ms": 30 * DAY_MS},
                           "ten": {"retention.ms": 10 * DAY_MS}, "ever": {"retention.ms": -1},
                           "latest": {"cleanup.policy": "compact"}, "max": {"retention.ms": 2**63 - 1}}.items():
        kafka.topic(name, partitions=3, settings=settings)

    def read(topic, **more):
        return route({"kafka": kafka.address, "topic": topic, "group": f"{topic}-{len(more)}"}, **more)
    forever = {"horizon": {"broker": "forever"}, "timed_ids": True}
    found = answers(tmp_path, ledger.url, {
        "fits": read("week"), "short": read("month"), "grown": read("ten"), "ever": read("ever"),
        "known": read("latest", timed_ids=True), "said": read("latest", **forever),
        "missing": read(["week", "no"], batch=1), "max": read("max", timed_ids=True)})
    assert found["fits", "topic week"] == ("ok", "3 partitions")
    assert found["fits", "retention of week"] == ("ok", "it keeps 7d, and horizon.broker is 7d")
    result, text = found["short", "retention of month"]
    assert result == "failed" and "keep.completed of 45d is shorter than the horizon" in text
    assert text.endswith("; 53d would do")
    result, text = found["grown", "retention of ten"]
    assert result == "warning" and "it keeps 10d, and horizon.broker is only 7d" in text
    result, text = found["ever", "retention of ever"]
    assert result == "failed" and "it keeps for ever (retention.ms is -1), and no keep.completed covers that" in text
    result, text = found["known", "retention of latest"]
    assert result == "warning"
    assert text.startswith("it keeps for ever (cleanup.policy has no delete); say horizon.broker: forever. ")
    assert found["said", "retention of latest"][0] == "ok"
    assert found["max", "retention of max"][0] == "warning" and "for ever" in found["max", "retention of max"][1]
    assert found["missing", "topic week"][0] == "ok"
    assert found["missing", "topic no"] == ("failed", "there is no such topic, or we may not see it")
    # The figure does.
    found = answers(tmp_path, ledger.url, {"short": read("month", keep={"completed": "53d"})})
    assert found["short", "retention of month"][0] == "warning"


@pytest.mark.skipif(not scenes.LONG, reason="SEMEL_LONG=1 starts a RabbitMQ for it")
def test_rabbitmq_is_asked_for_the_queue(tmp_path, ledger, rabbit):  # noqa: F811
    rabbit.queue("there")
    rabbit.send("there", [("m1", "x", None), ("m2", "y", None)])

    def read(queue, **more):
        return route({"amqp": rabbit.url, "queue": queue, **more})
    found = answers(tmp_path, ledger.url, {
        "a": read("there"), "b": read("missing"), "c": read("made", declare="classic"),
        "d": read("denied", user="guest", password="${PASSWORD}")})
    assert found["a", "queue there"] == ("ok", "2 messages are ready, 0 consumers read it")
    assert found["b", "queue missing"] == ("failed", "there is no such queue; create it, or set declare: quorum")
    assert found["c", "queue made"][0] == "ok" and rabbit.length("made") is None
    assert found["d", "queue denied"][0] == "failed"


def sqs_route(url, visibility="60s", **more):
    return route({"sqs": url, "region": "elasticmq", "access_key": "x", "secret_key": "${PASSWORD}",
                  "visibility": visibility}, **more)


# P37
def test_sqs_is_asked_for_visibility_and_redrive(tmp_path, ledger, sqs):  # noqa: F811
    sqs.queue("dead")
    sqs.queue("moves", RedrivePolicy=json.dumps(
        {"deadLetterTargetArn": "arn:aws:sqs:elasticmq:000000000000:dead", "maxReceiveCount": 3}))
    found = answers(tmp_path, ledger.url, {
        "good": sqs_route(sqs.queue("good")), "fifo": sqs_route(sqs.queue("q.fifo")),
        "moves": sqs_route(sqs.url("moves"), "10s"), "missing": sqs_route(sqs.url("missing"))})
    assert found["good", "queue"] == ("ok", "standard, about 0 messages")
    assert found["good", "visibility"] == ("ok", "1m, and the lease is 1m")
    assert found["good", "redrive"] == ("ok", "SQS moves no message away")
    assert found["good", "retention"][0] == "warning"  # ElasticMQ does not tell it
    assert found["fifo", "queue"] == ("ok", "FIFO, about 0 messages")
    assert found["moves", "visibility"][0] == "warning" and "shorter than the lease" in found["moves", "visibility"][1]
    result, text = found["moves", "redrive"]
    assert result == "warning" and "after 3 receives" in text and "raise maxReceiveCount" in text
    assert found["missing", "queue"][0] == "failed"


class Attributes(http.server.BaseHTTPRequestHandler):
    """What Amazon says of a queue that keeps for as many days as its name says."""

    def do_POST(self):
        queue = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["QueueUrl"]
        days = int(queue.rsplit("/", 1)[1])
        body = json.dumps({"Attributes": {"MessageRetentionPeriod": str(days * 24 * 3600)}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


# I18
def test_what_sqs_keeps_is_compared_with_the_horizon(tmp_path, ledger):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Attributes) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/0"
        found = answers(tmp_path, ledger.url, {
            "short": sqs_route(f"{url}/4"), "long": sqs_route(f"{url}/14", keep={"completed": "31d"}),
            "kept": sqs_route(f"{url}/13")})
        server.shutdown()
    assert found["short", "retention"] == ("ok", "it keeps 4d, and horizon.broker is 7d")
    assert found["long", "retention"][0] == "failed" and found["long", "retention"][1].endswith("; 37d would do")
    assert found["kept", "retention"][0] == "warning" and "say horizon.broker: 13d" in found["kept", "retention"][1]


# ---- outboxes ----


def outbox_answers(folder, url, to, **more):
    """The answers about an outbox that publishes there: {question: (result, text)}"""
    told = answers(folder, url, None, outboxes={"orders": {"to": to, **more}})
    assert all(result != "failed" for (about, _), (result, _) in told.items() if about is None), told
    return {question: found for (about, question), found in told.items() if about == "orders"}


def test_topics_of_an_outbox_are_looked_for_and_compaction_is_warned_of(tmp_path, ledger, kafka):  # noqa: F811
    # O5, P111
    kafka.topic("out-plain", partitions=3)
    kafka.topic("out-compact", settings={"cleanup.policy": "compact"})
    to = {"kafka": kafka.address, "topic": "{aggregatetype}",
          "topics": ["out-plain", "out-compact", "out-missing"]}
    found = outbox_answers(tmp_path, ledger.url, to)
    assert found["topic out-plain"] == ("ok", "3 partitions") and "compaction of out-plain" not in found
    assert found["topic out-missing"] == ("failed", "there is no such topic, or we may not see it")
    result, text = found["compaction of out-compact"]
    assert result == "warning" and text.endswith("; set in_flight: 1")
    found = outbox_answers(tmp_path, ledger.url, {"kafka": kafka.address, "topic": "out-compact"}, in_flight=1)
    assert list(found) == ["topic out-compact"]
    found = outbox_answers(tmp_path, ledger.url, {"kafka": f"127.0.0.1:{free_port()}", "topic": "t"})
    assert found["kafka"][0] == "failed" and found["kafka"][1].startswith("cannot be reached: ")


@pytest.mark.skipif(not scenes.LONG, reason="SEMEL_LONG=1 starts a RabbitMQ for it")
def test_queues_and_the_exchange_of_an_outbox_are_looked_for(tmp_path, ledger, rabbit):  # noqa: F811
    # P111
    rabbit.queue("out-there")
    to = {"amqp": rabbit.url, "routing_key": "{aggregatetype}"}
    found = outbox_answers(tmp_path, ledger.url,
                           {**to, "routing_keys": ["out-there", "out-missing", "exchange:amq.topic", "exchange:none"]})
    assert found["queue out-there"] == ("ok", "it is there")
    assert found["queue out-missing"] == ("failed", "there is no such queue; create it")
    assert found["exchange amq.topic"][0] == "ok"
    assert found["exchange none"] == ("failed", "there is no such exchange; create it")
    found = outbox_answers(tmp_path, ledger.url, {**to, "routing_keys": ["any"], "exchange": "amq.direct"})
    assert list(found) == ["exchange amq.direct"]
    found = outbox_answers(tmp_path, ledger.url, {**to, "routing_keys": ["any"], "user": "guest",
                                                  "password": "${PASSWORD}"})
    assert found["queue any"][0] == "failed"


def test_queues_of_sqs_for_an_outbox_are_looked_for(tmp_path, ledger, sqs):  # noqa: F811
    # P111
    sqs.queue("out-plain")
    sqs.queue("out.fifo")
    found = outbox_answers(tmp_path, ledger.url, {
        "sqs": sqs.url("out-plain"), "queue": "{aggregatetype}", "queues": ["out-plain", "out.fifo", "out-missing"],
        "region": "elasticmq", "access_key": "x", "secret_key": "${PASSWORD}"})
    assert found["queue out-plain"] == ("ok", "standard: it keeps no order")
    assert found["queue out.fifo"] == ("ok", "FIFO")
    assert found["queue out-missing"][0] == "failed"


def test_receivers_of_webhooks_are_connected_to_and_sent_nothing(tmp_path, ledger):
    # O2
    closed = free_port()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        up, down = f"http://127.0.0.1:{port}/hook", f"http://127.0.0.1:{closed}/hook"
        to = {"webhook": "{destination}", "urls": [up, down], "secret": "${HOOK}"}
        refused = outbox_answers(tmp_path, ledger.url, to)
        found = outbox_answers(tmp_path, ledger.url, {**to, "allow": ["127.0.0.0/8"]})
        connection, _ = server.accept()
        with connection:
            assert connection.recv(100) == b""
    assert found[f"receiver {up}"] == ("ok", "it accepts connections; nothing was sent")
    assert found[f"receiver {down}"][0] == "failed" and found[f"receiver {down}"][1].startswith("cannot be reached: ")
    assert refused[f"receiver {up}"] == ("failed",
                                         "its address 127.0.0.1 is special and no network of `allow` has it")


HOOK = {"webhook": "http://127.0.0.1:1/hook", "secret": "${HOOK}"}
# A view of the catalog, in this database only: a server that shows each session its own locks, or none.
HIDE = """SET allow_system_table_mods = on; CREATE OR REPLACE VIEW pg_catalog.pg_locks AS
          SELECT * FROM pg_catalog.pg_lock_status() WHERE false;"""


def test_numbers_that_do_not_keep_the_order_are_refused(tmp_path, shop):
    # O5, P3, P79
    def numbers():
        return outbox_answers(tmp_path, shop.url, HOOK)["numbers"]
    assert numbers() == ("ok", "the sequence is at 0, and nothing above that is stored")
    for n in range(3):
        shop.sql(f"SELECT semel.outbox_put('order', 'o{n}', 'changed')")
    assert numbers()[0] == "ok"
    shop.sql("ALTER SEQUENCE semel.outbox_seq_seq RESTART WITH 2")
    result, text = numbers()
    assert result == "failed" and "the sequence stands at 1, and the table has number " in text
    assert shop.sql("SELECT last_value, is_called FROM semel.outbox_seq_seq") == [("2", "t")]  # drawn, not moved
    shop.sql(text.split("by hand: ")[1])
    assert numbers()[0] == "ok"
    shop.sql("ALTER SEQUENCE semel.outbox_seq_seq CACHE 20")
    result, text = numbers()
    assert result == "failed" and "draw 20 numbers ahead" in text
    assert text.endswith("ALTER SEQUENCE semel.outbox_seq_seq CACHE 1")
    shop.sql("ALTER SEQUENCE semel.outbox_seq_seq CACHE 1 CYCLE")
    assert numbers()[0] == "failed"


def test_a_server_that_hides_locks_is_told_with_what_follows(tmp_path, shop):
    # P70, P105
    assert outbox_answers(tmp_path, shop.url, HOOK)["locks"][0] == "ok"
    shop.sql(HIDE)
    result, text = outbox_answers(tmp_path, shop.url, HOOK)["locks"]
    assert result == "warning" and "every scan starts at the bottom" in text and "Nothing is lost" in text
    shop.sql("REVOKE SELECT ON pg_catalog.pg_locks FROM PUBLIC")
    result, text = outbox_answers(tmp_path, as_worker(shop), HOOK)["locks"]
    assert result == "failed" and text.endswith("the relay needs SELECT on pg_catalog.pg_locks")


def test_a_relay_works_with_the_rights_of_a_worker_and_check_names_those_that_it_lacks(tmp_path, shop):
    # O2, I27
    received = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        to = {**HOOK, "webhook": f"http://127.0.0.1:{server.server_address[1]}/", "allow": ["127.0.0.0/8"]}
        told = answers(tmp_path, as_worker(shop), None, outboxes={"orders": {"to": to}})
        assert told[None, "rights"] == ("ok", "role w may do what routes and relays need")
        settings = {"store": as_worker(shop), "outboxes": {"orders": {"to": to, "keep": "1h"}}}
        with Daemon(tmp_path, settings, env=SECRETS) as daemon:
            daemon.ready()
            shop.sql("SELECT semel.outbox_put('order', 'o', 'changed', '{}')")
            daemon.until(lambda: received == [b"{}"], "it is published")
            daemon.until(lambda: shop.sql("SELECT count(*) FROM semel.outbox_sent") == [("1",)], "it is kept")
        server.shutdown()
    shop.sql("REVOKE SELECT ON SEQUENCE semel.outbox_seq_seq FROM w; REVOKE DELETE ON semel.outbox FROM w")
    told = answers(tmp_path, as_worker(shop), None, outboxes={"orders": {"to": to}})
    assert told[None, "rights"][0] == "failed"
    assert "role w lacks DELETE on semel.outbox, SELECT on semel.outbox_seq_seq;" in told[None, "rights"][1]
    assert told["orders", "numbers"][0] == "failed"
    assert answers(tmp_path, as_worker(shop), {"r": route()})[None, "rights"][0] == "ok"


def test_notifications_are_tried_and_a_trigger_that_nobody_hears_is_told(tmp_path, shop):
    # P9
    found = outbox_answers(tmp_path, shop.url, HOOK)
    assert "notify" not in found
    found = outbox_answers(tmp_path, shop.url, HOOK, notify=True)
    assert found["notify"][0] == "warning" and "psql -f sql/postgres/notify.sql" in found["notify"][1]
    shop.server.psql(shop.name, (SOURCE / "sql" / "postgres" / "notify.sql").read_text())
    found = outbox_answers(tmp_path, shop.url, HOOK, notify=True)
    assert found["notify"] == ("ok", "notifications are sent, and come")
    result, text = outbox_answers(tmp_path, shop.url, HOOK)["notify"]
    assert result == "warning" and text.endswith("DROP TRIGGER outbox_notify ON semel.outbox")


def test_people_see_outboxes_and_what_they_connect_to(tmp_path, ledger):
    # O2
    shown = check(tmp_path, ledger.url, None, outboxes={"orders": {"to": HOOK}})
    assert shown.code == 1 and shown.out.startswith("orders: outbox, to webhook\n  connection     no TLS: ")
    assert "\nfailed   outbox orders: receiver http://127.0.0.1:1/hook: " in shown.out
    assert "semel.yaml: 0 routes, 1 outbox, no mistakes; " in shown.out
