# SPDX-License-Identifier: MIT
"""The README's tour, as a reader pastes it: every command of its console blocks is run, in order, in one folder, and
must print what is shown. Numbers and times are compared by their form, not by their value."""
import os
import pathlib
import re
import subprocess

SOURCE = pathlib.Path(os.environ["SEMEL_SOURCE"])
BUILD = pathlib.Path(os.environ["SEMEL_BUILD"])


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
    """Times and the width of columns may differ from one run to another."""
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME", text)
    return [re.sub(r"\s+", " ", line).strip() for line in text.strip().splitlines()]


def test_the_tour_prints_what_the_readme_shows(tmp_path):
    tour = list(steps((SOURCE / "README.md").read_text(encoding="utf-8")))
    assert len(tour) >= 10
    env = dict(os.environ, SEMEL_STORE="sqlite:shop.db", PATH=f"{BUILD}/src/cli:/usr/bin:/bin",
               SEMEL_EXT=f"{BUILD}/src/ext/semel")
    for command, shown in tour:
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=env, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=120, check=False)
        assert form(done.stdout) == form(shown), command


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
