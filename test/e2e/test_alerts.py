# SPDX-License-Identifier: MIT
"""The alerting rules and their runbooks: each has the other, and both speak of things that exist.

test/unit/test_alert_rules.c compares the metrics of the rules with those that there are.
"""
import functools
import re
import shlex
import subprocess

import pytest

import alerts
from conftest import run

PAGES = alerts.SOURCE / "docs" / "runbooks"
HEADINGS = ["At stake", "Look", "Do", "Do not", "Over when"]


def rules():
    """{alert: the text of its rule}"""
    pieces = re.split(r"^ *- alert: (\w+)$", alerts.RULES.read_text(), flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2]))


def promtool(*args):
    return subprocess.run([alerts.program("promtool"), *map(str, args)], capture_output=True, text=True, timeout=120,
                          check=False)


def test_prometheus_accepts_the_rules():  # M
    done = promtool("check", "rules", "--lint-fatal", alerts.RULES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules())} rules found" in done.stdout + done.stderr


def test_every_rule_fires_when_it_should_and_not_otherwise():  # M
    cases = alerts.SOURCE / "test" / "e2e" / "alert_cases.yml"
    done = promtool("test", "rules", cases)
    assert done.returncode == 0, done.stdout + done.stderr
    tested = set(re.findall(r'alertname="(\w+)"', cases.read_text()))
    assert tested == set(rules())


def test_every_alert_has_its_page_and_every_page_its_alert():  # M
    assert sorted(rules()) == sorted(page.stem for page in PAGES.iterdir())
    assert len(rules()) == len(alerts.names())


@pytest.mark.parametrize("name", sorted(rules()))
def test_an_alert_says_how_grave_it_is_and_where_to_read_on(name):
    text = rules()[name]
    assert re.search(r"^ *severity: (critical|warning)$", text, re.MULTILINE)
    assert re.search(r"^ *summary: \S", text, re.MULTILINE)
    assert re.search(r"^ *description: \S", text, re.MULTILINE)
    assert re.search(rf"^ *runbook: docs/runbooks/{name}\.md$", text, re.MULTILINE)


@pytest.mark.parametrize("name", sorted(rules()))
def test_a_page_has_the_parts_that_a_person_looks_for(name):
    text = (PAGES / f"{name}.md").read_text()
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == HEADINGS
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (PAGES / target).is_file(), target


def commands():
    """(page, command) of everything on the pages that begins with semel."""
    for page in sorted(PAGES.iterdir()):
        text = page.read_text()
        for line in re.findall(r"^(semel .*)$", text, re.MULTILINE) + re.findall(r"`(semel [^`]+)`", text):
            yield page.stem, line


@functools.lru_cache(maxsize=None)
def help_of(*parts):
    done = run(*parts, "--help")
    assert done.code == 0, done
    return done.out


@pytest.mark.parametrize("page,command", sorted(set(commands())))
def test_a_command_of_a_page_exists_with_its_options(page, command):
    words = shlex.split(command)[1:]
    options = [word for word in words if word.startswith("--")]
    parts = words[:2] if words[0] in ("inbox", "consumer", "keys", "outbox") else words[:1]
    for option in options:
        assert re.search(rf"(^|[ ,]){option}\b", help_of(*parts), re.MULTILINE), f"{page}: {command}: no {option}"
    assert help_of(*parts)


def test_short_durations_keep_the_rules_valid(tmp_path):
    impatient = alerts.impatient(alerts.RULES.read_text(), "7s", {"> 900": "> 1"})
    assert "[1h]" not in impatient and "[1d]" not in impatient and "offset 15m" not in impatient
    assert not re.search(r"for: (?!0s$)", impatient, re.MULTILINE)
    (tmp_path / "rules.yml").write_text(impatient)
    done = promtool("check", "rules", tmp_path / "rules.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    with pytest.raises(AssertionError, match="no '> 12345'"):
        alerts.impatient(alerts.RULES.read_text(), instead={"> 12345": "> 1"})
