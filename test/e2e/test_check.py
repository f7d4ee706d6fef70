# SPDX-License-Identifier: MIT
"""`semel init` and `semel check`: a file of settings to start with, its mistakes, and what its routes promise."""
import json
import os
import pathlib
import stat
import subprocess

import pytest

from conftest import binary, run

SOURCE = pathlib.Path(os.environ["SEMEL_SOURCE"])
SECRETS = {"SEMEL_TOKEN": "0123456789abcdefgh", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
GOOD = """\
store: ${DATABASE_URL}
routes:
  billing:
    from: {kafka: "k1:9092,k2:9092", topic: payments, group: billing}
    id: header:ce_id
    timed_ids: true
    order: json:/order_id
    values: [json:/order_id, json:/cents]
    do: {sql: "INSERT INTO ledger (order_id, cents) VALUES ($1, $2::bigint)"}
  mailer:
    from: {listen: "127.0.0.1:8090", token_file: token}
    do: {http: "https://mail.example/send"}
"""
DATABASE = {"DATABASE_URL": "postgres://app:hunter2@db/shop?sslmode=verify-full"}


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "semel.yaml"
    path.write_text(GOOD)
    (tmp_path / "token").write_text("0123456789abcdefgh\n")
    return path


# ---- init ----


@pytest.mark.parametrize("source", ["kafka", "amqp", "sqs", "listen", "inbox"])
@pytest.mark.parametrize("handler", ["sql", "http", "exec", "pull"])
def test_what_init_prints_has_no_mistakes(source, handler):
    printed = run("init", "--from", source, "--do", handler)
    assert printed.code == 0 and printed.err == ""
    live = [line for line in printed.out.splitlines() if not line.lstrip().startswith("#")]
    assert len(live) <= 16 and not any(line.strip().startswith("id:") for line in live), printed
    assert run("check", "-", stdin=run("init", "--full", "--from", source, "--do", handler).out, env=SECRETS).code == 0
    checked = run("check", "-", "--json", stdin=printed.out, env=SECRETS)
    assert checked.code == 0, checked
    route = checked.json["routes"][0]
    assert (route["source"], route["handler"]) == (source, handler)


def test_init_explains_every_setting_of_its_kinds():
    printed = run("init", "--full", "--from", "amqp", "--do", "exec").out
    for setting in run("init", "--json").json["settings"]:
        sink = setting["path"].startswith("outboxes.")  # it shows the first kind of them
        if setting["choice"] in ((None, "kafka") if sink else (None, "amqp", "exec")):
            assert setting["path"].split(".")[-1] + ":" in printed, setting
    assert "offsets:" not in printed


def test_init_never_overwrites(tmp_path):
    path = tmp_path / "semel.yaml"
    first = run("init", "--out", path)
    assert first.code == 0 and path.read_text() == run("init").out
    path.write_text("mine\n")
    again = run("init", "--out", path)
    assert again.code == 4 and "is there already" in again.err
    assert path.read_text() == "mine\n"
    assert run("init", "--out", tmp_path / "no" / "where").code == 1


def test_init_refuses_kinds_that_there_are_not():
    assert run("init", "--from", "nats").code == 2
    assert run("init", "--from", "rabbitmq").out == run("init", "--from", "amqp").out != ""
    assert run("init", "--do", "magic").code == 2
    assert run("init", "--json", "--from", "amqp").code == 2


def test_the_page_of_the_settings_says_what_the_program_says():
    done = subprocess.run([SOURCE / "tools" / "settings_docs.py", binary(), "--check"], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# ---- check ----


def test_check_prints_what_each_route_promises(good):
    shown = run("check", good, env=DATABASE)
    assert shown.code == 0 and shown.err == ""
    assert "billing: ATOMIC (from kafka, do sql)\n" in shown.out
    assert "mailer: GUARDED for 45 days (from listen, do http)\n" in shown.out
    assert "it rests on the order of a Kafka partition" in shown.out
    assert "45d against a horizon of 30d" in shown.out
    assert shown.out.endswith("2 routes, no mistakes\n")


def test_check_prints_the_same_for_programs(good):
    told = run("check", good, "--json", env=DATABASE).json
    assert told["ok"] is True and told["mistakes"] == []
    billing, mailer = told["routes"]
    assert (billing["route"], billing["guarantee"], billing["order"]) == ("billing", "ATOMIC", "source")
    assert billing["retention_us"] > billing["horizon_us"] >= 3600 * 10**6
    assert billing["settings"] == {"effect": "atomic", "order": "arrival", "timed_ids": True}
    assert mailer["settings"]["effect"] == "outside"
    assert set(billing["checklist"]) == {"key", "business_key", "connection", "store", "transaction", "retention",
                                         "outside_calls", "order", "failures"}
    assert billing["checklist"]["store"] == "PostgreSQL, ${DATABASE_URL}"


def test_check_never_prints_a_secret(good):
    for more in ([], ["--json"]):
        shown = run("check", good, *more, env=DATABASE)
        assert "hunter2" not in shown.out + shown.err and "0123456789" not in shown.out + shown.err
    good.write_text(GOOD.replace("${DATABASE_URL}", "postgres://app:hunter2@db/shop?sslmode=verify-full"))
    for more in ([], ["--json"]):
        shown = run("check", good, *more)
        assert shown.code == 1
        assert "hunter2" not in shown.out + shown.err and "***" in shown.err or more


def test_check_shows_every_mistake_with_its_line_and_a_caret(good):
    good.write_text(GOOD.replace("topic:", "tpoic:").replace("timed_ids: true", "timed_ids: maybe"))
    shown = run("check", good, env=DATABASE)
    assert shown.code == 1 and shown.out == ""
    assert f"{good}:4:38: routes.billing.from has no setting \"tpoic\"; did you mean topic?\n" in shown.err
    assert "    4 |     from: {kafka: \"k1:9092,k2:9092\", tpoic: payments, group: billing}\n" in shown.err
    assert "      |" + " " * 38 + "^~~~~\n" in shown.err
    assert f"{good}:6:16: routes.billing.timed_ids is maybe; it must be one of uuidv7, false, true, ulid\n" in shown.err
    assert shown.err.endswith(f"semel: {good}: 2 mistakes\n")
    told = run("check", good, "--json", env=DATABASE)
    assert told.code == 1 and told.json["ok"] is False and told.json["routes"] == []
    assert [(m["line"], m["column"], m["path"]) for m in told.json["mistakes"]] == [
        (4, 38, "routes.billing.from.tpoic"), (6, 16, "routes.billing.timed_ids")]


PLANTED = """store: sqlite:shop.db
routes:
  in:
    from: {listen: "0.0.0.0:8080", token: written-in-the-file}
    values: [id, jsno:/cents, heeder:x]
    do: {sql: "INSERT INTO t VALUES ($1, $2, $3)"}
    retry: {max: many}
  out:
    from: inbox
    id: header:id
    do: {http: "http://bank.example/pay", timeout: soon, headers: {Authorization: secret}, transient: [404]}
gateways:
  g:
    listen: 0.0.0.0:8081
    upstream: {url: "http://bank.example", timeout: soon}
    caller: {header: X User, trusted_from: [nowhere], certificate: maybe}
    trusted: [somewhere]
    guard:
      - {match: POST pay, key: perhaps}
      - {match: POST /pay, on_unknown: reconcile, wait: never}
"""


def test_check_shows_every_mistake_in_one_pass(tmp_path):
    path = tmp_path / "semel.yaml"
    path.write_text(PLANTED)
    told = run("check", path, "--json").json
    assert sorted((m["line"], m["path"].split(".", 2)[2]) for m in told["mistakes"]) == sorted([
        (4, "from.listen"), (4, "from.token"), (5, "values"), (5, "values"), (7, "retry.max"), (10, "id"),
        (11, "do.headers"), (11, "do.http"), (11, "do.timeout"), (11, "do.transient"), (14, "listen"),
        (15, "upstream.timeout"), (15, "upstream.url"), (16, "caller.certificate"), (16, "caller.header"),
        (16, "caller.trusted_from"), (17, "trusted"), (19, "guard[0].key"), (19, "guard[0].match"),
        (20, "guard[1].on_unknown"), (20, "guard[1].wait")]), told


ACROSS = """store: ${NO_SUCH_VARIABLE}
routes:
  first:
    from: {rabbitmq: "amqp://localhost/", queue: payments, prefetch: many}
    keep: {completed: 10d}
    values: [id]
    do: {sql: "INSERT INTO t VALUES ($1::bigint)", set: true}
    workers: 5000
  second:
    from: {kafka: "k1:9092", topic: payments, group: books}
    values: [id]
    do: {sql: "INSERT INTO t VALUES ($1)"}
    retry: {max: 0}
  third:
    from: {kafka: "k1:9092", topic: payments, group: books}
    do: {exce: [/bin/true], timeout: soon}
outboxes:
  events:
    to: {kafka: "k1", topic: x}
    table: {name: orders_outbox, order: seq, id: id, mark: id}
    keep: 1d
    timeout: 30s
    lease: 10s
    retry: {max: none}
    notify: true
gateways:
  payments:
    listen: 127.0.0.1:8081
    upstream: {url: "http://127.0.0.1:8000"}
    guard:
      - {match: POST pay}
      - {match: POST /pay, wait: never}
"""


def test_what_settings_say_of_each_other_is_reported_beside_other_mistakes(tmp_path):
    path = tmp_path / "semel.yaml"
    path.write_text(ACROSS)
    told = run("check", path, "--json").json
    assert sorted((m["line"], m["path"]) for m in told["mistakes"][1:]) == sorted([
        (4, "routes.first.from"), (4, "routes.first.from.prefetch"), (5, "routes.first.keep.completed"),
        (8, "routes.first.workers"), (13, "routes.second.retry.max"), (15, "routes.third.from"),
        (16, "routes.third.do"), (16, "routes.third.do.timeout"), (19, "outboxes.events.to.kafka"),
        (20, "outboxes.events.table.mark"), (21, "outboxes.events.keep"), (23, "outboxes.events.lease"),
        (24, "outboxes.events.retry.max"), (25, "outboxes.events.notify"), (27, "gateways.payments.caller"),
        (31, "gateways.payments.guard[0].match"), (32, "gateways.payments.guard[1].wait")]), told


@pytest.mark.parametrize("store", ["", "stroe: postgres://a@localhost/b\n", "store: ${NO_SUCH_VARIABLE}\n"])
def test_a_statement_is_not_judged_by_a_store_that_is_not_known(store):
    told = run("check", "-", "--json", stdin=store + """routes:
  in: {from: inbox, values: [id], do: {sql: "INSERT INTO t VALUES ($1::bigint)", set: true}}
outboxes:
  main: {to: {kafka: "k:1", topic: x}, notify: true}
""").json
    assert [m["line"] for m in told["mistakes"]] == [1], told


def test_check_says_nothing_that_only_follows_from_a_mistake(tmp_path):
    path = tmp_path / "semel.yaml"
    path.write_text("""store: sqlite:shop.db
routes:
  in:
    from: {listen: "0.0.0.0:8080", plian: true}
    values: [id, {a: b}]
    do: {sql: "INSERT INTO t VALUES ($1, $2)"}
  out:
    from: inbox
    do: {http: "http://bank.example/pay", plain: maybe}
gateways:
  g:
    listen: 0.0.0.0:8081
    plain: maybe
    upstream: {url: "http://bank.example", plian: true, timeout: 1h}
    lease: long
    caller: {haeder: X-User, trusted_from: [127.0.0.1]}
    guard: [{mtach: POST /pay}]
""")
    told = run("check", path, "--json").json
    assert sorted((m["line"], m["path"].split(".", 2)[2]) for m in told["mistakes"]) == sorted([
        (4, "from.plian"), (5, "values"), (9, "do.plain"), (13, "plain"), (14, "upstream.plian"), (15, "lease"),
        (16, "caller.haeder"), (17, "guard[0].mtach")]), told


# I18
def test_check_refuses_a_retention_below_the_horizon_with_the_figure_that_would_do(good):
    good.write_text(GOOD.replace("timed_ids: true", "keep: {completed: 10d}"))
    shown = run("check", good, env=DATABASE)
    assert shown.code == 1 and "shorter than the horizon" in shown.err and "30d would do" in shown.err
    good.write_text(GOOD.replace("timed_ids: true", "keep: {completed: 30d}"))
    assert run("check", good, env=DATABASE).code == 0


def test_what_is_missing_outside_the_file_is_a_mistake_in_it(good):
    shown = run("check", good)
    assert shown.code == 1 and "the environment has no variable DATABASE_URL" in shown.err
    (good.parent / "token").unlink()
    shown = run("check", good, env=DATABASE)
    assert shown.code == 1
    assert "routes.mailer.from.token_file: the secret file token cannot be read: No such file" in shown.err


def test_a_secret_file_that_may_not_be_read_is_a_mistake(good):
    (good.parent / "token").chmod(stat.S_IWUSR)
    root = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []  # which could read it
    shown = subprocess.run([*root, binary(), "check", good], capture_output=True, text=True, check=False,
                           env={**os.environ, **DATABASE})
    assert shown.returncode == 1
    assert "routes.mailer.from.token_file: the secret file token cannot be read: Permission denied" in shown.stderr


def test_names_of_files_are_relative_to_the_folder_of_the_settings(good, monkeypatch):
    monkeypatch.chdir("/")
    assert run("check", good, env=DATABASE).code == 0


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    missing = run("check", tmp_path / "no.yaml")
    assert missing.code == 1 and "no.yaml cannot be read: No such file or directory" in missing.err
    assert "it is a directory" in run("check", tmp_path).err
    large = tmp_path / "large.yaml"
    large.write_text("#" * (1 << 20) + "\n")
    assert "it has more than 1 MiB" in run("check", large).err
    assert run("check").code == 2 and run("check", "a", "b").code == 2


def test_a_billion_laughs_are_not_laughed(tmp_path):
    path = tmp_path / "laughs.yaml"
    path.write_text("a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi")))
    shown = run("check", path, "--json")
    assert shown.code == 1
    assert "anchors and aliases have no meaning here" in shown.json["mistakes"][0]["text"]
    assert shown.json["not_shown"] > 0


