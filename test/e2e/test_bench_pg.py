# SPDX-License-Identifier: MIT
"""`semel bench` on PostgreSQL and bench/run, on tiny sizes: the form of what they print, and that the work is done."""
import json
import os
import pathlib
import signal
import subprocess

import pytest

from conftest import Result, binary, run
from pg import empty_pg, pg_server, wait_for  # noqa: F401  (fixtures)

IDS = ["ordered", "random"]
ROWS, STEPS = 4000, 4
GROWTH = ("bench", "growth", "--rows", ROWS, "--steps", STEPS, "--batch", 100, "--chunk", 300)


def test_growth_tells_every_step_and_the_purge_of_the_oldest_quarter(empty_pg, tmp_path):  # noqa: F811
    # I18
    result = empty_pg.semel(*GROWTH, "--json", "--out", tmp_path / "growth.json")
    assert result.code == 0 and result.err == "", result
    assert (tmp_path / "growth.json").read_text() == result.out
    found = result.json
    assert (found["bench"], found["rows"], found["steps"]) == ("growth-postgres", ROWS, STEPS)
    assert [(case["step"], case["ids"], case["rows"]) for case in found["cases"]] == [
        (step, ids, step * ROWS // STEPS) for step in range(1, STEPS + 1) for ids in IDS]
    for case in found["cases"]:
        assert (case["name"], case["connections"]) == ("sets", 1)
        assert case["per_s"] > 0 and case["duplicates_per_s"] > 0 and case["wal_bytes"] > 200
        assert case["table_bytes"] > 0 and case["index_bytes"] > 0
        assert case["row_bytes"] == pytest.approx((case["table_bytes"] + case["index_bytes"]) / case["rows"], abs=0.1)
    assert [case["ratio"] for case in found["cases"][:2]] == [1, 1]
    assert [(purge["ids"], purge["rows"], purge["chunks"]) for purge in found["purge"]] == [
        (ids, ROWS // 4, 4) for ids in IDS]
    for purge in found["purge"]:
        assert purge["per_s"] > 0 and purge["longest_ms"] > 0
        assert purge["calm_per_s"] > 0 and purge["meanwhile_per_s"] > 0


def test_growth_leaves_every_effect_once_and_all_rows_but_the_oldest(empty_pg):  # noqa: F811
    # I18
    result = empty_pg.semel(*GROWTH)
    assert result.code == 0, result
    assert result.out.splitlines()[0].split()[:3] == ["STEP", "IDS", "ROWS"]
    for word in ("random / ordered at the last step: ", "purge, ordered ids: ", "purge, random ids: ",
                 "a commit takes "):
        assert word in result.out, word
    for ids in IDS:
        total, distinct = map(int, empty_pg.sql(
            f"SELECT count(*), count(DISTINCT message_id) FROM bench_growth_{ids};")[0])
        assert total == distinct > ROWS
        gone = ROWS // 4
        assert empty_pg.sql(f"""SELECT count(*), count(*) FILTER (WHERE status = 'completed') FROM semel.inbox
                                WHERE consumer = 'bench-growth-{ids}';""") == [(str(total - gone),) * 2]
        oldest = empty_pg.sql(f"""SELECT min(entry) FROM bench_growth_{ids} AS b JOIN semel.inbox AS i
                                  USING (message_id);""")
        assert oldest == [(str(gone + 1),)]
    assert empty_pg.sql("SELECT count(*) FROM semel.watermark;") == [("1",)]  # random ids have no time


# I25
def test_sql_tells_each_case_beside_the_handwritten_one(empty_pg, tmp_path):  # noqa: F811
    args = ("bench", "sql", "--messages", 40, "--rounds", 1, "--batch", 10)
    result = empty_pg.semel(*args, "--json", "--out", tmp_path / "sql.json")
    assert result.code == 0, result.err
    assert (tmp_path / "sql.json").read_text() == result.out
    found = json.loads(result.out)
    assert (found["bench"], found["messages"], found["rounds"], found["batch"]) == ("sql-postgres", 40, 1, 10)
    assert found["commit_us"] > 0
    names = ["handwritten", "begin", "handwritten-duplicate", "duplicate", "begin-many"]
    assert [(case["name"], case["connections"]) for case in found["cases"]] == [
        (name, connections) for connections in (1, 8) for name in names]
    assert all(case["per_s"] > 0 and case.get("ratio", 1) > 0 for case in found["cases"])
    assert empty_pg.sql("SELECT count(*), count(DISTINCT message_id) FROM bench_sql_ledger") == [("360", "360")]
    assert empty_pg.sql("SELECT count(*) FROM semel.inbox WHERE status = 'completed'") == [("241",)]
    again = empty_pg.semel(*args)
    assert again.code != 0 and "in use" in again.err
    assert run("bench", "sql", "--store", "sqlite:x.db").code == 2


def test_growth_refuses_a_database_in_use(empty_pg):  # noqa: F811
    assert empty_pg.semel("bench", "growth", "--rows", 1, "--steps", 1).code == 0
    before = empty_pg.sql("SELECT count(*) FROM semel.inbox;")
    again = empty_pg.semel("bench", "growth", "--rows", 1, "--steps", 1)
    assert again.code == 4 and "in use" in again.err and again.out == "", again
    assert empty_pg.sql("SELECT count(*) FROM semel.inbox;") == before


@pytest.mark.parametrize("args", [(), ("--store", "sqlite:some.db"), ("--rows", "0"), ("--rows", "many"),
                                  ("--steps", "101"), ("--rows", "3", "--steps", "4"), ("--chunk", "0"), ("extra",)])
def test_wrong_command_line_of_growth_is_refused(args):
    given = () if not args or args[0] == "--store" else ("--store", "postgres://nobody@127.0.0.1:1/none")
    result = run("bench", "growth", *args, *given)
    assert result.code == 2 and result.err != "" and result.out == "", result


def test_interrupted_growth_gives_no_result(empty_pg):  # noqa: F811
    child = subprocess.Popen([binary(), "bench", "growth", "--rows", "10000000", "--store", empty_pg.url],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: empty_pg.server.psql(empty_pg.name, "SELECT 1 FROM semel.inbox LIMIT 1;", check=False).stdout,
             "the first rows are there")
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130 and out == "" and "interrupted" in err, (child.returncode, out, err)


# ---- bench/run ---------------------------------------------------------------------------------------------

SCRIPT = pathlib.Path(os.environ["SEMEL_SOURCE"]) / "bench" / "run"
TINY = ("--messages", 60, "--rounds", 2, "--batch", 25, "--connections", 1, "--rows", 200, "--steps", 2,
        "--only", "inbox-sqlite,inbox-postgres,growth-postgres")


def test_bench_run_writes_one_file_a_benchmark_and_removes_its_stores(pg_server, tmp_path):  # noqa: F811
    done = subprocess.run([SCRIPT, *map(str, TINY)], capture_output=True, text=True, check=False, timeout=300,
                          env=dict(os.environ, BENCH_OUT=str(tmp_path / "out")))
    assert done.returncode == 0, Result(done)
    names = ["growth-postgres", "inbox-postgres", "inbox-sqlite"]
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == [f"{name}.json" for name in names] + ["tmp"]
    for name in names:
        assert json.loads((tmp_path / "out" / f"{name}.json").read_text())["bench"] == name
        assert f"== {name}\n" in done.stdout


def test_interrupted_bench_run_ends_its_server(pg_server, tmp_path):  # noqa: F811
    log = tmp_path / "log"
    with open(log, "wb") as to:
        child = subprocess.Popen(
            [SCRIPT, "--messages", "100", "--rounds", "1", "--connections", "1", "--rows", "10000000"], stdout=to,
            stderr=to, env=dict(os.environ, BENCH_OUT=str(tmp_path / "out")))
    wait_for(lambda: "== growth-postgres" in log.read_text() or child.poll() is not None, "growth has begun", 120)
    assert child.poll() is None, log.read_text()
    # Its own server: a grandchild of ours, with its data below a folder of bench/run.
    pids = [int(pid) for pid in pathlib.Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
            if b"/postgres\0-D\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(pids) == 1, pids
    data = pathlib.Path(os.readlink(f"/proc/{pids[0]}/cwd"))
    child.send_signal(signal.SIGTERM)
    assert child.wait(60) == 143, log.read_text()
    assert not pathlib.Path(f"/proc/{pids[0]}").exists()
    assert not data.parent.exists()
    assert {path.name for path in (tmp_path / "out").rglob("*")} == {"inbox-sqlite.json", "inbox-postgres.json", "tmp"}


def test_two_builds_are_compared_case_by_case(pg_server, tmp_path):  # noqa: F811
    tiny = ("--only", "sqlite,postgres", "--rounds", "1", "--messages", "60")
    done = subprocess.run([SCRIPT, "--against", binary(), *tiny], capture_output=True, text=True, check=False,
                          timeout=300, env=dict(os.environ, BENCH_OUT=str(tmp_path / "out")))
    assert done.returncode == 0, Result(done)
    found = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert {(case["name"], case["ids"]) for case in found["cases"]} == {
        (f"{store} {case}", ids) for store in ("sqlite", "postgres")
        for case in ("each", "sets", "duplicates", "poison") for ids in IDS}
    for case in found["cases"]:
        assert case["ratio"] == pytest.approx(case["new_per_s"] / case["old_per_s"], abs=0.001)
        assert len(case["ratios"]) == 1 and case["new_mb"] > 1 and case["old_mb"] > 1
    assert "NEW / OLD" in done.stdout and "median of new / old below 0.97: " in done.stdout


@pytest.mark.skipif(os.environ.get("SEMEL_LONG") != "1", reason="SEMEL_LONG=1 runs it")
def test_the_benchmark_of_the_daemon_writes_its_cases(tmp_path):
    done = subprocess.run([SCRIPT, "--only", "run-kafka-postgres", "--kafka-messages", "5000", "--kafka-rounds", "1"],
                          capture_output=True, text=True, check=False, timeout=600,
                          env=dict(os.environ, BENCH_OUT=str(tmp_path / "out")))
    assert done.returncode == 0, Result(done)
    told = json.loads((tmp_path / "out" / "run-kafka-postgres.json").read_text())
    names = [case["name"] for case in told["cases"]]
    assert names == ["handwritten", "handwritten-sets", "semel", "semel-sets", "each"]
    assert told["semel_sets_by_handwritten_sets"] > 0 and told["semel_by_handwritten_sets"] > 0


@pytest.mark.skipif(os.environ.get("SEMEL_LONG") != "1", reason="SEMEL_LONG=1 runs it")
def test_the_benchmark_of_the_gateway_writes_its_cases(tmp_path):
    """It fails by itself if an answer is wrong, or if the server was not called once per key."""
    done = subprocess.run([SCRIPT, "--only", "gateway", "--gateway-seconds", "1", "--gateway-rounds", "1"],
                          capture_output=True, text=True, check=False, timeout=600,
                          env=dict(os.environ, BENCH_OUT=str(tmp_path / "out")))
    assert done.returncode == 0, Result(done)
    found = json.loads((tmp_path / "out" / "gateway.json").read_text())
    names = [case["name"] for case in found["cases"]]
    assert [name for name in names if name not in ("nginx", "middleware")] == [
        "direct", "unguarded", "replay", "replay-sqlite", "guarded-sqlite", "guarded-postgres"]
    assert {"nginx", "middleware"} == {*names, *found["skipped"]} & {"nginx", "middleware"}
    assert {(one["case"], one["by"]) for one in found["ratios"]} >= {("replay", "unguarded")}
    assert found["fsync_us"][0] > 0 and "a write with fsync takes" in done.stdout


@pytest.mark.skipif(os.environ.get("SEMEL_LONG") != "1", reason="SEMEL_LONG=1 runs it")
def test_run_measures_commands_about_many_messages_beside_sql(tmp_path):
    done = subprocess.run([SCRIPT, "--only", "rates-postgres", "--rates-lines", "1500", "--rates-messages", "700",
                           "--rates-rounds=1"], env={**os.environ, "BENCH_OUT": str(tmp_path)}, capture_output=True,
                          text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    if "skipped" in done.stdout:
        pytest.skip(done.stdout)
    found = json.loads((tmp_path / "rates-postgres.json").read_text())
    assert set(found["cases"]) == {"insert", "copy", "update", "send", "retry", "discard", "resolve"}
    assert all(case["per_s"] > 0 for case in found["cases"].values()) and len(found["turns"]) == 1
    for name, base in (("send", "insert"), ("retry", "update"), ("discard", "update"), ("resolve", "update")):
        ratio = found["turns"][0][name] / found["turns"][0][base]
        assert found["cases"][name]["baseline"] == base and abs(found["cases"][name]["ratio"] - ratio) < 0.01
        assert f"{base:>9}" in next(line for line in done.stdout.splitlines() if line.startswith(name))
    assert "a write with fsync takes" in done.stdout
