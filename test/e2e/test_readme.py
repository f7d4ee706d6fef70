# SPDX-License-Identifier: MIT
"""The README's tour, as a reader pastes it: every command of its console blocks is run, in order, in one shell, on a
server that tools/postgres starts, and must print what is shown. Ids and times are compared by their form."""
import contextlib
import os
import pathlib
import re
import signal
import subprocess
import threading

import pytest

from pg import free_port, programs

SOURCE = pathlib.Path(os.environ["SEMEL_SOURCE"])
BUILD = pathlib.Path(os.environ["SEMEL_BUILD"])
COMMAND_S = 300
PORTS = {"8000": free_port(), "8090": free_port()}


def steps(text):
    """(command, what it prints) for each command of the console blocks."""
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        lines = block.splitlines()
        at = 0
        while at < len(lines):
            assert lines[at].startswith("$ "), f"not a command: {lines[at]}"
            command = [lines[at][2:]]
            at += 1
            here = re.search(r"<<'(\w+)'", command[0])
            while at < len(lines) and (here is not None or lines[at].startswith("> ")):
                command.append(lines[at] if here is not None else lines[at][2:])
                at += 1
                if here is not None and command[-1] == here[1]:
                    break
            output = []
            while at < len(lines) and not lines[at].startswith("$ "):
                output.append(lines[at])
                at += 1
            yield "\n".join(command), "\n".join(output)


def form(text):
    """Times, ids of events, the schema's number and the width of columns may differ from one run to another."""
    text = re.sub(r"^schema 0 -> \d+", "schema 0 -> N", text, flags=re.MULTILINE)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME", text)
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", "ID", text)
    return [re.sub(r"\s+", " ", line).strip() for line in text.strip().splitlines()]


class Shell:
    """The reader's: one bash for the whole tour. A line that nobody else prints ends what a command prints."""

    def __init__(self, folder, env):
        self.bash = subprocess.Popen(["bash"], cwd=folder, env=env, text=True, stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)

    def __call__(self, command):
        self.bash.stdin.write(f"{command}\necho; echo =end=\n")
        self.bash.stdin.flush()
        late = threading.Timer(COMMAND_S, os.killpg, [self.bash.pid, signal.SIGKILL])
        late.start()
        said = ""
        while not said.endswith("=end=\n"):
            line = self.bash.stdout.readline()
            assert line, f"{command} did not end in {COMMAND_S} s; it said {said}"
            said += line
        late.cancel()
        return said.removesuffix("=end=\n")

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.bash.pid, signal.SIGTERM)
        self.bash.communicate()


def ports(text):
    """Those of the page may be taken here."""
    for port in ("8000", "8090"):
        text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{PORTS[port]}").replace(f"--port {port}",
                                                                                 f"--port {PORTS[port]}")
    return text


def test_the_tour_prints_what_the_readme_shows(tmp_path):
    for module in ("fastapi", "uvicorn", "psycopg_pool"):
        pytest.importorskip(module, reason=f"Python has no {module} here: make tour")
    if programs() is None:
        pytest.skip("there is no PostgreSQL server here: make tour")
    text = (SOURCE / "README.md").read_text(encoding="utf-8")
    tour = list(steps(text))
    assert len(tour) >= 10
    picture = re.search(r"`semel inbox show` .*?```\n(.*?)```", text, re.DOTALL)[1].splitlines()
    shop = tmp_path / "shop"
    shop.mkdir()
    for file in (SOURCE / "examples/shop").iterdir():
        (shop / file.name).write_text(ports(file.read_text()))
    env = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "SEMEL_STORE")}
    (tmp_path / "cwd").mkdir()
    shell = Shell(tmp_path / "cwd", {**env, "PATH": f"{BUILD}/src/cli:/usr/bin:/bin", "SHOP": str(shop),
                                     "PYTHONPATH": str(SOURCE / "clients/python")})
    try:
        assert shell(f'eval "$({SOURCE}/tools/postgres $$)"').strip() == ""
        for command, shown in tour:
            assert form(shell(ports(command))) == form(shown), command
            if command.startswith("semel inbox show"):
                full = shell('semel inbox show "$id"').splitlines()
                assert [line[:14] for line in full[:len(picture)]] == [line[:14] for line in picture]
    finally:
        shell.close()


def test_the_first_page_shows_the_files_of_the_shop():
    text = (SOURCE / "README.md").read_text(encoding="utf-8")
    for name in ("api.py", "semel.yaml"):
        lines = (SOURCE / "examples/shop" / name).read_text(encoding="utf-8").split("\n", 1)
        assert lines[0].startswith("# SPDX") and lines[1] in text, name


def test_the_storm_balances_with_semel_and_not_without(tmp_path):
    for more, lines in (([], 1), (["--without"], 0)):
        done = subprocess.run([os.environ["SEMEL_BIN"], "demo", "--seconds", "5", "--seed", "7", *more], cwd=tmp_path,
                              capture_output=True, text=True, timeout=120, check=True)
        assert done.stdout.splitlines().count("lost 0, doubled 0") == lines, done.stdout
        shown = (SOURCE / "README.md").read_text(encoding="utf-8").replace("\n", " ")
        for sentence in re.findall(r"^(?:Doubled|Lost|Each payment).*", done.stdout, re.MULTILINE):
            assert sentence in shown, sentence


def test_commands_of_the_documents_exist():
    """Every `semel VERB` in the documents is one that the program knows."""
    known = subprocess.run([os.environ["SEMEL_BIN"], "--help"], capture_output=True, text=True, check=True).stdout
    verbs = set(re.findall(r"^  ([a-z]+)  ", known, re.MULTILINE))
    pages = [SOURCE / "README.md", *sorted((SOURCE / "docs").glob("*.md"))]
    later = {"check", "run", "relay", "gateway", "init", "verify", "rebuild", "rewind", "outbox", "keys"}
    for page in pages:
        for block in re.findall(r"^```(?:sh|console)\n(.*?)^```$", page.read_text(encoding="utf-8"),
                                re.MULTILINE | re.DOTALL):
            for verb in re.findall(r"^\$? ?semel ([a-z]+)", block, re.MULTILINE):
                assert verb in verbs, f"{page.name}: semel {verb}" + (" is of a later version" if verb in later else "")
