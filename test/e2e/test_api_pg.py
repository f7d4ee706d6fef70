# SPDX-License-Identifier: MIT
"""The operators' API of `semel run` on a store in PostgreSQL; test_api.py has the rest of it, on SQLite."""
import json

import pytest

from api import Api, same
from inbox_rows import wait_for
from pg import pg, pg_server  # noqa: F401 (fixtures)


@pytest.fixture
def api(pg, tmp_path):  # noqa: F811
    with Api(pg, tmp_path, token="${ADMIN_TOKEN}") as made:
        yield made


def add_dead(database, consumer, n):
    for i in range(n):
        assert database.semel("send", "-c", consumer, "--id", f"pay-{i + 1}", '{"cents": 100}').code == 0
    database.sql("UPDATE semel.inbox SET status = 'dead', due_at = NULL, attempts = 8, error_class = 'transient', "
                 f"error_text = 'bank is down' WHERE consumer = '{consumer}'")


def test_reads_and_commands_give_the_same_json_as_the_command_line(pg, api):  # noqa: F811
    for consumer in ("cli", "api"):
        add_dead(pg, consumer, 5)
    for words, path, query in ((["inbox", "ls"], "/v1/inbox", {}),
                               (["inbox", "ls", "--group-by", "error"], "/v1/inbox/groups", {}),
                               (["inbox", "show", "pay-1", "-c", "api"], "/v1/inbox/api/pay-1", {}),
                               (["consumer", "ls"], "/v1/consumers", {}),
                               (["consumer", "show", "api"], "/v1/consumers/api", {})):
        same(lambda: api.semel(*words, "--json").out, lambda: api.get(path, **query))
    for command in ("retry", "discard"):
        told = api.semel("inbox", command, "pay-1", "-c", "cli", "--reason", "x", "--json").json
        assert told == [{**api.post(f"/v1/inbox/api/pay-1/{command}", {"reason": "x"}), "consumer": "cli"}]
    told = api.semel("inbox", "resolve", "--dead", "-c", "cli", "--reason", "x", "--yes", "--rate", "0", "--json").json
    made = api.post("/v1/selections", {"command": "resolve", "reason": "x", "rate": 0,
                                       "filter": {"dead": True, "consumer": "api"}}, 201)
    mine = api.finished(made["selection"])
    assert {**mine, "selection": 0} == {**told, "selection": 0} and mine["done"] == 4
    counts = pg.sql("SELECT consumer, status, count(*) FROM semel.inbox WHERE consumer <> 'books' GROUP BY 1, 2")
    assert len(counts) == 4


def test_a_store_that_is_away_is_told_and_comes_back(pg, pg_server, api):  # noqa: F811
    add_dead(pg, "billing", 1)
    assert len(json.loads(api.get("/v1/inbox"))) == 1
    pg_server.stop()
    status, headers, _ = api.ask("GET", "/v1/inbox")
    assert status == 503 and headers["Retry-After"] == "1"
    pg_server.start()
    wait_for(lambda: api.ask("GET", "/v1/inbox")[0] == 200, "the store")
    api.post("/v1/inbox/billing/pay-1/retry", {"reason": "it is back"})
