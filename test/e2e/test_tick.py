# SPDX-License-Identifier: MIT
"""`semel tick`: housekeeping for those who have no settings file, once and until it is stopped, on a store that is
there and on one that fails in every way."""
import json
import os
import signal
import subprocess

import pytest

from conftest import Store, binary, run, wait_for
from pg import SOURCE, Database, Server, free_port, migrated, pg_server  # noqa: F401  (a fixture)
from pgsql import run_file

KINDS = ("recovered", "decided", "woken", "purged", "keys")


class Ticker:
    """A `semel tick --every`, and what it wrote."""

    def __init__(self, folder, url, *more):
        self.log = folder / "tick.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([binary(), "tick", "--store", url, "--every", "50ms", *more], stderr=log,
                                            stdout=subprocess.PIPE, text=True, env={**os.environ, "SEMEL_STORE": ""})

    def __enter__(self):
        return self

    def __exit__(self, *args):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def says(self, text):
        assert self.process.poll() is None, self.log.read_text()
        return text in self.log.read_text()

    def until(self, condition, what):
        def holds():
            assert self.process.poll() is None, self.log.read_text()
            return condition()
        return wait_for(holds, what)

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        out, _ = self.process.communicate(timeout=30)
        return self.process.returncode, out


@pytest.fixture(params=["postgres", "sqlite"])
def base(request, tmp_path):
    """A store, with a lease of two consumers each that ran out."""
    if request.param == "postgres":
        made = Database(request.getfixturevalue("pg_server"), "ticked", model=migrated)
    else:
        made = Store(tmp_path / "ticked.db")
        migrated(made)
    made.table = "semel.inbox" if request.param == "postgres" else "semel_inbox"
    for consumer in ("one", "two"):
        expire(made, consumer, "m1")
    return made


def expire(base, consumer, id):
    """A message whose worker died: its lease ran out."""
    assert base.semel("send", "--consumer", consumer, "--id", id, "{}").code == 0
    postgres = base.table == "semel.inbox"
    then = "now() - interval '1 minute'" if postgres else "1000"
    which = (f"key = semel.message_key('{id}') AND stream = (SELECT stream FROM semel.stream "
             f"WHERE consumer = '{consumer}')" if postgres else f"message_id = '{id}' AND consumer = '{consumer}'")
    base.sql(f"UPDATE {'semel.record' if postgres else base.table} SET status = 'processing', attempts = 1, "
             f"due_at = NULL, lease_owner = 'gone', lease_until = {then}, "
             f"lease_token = (SELECT coalesce(max(lease_token), 0) + 1 FROM {base.table}) WHERE {which};")


def held(base):
    """The messages that somebody still has, as far as the rows tell."""
    return {tuple(row) for row in base.sql(
        f"SELECT consumer, message_id FROM {base.table} WHERE status = 'processing';")}


# ---- once


# I26
def test_once_it_serves_all_consumers_and_counts(base):
    result = base.semel("tick")
    assert result.code == 0, result
    assert result.out == "2 consumers: recovered 2, decided 0, woken 0, purged 0; keys 0\n"
    assert held(base) == set()
    assert base.semel("tick", "--consumer", "two").out.startswith("1 consumer: recovered 0, ")
    again = base.semel("tick", "--json")
    assert (again.code, again.json) == (0, {"consumers": 2, **dict.fromkeys(KINDS, 0)})


# I26
def test_once_it_serves_the_consumers_that_are_named(base):
    result = base.semel("tick", "--consumer", "two", "--json")
    assert result.code == 0 and result.json["consumers"] == 1 and result.json["recovered"] == 1, result
    assert held(base) == {("one", "m1")}
    result = base.semel("tick", "--consumer", "three")
    assert result.code == 3 and "three" in result.err, result


# I26: as much as there is, in bounded rounds
def test_once_it_goes_on_until_nothing_is_left(base):
    for n in range(5):
        expire(base, "one", f"x{n}")
    result = base.semel("tick", "--max", 2, "--json")
    assert result.code == 0 and result.json["recovered"] == 7, result


# ---- until it is stopped


# I26
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_with_every_it_goes_on_until_a_signal(tmp_path, base, how):
    with Ticker(tmp_path, base.url) as ticker:
        ticker.until(lambda: ticker.says("recovered=2"), "it logs what it did")
        expire(base, "one", "later")
        ticker.until(lambda: not held(base), "it goes on")
        assert ticker.stop(how)[0] == 0
        assert "stopped" in ticker.log.read_text()


