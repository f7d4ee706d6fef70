# SPDX-License-Identifier: MIT
"""Effects outside the database, by `semel run`: http, exec and pull, with the other side failing in every way."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading

import pytest

import scenes
from conftest import binary
from daemon import Daemon
from listen import OTHER_TOKEN, Listen, Other, silent_connections
from pg import free_port, wait_for


@pytest.fixture
def books(store):
    return scenes.Books(store)


@pytest.fixture
def listen():
    return Listen()


def post(listen, *ids, **headers):
    for id in ids:
        assert listen.post({"k": "k1", "n": 1}, id=id, **headers)[0] == 202, id


# ---- http


def test_a_call_carries_the_same_key_until_it_succeeds(tmp_path, books, listen):
    # E1, I6
    answers = iter([503, 429, 200])
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with Other(lambda call: (next(answers), b'{"charge": 7}')) as other:
        do = {"http": other.url, "transient": [503]}
        with Daemon(tmp_path, scenes.outside(books, listen, do)) as daemon:
            daemon.ready()
            post(listen, "m1", traceparent=trace)
            daemon.until(lambda: books.states() == {"completed": 1}, "the third attempt succeeds")
            calls = other.of("m1")
            assert len(calls) == 3
            assert len({call["headers"]["Idempotency-Key"] for call in calls}) == 1
            assert [call["headers"]["Semel-Attempt"] for call in calls] == ["1", "2", "3"]
            for call in calls:  # the same trace, another span
                assert call["headers"]["traceparent"].split("-")[1] == trace.split("-")[1]
                assert call["headers"]["traceparent"].split("-")[2] != trace.split("-")[2]
            status, answer = listen.post({"k": "k1", "n": 1}, id="m1")
            assert (status, answer["outcome"]) == (200, {"charge": 7})  # I9
            assert len(other.of("m1")) == 3


def test_an_unknown_outcome_is_asked_for_and_never_repeated_on_a_guess(tmp_path, books, listen):
    # E2, T11, P47
    known = {}
    def answer(call):
        if call["method"] == "GET":
            return 200, json.dumps({"state": known.get(call["path"].rsplit("/", 1)[1], "unknown")}).encode()
        return None, b""  # hangs up after it has read the request
    with Other(answer) as other:
        do = {"http": other.url + "/charges", "reconcile": other.url + "/charges/{id}"}
        with Daemon(tmp_path, scenes.outside(books, listen, do)) as daemon:
            daemon.ready()
            post(listen, "was-done", "was-not", "still-unknown")
            daemon.until(lambda: books.states() == {"unknown": 3}, "nobody knows")
            known["was-done"] = "done"
            daemon.until(lambda: books.states().get("completed") == 1, "one is known to be done")
            assert len([call for call in other.of("was-done") if call["method"] == "POST"]) == 1
            known["was-not"] = "not_done"
            def again():
                return len([call for call in other.of("was-not") if call["method"] == "POST"]) == 2
            daemon.until(again, "the one that was not done runs again")
            known["was-not"] = "unknown"
            daemon.until(lambda: books.states() == {"unknown": 2, "completed": 1}, "and is unknown again")
            assert len([call for call in other.of("still-unknown") if call["method"] == "POST"]) == 1
            assert daemon.lines("reconciled")


def posts(other):
    return [call for call in other.calls if call["method"] == "POST"]


def test_a_5xx_is_not_repeated_on_a_guess(tmp_path, books, listen):
    # A10, P81, P92
    with Other(lambda call: (int(call["headers"]["Semel-Message-Id"][1:]), b"")) as other:
        do = {"http": other.url, "transient": [529]}
        with Daemon(tmp_path, scenes.outside(books, listen, do, retry={"max": 2, "first": "10ms"})) as daemon:
            daemon.ready()
            post(listen, "m500", "m503", "m502", "m529", "m200")
            daemon.until(lambda: books.states() == {"unknown": 3, "dead": 1, "completed": 1}, "each has its end")
            assert [len(other.of(id)) for id in ("m500", "m503", "m502", "m529")] == [1, 1, 1, 2]


@pytest.mark.parametrize("unknown_max", [100, 3])
def test_an_outage_makes_a_handful_of_unknown_outcomes_and_is_probed_by_the_reconcile(tmp_path, books, listen,
                                                                                      unknown_max):
    # A10
    up = threading.Event()
    def answer(call):
        if not up.is_set():
            return 503, b""
        return (404, b"") if call["method"] == "GET" else (200, b"")
    with Other(answer) as other:
        do = {"http": other.url + "/charges", "reconcile": other.url + "/charges/{key}", "concurrency": 2}
        breaker = {"failures": 3, "first": "100ms", "ceiling": "1s"}
        settings = scenes.outside(books, listen, do, breaker=breaker, unknown_max=unknown_max)
        with Daemon(tmp_path, settings) as daemon:
            daemon.ready()
            ids = iter(range(1000))
            def asked():
                listen.post({"k": "k1", "n": 1}, id=f"m{next(ids)}")
                return len(other.calls) - len(posts(other))
            daemon.until(lambda: asked() >= 5, "the paused route asks")
            down = len(posts(other))
            assert 3 <= down <= 5 and books.states() == {"unknown": down}
            up.set()
            daemon.until(lambda: listen.post({"k": "k1", "n": 1}, id="last")[0] in (200, 202), "it goes on")
            daemon.until(lambda: set(books.states()) == {"completed"}, "what was not done runs again")
            assert all(len([call for call in other.of(id) if call["method"] == "POST"]) == 2
                       for id in {call["headers"]["Semel-Message-Id"] for call in posts(other)[:down]})


def test_at_unknown_max_nothing_new_is_taken(tmp_path, books, listen):
    # I14, A10
    with Other(lambda call: (500 if call["headers"]["Semel-Message-Id"].endswith("bad") else 200, b"")) as other:
        do = {"http": other.url, "concurrency": 1}
        with Daemon(tmp_path, scenes.outside(books, listen, do, unknown_max=3)) as daemon:
            daemon.ready()
            for i in range(3):
                post(listen, f"m{i}-good", f"m{i}-bad")
            full = "unknown_max is reached: the route takes nothing new until unknown outcomes are resolved"
            daemon.until(lambda: daemon.lines(full), "it is told")
            daemon.until(lambda: daemon.metric("semel_unknown_full", consumer="books") == 1, "and counted")
            assert listen.post({"k": "k1", "n": 1}, id="late")[0] == 503 and not other.of("late")
            assert books.states() == {"completed": 3, "unknown": 3}
            books.store.semel("inbox", "resolve", "m0-bad", "--reason", "it was done")
            daemon.until(lambda: listen.post({"k": "k1", "n": 1}, id="late")[0] in (200, 202), "it goes on")
            daemon.until(lambda: books.states() == {"completed": 5, "unknown": 2}, "and runs")
            daemon.until(lambda: daemon.metric("semel_unknown_full", consumer="books") == 0, "which is counted, too")


def test_an_id_that_would_be_another_path_is_not_asked_for(tmp_path, books, listen):
    # B1, P84: the 404 of another URL would mean "not done"
    def answer(call):
        return (404, b"") if call["method"] == "GET" else (None, b"")
    with Other(answer) as other:
        do = {"http": other.url + "/charges", "reconcile": other.url + "/charges/{id}"}
        with Daemon(tmp_path, scenes.outside(books, listen, do, breaker={"failures": 100})) as daemon:
            daemon.ready()
            post(listen, "..", "a/b", "%2e%2e", ".")
            told = "cannot reconcile; the outcome stays unknown"
            daemon.until(lambda: len(daemon.lines(told)) >= 4, "it is told")
            assert books.states() == {"unknown": 4}
            assert len(posts(other)) == 4 == len(other.calls)


def test_a_server_that_is_down_charges_nobody_and_the_route_waits(tmp_path, books, listen):
    # I6, P63
    port = free_port()
    breaker = {"failures": 3, "first": "100ms", "ceiling": "500ms"}
    settings = scenes.outside(books, listen, {"http": f"http://127.0.0.1:{port}/"}, breaker=breaker)
    with Daemon(tmp_path, settings) as daemon:
        daemon.ready()
        post(listen, "m1", "m2", "m3")
        daemon.until(lambda: daemon.lines("circuit breaker open: the route pauses and probes"), "the breaker opens")
        assert "dead" not in books.states() and "failed" not in books.states()
        with OnPort(port):
            daemon.until(lambda: books.states() == {"completed": 3}, "all are done once it is there")


class OnPort:
    """Answers 204 to everything."""

    def __init__(self, port):
        import http.server

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *args):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __exit__(self, *args):
        self.server.shutdown()
        self.server.server_close()


def test_calls_run_side_by_side_and_no_more_than_allowed(tmp_path, books, listen):
    gate, now, most, lock = threading.Event(), [0], [0], threading.Lock()
    def answer(call):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        gate.wait(30)
        with lock:
            now[0] -= 1
        return 200, b""
    with Other(answer) as other:
        with Daemon(tmp_path, scenes.outside(books, listen, {"http": other.url, "concurrency": 4})) as daemon:
            daemon.ready()
            post(listen, *(f"m{i}" for i in range(4)))
            daemon.until(lambda: most[0] == 4, "four at a time")
            sender = threading.Thread(target=post, args=(listen, "m4", "m5", "m6"))
            sender.start()
            gate.set()
            sender.join()
            daemon.until(lambda: books.states() == {"completed": 7}, "all are done")
    assert most[0] == 4


def test_an_ordered_key_has_one_call_at_a_time_and_in_order(tmp_path, books, listen):
    # I13
    with Other(lambda call: (200, b"")) as other:
        with Daemon(tmp_path, scenes.outside(books, listen, {"http": other.url}, order="json:/k")) as daemon:
            daemon.ready()
            for i in range(12):
                assert listen.post({"k": f"k{i % 2}", "n": i}, id=f"m{i:02}")[0] == 202
            daemon.until(lambda: books.states() == {"completed": 12}, "all are done")
    bodies = [json.loads(call["body"]) for call in other.calls]
    for key in ("k0", "k1"):
        assert [body["n"] for body in bodies if body["k"] == key] == list(range(int(key[1]), 12, 2))


# ---- exec


def script(tmp_path, text):
    file = tmp_path / "handler.sh"
    file.write_text("#!/bin/sh\n" + text)
    file.chmod(0o755)
    return {"exec": [str(file)], "timeout": "2s"}


@pytest.mark.parametrize("text, state", [
    ("cat >/dev/null; exit 0", "completed"),
    ("exit 65", "dead"),
    ("exit 69", "unknown"),
    ("cat >/dev/null; head -c 200000 /dev/urandom; exit 0", "completed"),
    ("exec sleep 600", "unknown"),
    ("exec yes", "unknown"),
    ("kill -9 $$", "unknown"),
])
def test_a_program_ends_as_it_says(tmp_path, books, listen, text, state):
    # I14, E2
    with Daemon(tmp_path, scenes.outside(books, listen, script(tmp_path, text))) as daemon:
        daemon.ready()
        post(listen, "m1")
        daemon.until(lambda: books.states() == {state: 1}, state)


def test_a_program_that_vanishes_stops_its_route_and_loses_nothing(tmp_path, books, listen):
    # P63
    do = script(tmp_path, "exit 0")
    with Daemon(tmp_path, scenes.outside(books, listen, do, breaker={"first": "100ms", "ceiling": "300ms"})) as daemon:
        daemon.ready()
        os.rename(do["exec"][0], tmp_path / "gone")
        post(listen, "m1")
        daemon.until(lambda: daemon.lines("cannot make a call; its message is given back"), "it is told")
        assert not set(books.states()) & {"dead", "failed", "unknown"}
        os.rename(tmp_path / "gone", do["exec"][0])
        daemon.until(lambda: books.states() == {"completed": 1}, "done when it is back")


# ---- strangers


def test_idle_connections_stop_neither_handlers_nor_health(tmp_path, books, listen):
    # B5, P88
    limits = ["sh", "-c", 'ulimit -Sn 150; ulimit -Hn 300; exec "$@"', "sh"]
    with Other(lambda call: (200, b"{}")) as other:
        settings = scenes.outside(books, listen, script(tmp_path, "ulimit -Sn"))
        calls = scenes.outside(books, listen, {"http": other.url})["routes"]["books"]
        settings["routes"]["calls"] = {**calls, "from": listen.settings(path="/calls")}
        with Daemon(tmp_path, settings, before=limits) as daemon:
            daemon.ready()
            assert "300                  300" in pathlib.Path(f"/proc/{daemon.process.pid}/limits").read_text()
            with silent_connections(1100, listen.port, daemon.port):
                assert daemon.get("/healthz")[0] == 200
                for i in range(10):
                    post(listen, f"m{i}")
                    assert listen.post({"k": "k1", "n": 1}, "/calls", id=f"m{i}")[0] == 202
                daemon.until(lambda: books.states() == {"completed": 10}, "the programs run")
                daemon.until(lambda: books.states("calls") == {"completed": 10}, "the calls are made")
                assert daemon.get("/healthz")[0] == 200
                assert daemon.metric("semel_http_connections_dropped_total", how="gave_way") > 1900
                lines = daemon.lines("too many connections: the oldest without a request is closed")
                assert 0 < len(lines) < 200 and lines[0]["peer"].startswith("127.0.0.1:")
            status, answer = listen.post({"k": "k1", "n": 1}, id="m0")
            assert (status, answer["outcome"]) == (200, 150), "a program has the limit that the daemon was given"


def test_requests_without_a_good_token_are_told_and_counted(tmp_path, books, listen):
    # B9
    with Daemon(tmp_path, scenes.settings(books, listen)) as daemon:
        daemon.ready()
        for token in [None, "wrong-token-wrong"] * 50:
            assert listen.post({"k": "k1", "n": 1}, id="m1", token=token)[0] == 401
        assert daemon.metric("semel_http_requests_total", path="/books", code="401") == 100
        lines = daemon.lines("a token is missing or wrong")
        assert 1 <= len(lines) <= 20
        assert lines[0]["peer"].startswith("127.0.0.1:") and lines[0]["path"] == "/books" and lines[0]["status"] == 401
        assert "wrong-token-wrong" not in daemon.log()


NOBODY = 65534


def test_a_program_reads_nothing_of_the_daemon(tmp_path, listen):
    # B7, P89
    folder = pathlib.Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o777)
        subprocess.run([binary(), "migrate", "--store", f"sqlite:{folder}/books.db"], check=True)
        reads = f"cat /proc/$PPID/environ /proc/$PPID/maps >{folder}/read 2>{folder}/why"
        do = script(folder, f"{reads}; id -u >{folder}/id")
        route = {"from": listen.settings(), "do": do}
        shutil.copy(binary(), folder / "semel")  # nobody may not look into the build of somebody else
        as_nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": folder,
                     "executable": folder / "semel"} if os.getuid() == 0 else {}
        daemon = Daemon(folder, {"store": f"sqlite:{folder}/books.db", "routes": {"books": route}}, **as_nobody)
        for file in folder.iterdir():
            file.chmod(0o777)
        with daemon:
            daemon.ready()
            limits = pathlib.Path(f"/proc/{daemon.process.pid}/limits").read_text()
            assert [line.split()[4] for line in limits.splitlines() if line.startswith("Max core file")] == ["0"]
            post(listen, "m1")
            wait_for(lambda: (folder / "id").exists() and (folder / "id").read_text(), "the program has run")
            assert (folder / "id").read_text().strip() == str(NOBODY if as_nobody else os.getuid())
            assert (folder / "read").read_text() == "" and (folder / "why").read_text().count("Permission denied") == 2
    finally:
        shutil.rmtree(folder)


# ---- all at once


def memory(daemon):
    """What the process has of its own, in MB."""
    text = pathlib.Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0]) // 1024


def test_bad_handlers_stay_among_themselves(tmp_path, books, listen):
    # P63, I14
    gate = threading.Event()
    def answer(call):
        if call["path"] == "/never":
            gate.wait(60)
        return (200, b"\0\xff" * 100) if call["path"] == "/garbage" else (200, b"x" * (1 << 28))
    def program(name, text):
        (tmp_path / name).mkdir()
        return {**script(tmp_path / name, text), "timeout": "20s"}
    with Other(answer) as other:
        bad = {"giant": {"http": other.url + "/giant"}, "garbage": {"http": other.url + "/garbage"},
               "never": {"http": other.url + "/never", "timeout": "1s"}, "nobody": {"http": "https://nobody.invalid/"},
               "prints": program("prints", "head -c 1000000000 /dev/zero"),
               "sleeps": {**program("sleeps", "exec sleep 600"), "timeout": "1s"}}
        settings = scenes.settings(books, listen)
        for name, do in bad.items():
            route = scenes.outside(books, listen, do)["routes"]["books"]
            settings["routes"][name] = {**route, "from": listen.settings(path=f"/{name}")}
        # What a sanitizer holds of freed memory is not the daemon's.
        sanitizer = {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=4"}
        with Daemon(tmp_path, settings, env=sanitizer) as daemon:
            daemon.ready()
            before = memory(daemon)
            for i in range(3):
                for name in bad:
                    status = listen.post({"k": "k1", "n": i}, f"/{name}", id=f"m{i}")[0]
                    assert status == 202 or name == "nobody" and status == 503, (name, status)
                assert listen.post({"k": "k1", "n": i}, id=f"m{i}")[0] == 202
            for name, state in {"giant": "completed", "garbage": "completed", "never": "unknown", "prints": "completed",
                                "sleeps": "unknown"}.items():
                daemon.until(lambda name=name, state=state: books.states(name) == {state: 3}, f"{name} is {state}")
            assert not set(books.states("nobody")) & {"dead", "unknown", "completed"}
            assert books.states() == {"completed": 3}
            assert memory(daemon) < before + 64
        gate.set()


# ---- pull


def pull_settings(books, listen, **do):
    port = free_port()
    do = {"pull": f"127.0.0.1:{port}", "path": "/work", "token": "${OTHER_TOKEN}", **do}
    return port, scenes.outside(books, listen, do)


def test_a_worker_in_twenty_lines_of_shell_takes_and_settles(tmp_path, books, listen):
    # E1, E2
    worker = pathlib.Path(os.environ["SEMEL_SOURCE"]) / "examples/pull/worker.sh"
    assert len(worker.read_text().splitlines()) <= 20
    port, settings = pull_settings(books, listen)
    program = tmp_path / "effect.sh"  # later succeeds the second time
    program.write_text(f"""#!/bin/sh
