# SPDX-License-Identifier: MIT
"""`semel bench inbox` on tiny sizes: the form of what it prints, and that the work is done. bench/run, on SQLite."""
import json
import os
import pathlib
import signal
import subprocess
import time

import pytest

from conftest import Result, Store, binary, run

CASES = ["handwritten", "each", "limit", "handwritten-sets", "sets", "duplicates", "updates", "poison"]
IDS = ["ordered", "random"]
MESSAGES = 2000
SMALL = ("--messages", 60, "--rounds", 2, "--batch", 25)


class Bench:
    def __init__(self, folder):
        self.store = Store(folder / "bench.db")
        self.file = folder / "result.json"
        self.result = self.store.semel("bench", "inbox", "--json", "--messages", MESSAGES, "--rounds", 1, "--out",
                                       self.file)


@pytest.fixture(scope="module", name="bench")
def one_run(tmp_path_factory):
    bench = Bench(tmp_path_factory.mktemp("bench"))
    assert bench.result.code == 0, bench.result
    return bench


def test_result_has_every_case_with_both_kinds_of_ids(bench):
    found = bench.result.json
    assert found["bench"] == "inbox-sqlite"
    assert (found["messages"], found["rounds"], found["batch"]) == (MESSAGES, 1, 500)
    assert found["fsync_us"] >= 0 and found["rss_start_mb"] > 0 and found["rss_end_mb"] > 0
    assert [(case["name"], case["ids"]) for case in found["cases"]] == [(c, i) for i in IDS for c in CASES]
    for case in found["cases"]:
        assert set(case) == {"name", "ids", "connections", "per_s", "p50_ms", "p99_ms", "rss_mb"}
        assert case["connections"] == 1
        assert case["per_s"] > 0 and case["rss_mb"] > 0
        assert 0 <= case["p50_ms"] <= case["p99_ms"]


def test_file_has_what_stdout_has(bench):
    assert bench.file.read_text() == bench.result.out


def test_every_case_has_exactly_its_effects(bench):
    sql = bench.store.sql
    for ids in IDS:
        for case in ("handwritten", "handwritten_sets", "each", "sets", "duplicates", "limit"):
            table = f"bench_{case}_{ids}"
            assert sql(f"SELECT count(*), count(DISTINCT message_id) FROM {table}") == [(MESSAGES, MESSAGES)], table
        assert sql(f"SELECT count(*), sum(changes) FROM bench_updates_{ids}") == [(10000, MESSAGES)]
        failed = sql("SELECT count(*) FROM semel_inbox WHERE consumer = ? AND status <> 'completed'",
                     f"bench-poison-{ids}")[0][0]
        assert 0 < failed < MESSAGES / 20
        assert sql(f"SELECT count(*) FROM bench_poison_{ids}") == [(MESSAGES - failed,)]


def test_ids_are_time_ordered_or_random(bench):
    for ids, version, dated in (("ordered", "7", MESSAGES), ("random", "4", 0)):
        assert bench.store.sql("SELECT DISTINCT substr(message_id, 15, 1) FROM semel_inbox WHERE consumer = ?",
                               f"bench-each-{ids}") == [(version,)]
        assert bench.store.sql("SELECT count(message_time) FROM semel_inbox WHERE consumer = ?",
                               f"bench-each-{ids}") == [(dated,)]


def test_limit_writes_the_same_columns_as_the_inbox(bench):
    columns = [row[0] for row in bench.store.sql("SELECT name FROM pragma_table_info('semel_inbox')")]
    differ = {"arrival", "consumer", "message_id", "fingerprint", "message_time", "received_at", "updated_at",
              "processed_at"}
    shape = ", ".join(f"typeof({c}) || length({c})" if c in differ - {"consumer", "arrival"} else
                      "1" if c in differ else f"typeof({c}) || ifnull({c}, '')" for c in columns)
    for ids in IDS:
        ours, limit = (set(bench.store.sql(f"SELECT {shape} FROM semel_inbox WHERE consumer = ?", f"bench-{c}-{ids}"))
                       for c in ("each", "limit"))
        assert ours == limit and len(ours) == 1, (ours, limit)