def test_the_example_on_the_page_is_right(tmp_path):
    page = (SOURCE / "docs" / "settings.md").read_text(encoding="utf-8")
    example = page.split("```yaml\n")[1].split("```")[0]
    checked = run("check", "-", "--json", stdin=example, env=DATABASE)
    assert checked.code == 0, checked
    assert json.loads(checked.out)["routes"][0]["guarantee"] == "ATOMIC"


# ---- gateways ----


GATEWAY = {"listen": "127.0.0.1:8081", "upstream": {"url": "http://127.0.0.1:8000"},
           "caller": {"header": "X-User-Id", "trusted_from": ["127.0.0.1/32", "::1", "unix"]},
           "guard": [{"match": "POST /v1/charges", "key": "required"}]}


def with_gateway(**changes):
    gateway = {name: value for name, value in {**GATEWAY, **changes}.items() if value is not None}
    return run("check", "-", "--json", stdin=json.dumps({"store": "sqlite:x.db", "admin": {"listen": "127.0.0.1:9464"},
                                                         "gateways": {"payments": gateway}}))


def rule(**settings):
    return {"guard": [{"match": "POST /v1/charges", **settings}]}


def test_gateway_is_guarded_and_atomic_where_the_server_finishes_keys():  # A8 A9
    shown = with_gateway().json["gateways"][0]
    assert shown["guarantee"] == "GUARDED" and shown["guard"][0]["key"] == "required" and "X-User-Id" in shown["caller"]
    assert with_gateway(upstream={"url": "http://127.0.0.1:8000", "finishes": True}).json["gateways"][0]["guarantee"] \
        == "ATOMIC"
    quick = with_gateway(upstream={"url": "unix:/run/app.sock", "timeout": "3s"}).json["gateways"][0]
    assert quick["guard"][0]["wait_us"] == 3_000_000  # a wait that is not given is never longer than a call
    asked = with_gateway(**rule(on_unknown="reconcile", reconcile="http://127.0.0.1:8000/by-key/{key}", settle="60s",
                                outcomes={"404": "completed", "500-599": "released"}))
    assert asked.code == 0, asked
    assert with_gateway(**rule(on_unknown="reconcile", reconcile="http://127.0.0.1/{caller}/{key}")).code == 0
    assert with_gateway(caller={"api_key": "X-Api-Key"}).code == with_gateway(threads=4).code == 0
    assert with_gateway(caller=None, **rule(anonymous=True)).code == 0