msg=$(cat); echo "$msg" >>{tmp_path}/effects
case $msg in
    *'"id":"killed"'*) kill -9 $$ ;;
    *'"id":"failed"'*) exit 1 ;;
    *'"id":"never"'*) exit 65 ;;
    *'"id":"later"'*) [ "$(grep -c '"id":"later"' {tmp_path}/effects)" = 2 ] || exit 75 ;;
esac
""")
    program.chmod(0o755)
    ids = [*(f"m{i}" for i in range(6)), "killed", "failed", "never", "later"]
    with Daemon(tmp_path, settings) as daemon:
        daemon.ready()
        post(listen, *ids)
        post_again = listen.post({"k": "k1", "n": 1}, id="m3")
        assert post_again[0] == 200
        shell = subprocess.Popen(["sh", worker, f"http://127.0.0.1:{port}/work", program],
                                 env={**os.environ, "SEMEL_TOKEN": OTHER_TOKEN}, start_new_session=True)
        try:
            daemon.until(lambda: books.states() == {"completed": 7, "unknown": 2, "dead": 1}, "all are settled")
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait(60)
    taken = [json.loads(line)[0]["id"] for line in (tmp_path / "effects").read_text().splitlines()]
    assert sorted(taken) == sorted([*ids, "later"])


def test_a_puller_that_dies_leaves_an_unknown_outcome_and_a_late_one_is_refused(tmp_path, books, listen):
    # I7, P39
    port, settings = pull_settings(books, listen)
    pull = Listen()
    pull.port = port
    with Daemon(tmp_path, settings) as daemon:
        daemon.ready()
        post(listen, "m1")
        taken = daemon.until(lambda: pull.post(b"", "/work/take?lease=1s", OTHER_TOKEN)[1], "a message is taken")
        assert pull.post(b"", "/work/take", "a-wrong-token-entirely")[0] == 401
        daemon.until(lambda: books.states() == {"unknown": 1}, "its lease ran out")
        assert pull.post({"token": taken[0]["token"], "result": "done"}, "/work/settle", OTHER_TOKEN)[0] == 409
        assert books.states() == {"unknown": 1}
    assert wait_for(lambda: not daemon.running(), "stopped")


def test_at_unknown_max_nothing_new_is_handed_out(tmp_path, books, listen):
    # I14, A10
    port, settings = pull_settings(books, listen)
    settings["routes"]["books"]["unknown_max"] = 2
    pull = Listen()
    pull.port = port
    def take(**more):
        return pull.post(b"", "/work/take?max=1" + "".join(f"&{k}={v}" for k, v in more.items()), OTHER_TOKEN)
    def settle(taken, result):
        return pull.post({"token": taken[0]["token"], "result": result}, "/work/settle", OTHER_TOKEN)
    with Daemon(tmp_path, settings) as daemon:
        daemon.ready()
        listen.post({"k": "k1", "n": 1}, id="m1")
        for i in range(2, 6):
            listen.post({"k": f"k{i}", "n": 1}, id=f"m{i}")
        first, second, third = (daemon.until(lambda: take()[1], "one is taken") for _ in range(3))
        assert settle(first, "unknown")[0] == 200
        last = take()
        assert last[0] == 200 and last[1]  # one is unknown: below the bound
        assert settle(second, "unknown")[0] == 200
        status, told = take()[:2]
        assert status == 503 and "unknown_max is reached" in json.dumps(told)  # at once: the next one would be too many
        assert take(wait="1s")[0] == 503
        daemon.until(lambda: daemon.metric("semel_unknown_full", consumer="books") == 1, "it is counted")
        renewed = pull.post({"token": third[0]["token"]}, "/work/renew", OTHER_TOKEN)
        assert renewed[0] == 200 and settle(third, "done")[0] == 200 and settle(last[1], "done")[0] == 200
        assert books.states() == {"unknown": 2, "completed": 2, "waiting": 1}
        books.store.semel("inbox", "resolve", first[0]["id"], "--reason", "it was done")
        def goes_on():
            status, told = take()[:2]
            return status == 200 and [one["id"] for one in told]
        assert daemon.until(goes_on, "it goes on") == ["m5"]
        daemon.until(lambda: daemon.metric("semel_unknown_full", consumer="books") == 0, "which is counted, too")