def test_payloads_are_json_of_200_bytes(bench):
    payloads = bench.store.sql("SELECT payload FROM semel_inbox WHERE payload IS NOT NULL")  # of the poisoned ones
    assert payloads
    for (payload,) in payloads:
        assert len(payload) == 200
        assert set(json.loads(payload)) == {"id", "account", "amount", "currency", "note"}


def test_people_get_a_table_ratios_memory_and_the_cost_of_an_fsync(tmp_path):
    result = run("bench", "inbox", *SMALL, env={"TMPDIR": str(tmp_path)})
    assert result.code == 0 and result.err == "", result
    lines = result.out.splitlines()
    assert lines[0].split()[:2] == ["CASE", "IDS"]
    assert [tuple(line.split()[:2]) for line in lines[1:17]] == [(c, i) for i in IDS for c in CASES]
    assert {line.split()[3] for line in (lines[1], lines[9])} == {"1.00"}  # what the others are measured by
    for word in ("each / handwritten", "each / limit", "sets / each", "sets / handwritten-sets",
                 "each / handwritten-sets", "duplicates / each", "updates / each",
                 "poison / each", "memory: ", "an fsync takes "):
        assert word in result.out, word


def test_temporary_store_is_removed(tmp_path):
    result = run("bench", "inbox", *SMALL, env={"TMPDIR": str(tmp_path), "SEMEL_STORE": f"sqlite:{tmp_path}/mine.db"})
    assert result.code == 0, result
    assert list(tmp_path.iterdir()) == []


def test_store_in_use_is_refused_and_left_alone(store):
    assert store.semel("bench", "inbox", *SMALL).code == 0
    before = store.sql("SELECT count(*) FROM semel_inbox")
    again = store.semel("bench", "inbox", *SMALL)
    assert again.code == 4 and "in use" in again.err and again.out == "", again
    assert store.sql("SELECT count(*) FROM semel_inbox") == before


@pytest.mark.parametrize("args", [("--messages", "0"), ("--messages", "many"), ("--rounds", "100"),
                                  ("--batch", "10001"), ("--batch", "-1"), ("extra",), ("--no-such-option",)])
def test_wrong_command_line_is_refused(args):
    result = run("bench", "inbox", *args)
    assert result.code == 2 and result.err != "" and result.out == "", result


@pytest.mark.parametrize("url", ["sqlite::memory:", "sqlite:/no/such/folder/bench.db", "nosuch:thing"])
def test_store_that_cannot_be_measured_is_refused(url):
    result = run("bench", "inbox", *SMALL, "--store", url)
    assert result.code in (2, 5) and result.err != "" and result.out == "", result


def test_file_that_cannot_be_written_is_told(tmp_path):
    result = run("bench", "inbox", *SMALL, "--out", tmp_path / "no" / "such.json", env={"TMPDIR": str(tmp_path)})
    assert result.code == 1 and "cannot be written" in result.err, result


def test_interrupted_run_gives_no_result_and_cleans_up(tmp_path):
    child = subprocess.Popen([binary(), "bench", "inbox", "--rounds", "99"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, env=dict(os.environ, TMPDIR=str(tmp_path)))
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("semel-bench-*/bench.db-wal")):
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130 and out == "" and "interrupted" in err, (child.returncode, out, err)
    assert list(tmp_path.iterdir()) == []


def test_bench_run_writes_one_file_a_benchmark_and_skips_what_needs_a_server_where_there_is_none(tmp_path):
    script = pathlib.Path(os.environ["SEMEL_SOURCE"]) / "bench" / "run"
    done = subprocess.run([script, *map(str, SMALL)], capture_output=True, text=True, check=False, timeout=120,
                          env=dict(os.environ, BENCH_OUT=str(tmp_path / "out"), SEMEL_PG_BIN=str(tmp_path)))
    assert done.returncode == 0 and "handwritten" in done.stdout, Result(done)
    assert json.loads((tmp_path / "out" / "inbox-sqlite.json").read_text())["bench"] == "inbox-sqlite"
    for name in ("inbox-postgres", "growth-postgres"):
        assert f"== {name}\nskipped: no PostgreSQL server" in done.stdout
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == ["inbox-sqlite.json", "tmp"]