# I26
def test_with_every_and_json_each_round_that_did_something_is_an_object(tmp_path, base):
    with Ticker(tmp_path, base.url, "--json") as ticker:
        ticker.until(lambda: not held(base), "it did something")
        code, out = ticker.stop()
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and sum(line["recovered"] for line in lines) == 2, out
    assert all(json.loads(line) for line in ticker.log.read_text().splitlines())


# I26
def test_it_survives_a_restart_of_the_server(tmp_path):
    server = Server()
    try:
        base = Database(server, "ticked")
        assert base.semel("migrate").code == 0
        base.table = "semel.inbox"
        with Ticker(tmp_path, base.url) as ticker:
            expire(base, "one", "m1")
            ticker.until(lambda: not held(base), "it works")
            server.stop(signal.SIGQUIT)
            ticker.until(lambda: ticker.says("the store fails; retrying"), "it notices")
            server.start()
            ticker.until(lambda: ticker.says("the store is back"), "it comes back")
            expire(base, "one", "m2")
            ticker.until(lambda: not held(base), "it works again")
            assert ticker.log.read_text().count("the store fails") <= 6  # once per cause, not per round
            assert ticker.stop()[0] == 0
    finally:
        server.done()


# ---- what is wrong


# I26
def test_a_server_that_is_down_is_named(tmp_path):
    url = f"postgres://postgres@127.0.0.1:{free_port()}/shop"
    result = run("tick", "--store", url)
    assert result.code == 5 and "refused" in result.err and url in result.err, result
    with Ticker(tmp_path, url) as ticker:
        ticker.until(lambda: ticker.says("the store fails; retrying"), "it goes on trying")
        assert ticker.stop()[0] == 0


# I26
def test_a_store_without_a_schema_is_refused_with_the_command(tmp_path, pg_server):  # noqa: F811
    for store in (Database(pg_server, "bare"), Store(tmp_path / "missing.db")):
        for more in ((), ("--every", "1s")):
            result = store.semel("tick", *more)
            assert result.code == 5 and "migrate" in result.err, result


# I26
def test_an_old_schema_is_refused_with_the_command(base):
    table = "semel.schema" if base.table == "semel.inbox" else "semel_schema"
    base.sql(f"DELETE FROM {table} WHERE version = (SELECT max(version) FROM {table});")
    for more in ((), ("--every", "1s")):
        result = base.semel("tick", *more)
        assert result.code == 5 and "schema version" in result.err and "migrate" in result.err, result


# I26
def test_a_role_without_rights_is_refused(pg_server):  # noqa: F811
    base = Database(pg_server, "guarded", model=migrated)
    for role in ("nobody", "worker"):
        pg_server.psql("postgres", f"DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN;")
    run_file(base, SOURCE / "sql/postgres/roles.sql", owner="semel_owner", app="semel_app", operator="semel_operator",
             worker="worker")
    for more in ((), ("--every", "1s")):
        result = run("tick", "--store", pg_server.url("guarded", "nobody"), *more)
        assert result.code == 5 and "permission denied" in result.err, result
    result = run("tick", "--store", pg_server.url("guarded", "worker"))
    assert result.code == 0, result


# I26
def test_a_consumer_whose_settings_cannot_be_read_is_passed_over_and_named(base):
    table = "semel.consumer" if base.table == "semel.inbox" else "semel_consumer"
    at = "now()" if base.table == "semel.inbox" else "0"
    base.sql(f"INSERT INTO {table} (consumer, settings, updated_at) VALUES ('one', '{{\"lease\": 7}}', {at});")
    result = base.semel("tick")
    assert result.code == 1 and "lease" in result.err and "one" in result.err, result
    assert held(base) == {("one", "m1")}


def test_options_that_cannot_be_meant_are_refused(base):
    for args in (("--every", "1us"), ("--every", "2h"), ("--every", "often"), ("--max", "0"), ("--consumer", ""),
                 ("--consumer", "x" * 256), ("now",)):
        result = base.semel("tick", *args)
        assert result.code == 2, (args, result)
    assert run("tick", env={"SEMEL_STORE": ""}).code == 2