@pytest.mark.parametrize("path,right,changes", [
    ("caller", "has no caller", {"caller": None}),
    ("caller", "has no caller", {"caller": None, "guard": None}),
    ("caller.header", "trusted_from", {"caller": {"header": "X-User-Id"}}),
    ("caller.header", "name of a header", {"caller": {"header": "X_User", "trusted_from": ["unix"]}}),
    ("caller.trusted_from", "networks such as", {"caller": {"header": "X-User", "trusted_from": ["10.0.0.0/33"]}}),
    ("caller", "one of header", {"caller": {"api_key": "A", "certificate": True}}),
    ("caller.certificate", "client_ca_file", {"caller": {"certificate": True}}),
    ("guard[0].wait", "longer than upstream.timeout", rule(wait="31s")),
    ("guard[0].settle", "below twice", rule(on_unknown="reconcile", reconcile="http://127.0.0.1/{key}",
                                            settle="59s")),
    ("guard[0].settle", "is for `on_unknown: reconcile`", rule(settle="1h")),
    ("guard[0].on_unknown", "no URL to ask", rule(on_unknown="reconcile")),
    ("guard[0].reconcile", "with `on_unknown: reconcile` only", rule(reconcile="http://127.0.0.1/{key}")),
    ("guard[0].reconcile", "the server cannot know it", rule(
        on_unknown="reconcile", reconcile="http://127.0.0.1/{caller}/{key}", key_scope="endpoint")),
    ("guard[0].reconcile", "the server cannot know it", {"caller": {"api_key": "X-Api-Key"}, **rule(
        on_unknown="reconcile", reconcile="http://127.0.0.1/{caller}/{key}")}),
    ("guard[0].on_unknown", "refuse, reconcile or retry", rule(on_unknown="repeat")),
    ("guard[0].keep", "outlives its answer", rule(answer="40d")),
    ("guard[0].answer", "1d to", rule(answer="1h")),
    ("guard[0].outcomes", "statuses of 200 to 599", rule(outcomes={"99": "completed"})),
    ("guard[0].outcomes", "statuses of 200 to 599", rule(outcomes={"404": "done"})),
    ("guard[0].key_pointer", "both key_header and key_pointer", rule(key_header="K", key_pointer="/k")),
    ("guard[0].ignore", "JSON pointer", rule(ignore=["sent_at"])),
    ("guard[0].match", "methods and a path", rule(match="POST v1")),
    ("guard[0].match", "methods and a path", rule(match="PAY /v1")),
    ("guard", "a list of 1 to 64 mappings", {"guard": []}),
    ("guard[0]", "a mapping", {"guard": ["POST /v1"]}),
    ("guard[0].match", "lacks match", {"guard": [{"key": "off"}]}),
    ("lease", "outlast a call", {"lease": "35s"}),
    ("upstream.url", "without a path", {"upstream": {"url": "http://127.0.0.1/v1"}}),
    ("upstream.url", "without TLS", {"upstream": {"url": "http://10.0.0.7:80"}}),
    ("listen", "admin.listen", {"listen": "127.0.0.1:9464"}),
    ("listen", "others can reach", {"listen": "0.0.0.0:8081"}),
    ("threads", "share a port", {"listen": "unix:/run/gw.sock", "threads": 2}),
])
def test_gateway_that_would_not_keep_its_promise_is_refused(path, right, changes):  # P46
    told = with_gateway(**changes)
    assert told.code == 1, told
    assert [m for m in told.json["mistakes"] if m["path"] == f"gateways.payments.{path}" and right in m["text"]], told


def test_two_gateways_on_one_address_are_refused():
    told = run("check", "-", "--json", stdin=json.dumps({"store": "sqlite:x.db", "gateways": {"a": GATEWAY,
                                                                                             "b": GATEWAY}}))
    assert told.code == 1 and "gateways.a.listen" in told.json["mistakes"][0]["text"], told
