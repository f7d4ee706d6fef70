# SPDX-License-Identifier: MIT
"""The frame of the program: its words, options, help, exit codes, output and completion."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import pytest

from conftest import binary, run, run_on_terminal

SOURCE = pathlib.Path(os.environ["SEMEL_SOURCE"])
TABLES = run("help", "--json").json
LEAVES = [command for command in TABLES["commands"] if not command["group"]]


def words(command):
    return command["name"].split()


def options(command):
    return {option["name"] for option in command["options"]}


def built():
    """The program, the library and the extension, as far as this build has them."""
    library = pathlib.Path(os.environ["SEMEL_BUILD"]) / "src/lib/libsemel.so"
    return [binary(), *filter(os.path.exists, [library, os.environ.get("SEMEL_EXT", "")])]


@pytest.mark.parametrize("file", built(), ids=os.path.basename)
def test_no_address_is_written_to_later(file):
    # B9: full RELRO, and at a place of its own each time
    elf = subprocess.run(["readelf", "-hdlW", file], capture_output=True, text=True, check=True).stdout
    assert "GNU_RELRO" in elf and re.search(r"BIND_NOW|FLAGS.*\bNOW\b", elf) and "DYN (" in elf


# ---- help ----


def test_help_lists_every_command_and_every_command_explains_itself():
    for command in TABLES["commands"]:
        if " " not in command["name"]:
            assert re.search(rf"^  {command['name']} ", run("--help").out, re.MULTILINE)
        asked = run(*words(command), "--help")
        assert asked.code == 0 and asked.err == ""
        assert asked.out.startswith(f"semel {command['name']}: ")
        assert f"usage: semel {command['name']}" in asked.out
        assert run("help", *words(command)).out == asked.out
        for name in options(command):
            assert f"--{name}" in asked.out
    assert run("-h").out == run("--help").out == run("help").out


@pytest.mark.parametrize("command", LEAVES, ids=lambda command: command["name"])
def test_a_command_has_a_summary_and_an_example(command):
    text = run(*words(command), "--help").out
    assert command["summary"] and not command["summary"].endswith(".")
    if command["name"] not in ("demo", "version"):  # these need nothing: their usage is the example
        assert "semel " + command["name"] in text.split("Options")[1], text
    assert max(map(len, text.split("\n"))) <= 120


def test_help_says_what_each_exit_code_means():
    shown = run("help", "exit-codes")
    assert shown.code == 0
    codes = [int(line.split()[0]) for line in shown.out.splitlines()]
    assert codes == [row["code"] for row in TABLES["exit_codes"]] == [0, 1, 2, 3, 4, 5, 6, 130]


def test_the_documentation_and_the_manual_say_what_the_program_says():
    done = subprocess.run([SOURCE / "tools" / "cli_docs.py", binary(), "--check"], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # Neither may speak of a command or an option that does not exist, in its prose or elsewhere.
    known = {option for command in TABLES["commands"] for option in options(command)} | {"version", "help", "json"}
    verbs = {words(command)[0] for command in TABLES["commands"]}
    for name in ("docs/cli.md", "man/semel.1.scd"):
        text = (SOURCE / name).read_text(encoding="utf-8")
        for command in TABLES["commands"]:
            assert f"## semel {command['name']}\n" in text
        for option in re.findall(r"(?<![\w-])--([a-z][a-z-]*)", text):
            assert option in known or option in ("x", "name"), (name, option)
        for verb in re.findall(r"[`*]semel ([a-z]+)", text):
            assert verb in verbs, (name, verb)


def test_the_manual_can_be_made():
    if shutil.which("scdoc") is None:
        pytest.skip("scdoc is not installed")
    page = (SOURCE / "man" / "semel.1.scd").read_bytes()
    done = subprocess.run(["scdoc"], input=page, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"semel inbox ls" in done.stdout


def test_the_version_is_told_in_both_ways():
    told = run("version")
    assert told.code == 0 and run("--version").out == told.out
    assert re.match(r"semel \d+\.\d+\.\d+\ncompiler (gcc|clang) .*\nSQLite \d+\.\d+\.\d+", told.out)
    assert set(run("version", "--json").json) == {"version", "compiler", "sqlite", "postgres"}


# ---- what was mistyped ----


@pytest.mark.parametrize("args, said", [
    (["statsu"], "semel: there is no command 'statsu'; did you mean 'status'?"),
    (["inbox", "lss"], "semel: there is no command 'inbox lss'; did you mean 'inbox ls'?"),
    (["inbox", "list"], "there is no command 'inbox list'; did you mean 'inbox ls'?"),
    (["inbox", "redrive"], "there is no command 'inbox redrive'; did you mean 'inbox retry'?"),
    (["outbox", "delete"], "there is no command 'outbox delete'; did you mean 'outbox discard'?"),
    (["retry"], "semel: there is no command 'retry'; did you mean 'inbox retry'?"),
    (["list"], "there is no command 'list'; did you mean 'inbox ls'?"),
    (["reconcile"], "there is no command 'reconcile'; did you mean 'inbox reconcile'?"),
    (["frobnicate"], "semel: there is no command 'frobnicate'; semel --help lists them"),
    (["consumer", "frobnicate"], "there is no command 'consumer frobnicate'; semel consumer --help lists them"),
    (["help", "sned"], "did you mean 'send'?"),
    (["quit"], "there is no command 'quit'; semel --help lists them"),
    (["dead"], "there is no command 'dead'; semel --help lists them"),
    (["help", "send", "off"], "semel send has no commands of its own"),
    (["status", "--jsom"], "semel: semel status has no option '--jsom'; did you mean '--json'?"),
    (["status", "--frobnicate=1"], "semel status has no option '--frobnicate'; semel status --help lists them"),
    (["--jsn"], "semel has no option '--jsn'"),
    (["status", "-x"], "semel status has no option '-x'"),
    (["status", "--json=yes"], "--json takes no value"),
    (["status", "--store"], "--store needs a value: --store URL"),
    (["status", "--consumer", "--json"], "'--json' looks like an option; if it is meant: --consumer=--json"),
    (["status", "--json", "--json"], "--json is given twice"),
    (["status", "--store=sqlite:a", "--store", "sqlite:b"], "--store is given twice"),
    (["status", "-ca", "--consumer=b"], "--consumer is given twice"),
    (["status", "now"], "semel status: 'now' is an unexpected argument"),
    (["status", "--", "--json"], "'--json' is an unexpected argument"),
    (["consumer", "show"], "semel consumer show needs more: semel consumer show CONSUMER"),
    (["consumer"], "semel consumer needs a command"),
    (["completion", "tcsh"], "it must be bash, zsh or fish"),
    (["--", "status"], "the command comes first, its options behind it: semel status ..."),
    (["--version", "status"], "the command comes first, its options behind it: semel status ..."),
    (["--store", "sqlite:x", "status"], "no option '--store'; the command comes first, its options behind it"),
    (["inbox", "--json", "ls"], "no option '--json'; the command comes first, its options behind it"),
])
def test_what_was_mistyped_is_refused_with_what_would_be_right(args, said):
    result = run(*args)
    assert result.code == 2 and result.out == "", result
    assert said in result.err and result.err.count("\n") == 1, result


def test_without_a_word_it_prints_its_help():
    alone, asked = run(), run("--help")
    assert (alone.code, alone.err, alone.out) == (0, "", asked.out) and "semel inbox" not in alone.err
    assert "inbox" in alone.out and "send" in alone.out


def test_options_may_be_written_in_each_usual_way(store):
    store.semel("send", "-c", "billing", "--id", "m1", "x")
    for args in (["--consumer", "billing"], ["--consumer=billing"], ["-c", "billing"], ["-cbilling"]):
        assert store.semel("status", *args, "--json").json["consumers"][0]["consumer"] == "billing"
    assert run("--", "status", f"--store={store.url}").code == 2  # the command comes first
    assert run("consumer", "show", f"--store={store.url}", "--", "billing").code == 0
    assert run("consumer", "show", "--json", "billing", f"--store={store.url}").code == 0
    assert run("consumer", "show", "--store", store.url, "--", "-x").code == 3


# ---- output ----


def test_json_is_one_document_on_stdout_and_errors_stay_text(store):
    for args in (["status"], ["consumer", "ls"], ["migrate"], ["version"], ["help"]):
        more = [] if args[0] in ("version", "help") else ["--store", store.url]
        result = run(*args, "--json", *more)
        assert result.code == 0 and result.err == "" and result.json is not None
    result = run("status", "--json", "--store", "sqlite:/nonexistent/a.db")
    assert result.code == 5 and result.out == "" and result.err.startswith("semel: ")


def test_a_full_disk_is_reported():
    with open("/dev/full", "w", encoding="utf-8") as full:
        for args in (["version"], ["help", "--json"], ["completion", "bash"]):
            done = subprocess.run([binary(), *args], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
            assert done.returncode == 1
            assert done.stderr == "semel: writing to stdout: No space left on device\n"


def test_a_closed_stdout_is_reported_and_never_becomes_the_database(store):
    script = '"$0" status --store "$1" >&-'
    done = subprocess.run(["sh", "-c", script, binary(), store.url], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "writing to stdout" in done.stderr
    assert store.sql("PRAGMA integrity_check") == [("ok",)]
    done = subprocess.run(["sh", "-c", '"$0" send --store "$1" -c b --id m - <&-', binary(), store.url],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "reading stdin" in done.stderr


def test_a_reader_that_goes_away_ends_the_output_quietly():
    for args in (["help", "--json"], ["version"], ["completion", "fish"]):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run([binary(), *args], stdout=writer, stderr=subprocess.PIPE, check=False)
        os.close(writer)
        assert done.returncode == 0 and done.stderr == b""


# ---- hostile contents ----

HOSTILE = "a\x1b[31m\x1b]0;owned\x07\r\x08\x7f\u0085\u009b2J\u202egnp.\u2066\u200b\ufeffz"


def obeyed(text):
    """What a terminal might obey, or a reader be deceived by."""
    found = re.findall(r"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]", text)
    return found + re.findall(r"\r(?!\n)", text)


def uncoloured(text):
    """Without the colours of a table. What else HOSTILE brings along is found all the same."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def commands_that_show(store):
    yield "status"
    yield "status", "--json"
    yield "consumer", "ls"
    yield "consumer", "ls", "--json"
    yield "consumer", "show", HOSTILE
    yield "consumer", "show", HOSTILE, "--json"
    yield "consumer", "set", HOSTILE, '{"effect": "' + HOSTILE + '"}'
    yield "consumer", "set", HOSTILE, "{}"
    yield "inbox", "ls"
    yield "inbox", "ls", "--json"
    yield "inbox", "show", HOSTILE
    yield "inbox", "show", HOSTILE, "--json"
    yield "send", "--consumer", HOSTILE, "--id", HOSTILE, "other"
    yield "send", "--consumer", HOSTILE, "--id", HOSTILE, HOSTILE, "--json"
    yield "send", "--consumer", "c", "--id", "m", "--header", HOSTILE, "x"
    yield "status", "--consumer", HOSTILE + "?"
    yield HOSTILE,
    yield "status", "--" + HOSTILE


def test_nothing_that_a_message_says_is_obeyed_by_a_terminal(store):
    sent = store.semel("send", "--consumer", HOSTILE, "--id", HOSTILE, "--type", HOSTILE, "--source", HOSTILE,
                       "--order-key", HOSTILE, "--header", "h=" + HOSTILE, HOSTILE)
    assert sent.code == 0, sent
    store.sql("UPDATE semel_inbox SET error_class = 'transient', error_text = ?", HOSTILE)
    for args in commands_that_show(store):
        code, seen = run_on_terminal(*args, "--store", store.url)
        text = seen.decode("utf-8")
        assert code in (0, 2, 3, 4), (args, text)
        assert text and obeyed(uncoloured(text)) == [], (args, text)
        _, plain = run_on_terminal(*args, "--store", store.url, env={"NO_COLOR": "1"})
        assert obeyed(plain.decode("utf-8")) == [], (args, plain)
        piped = run(*args, "--store", store.url)
        assert obeyed(piped.out + piped.err) == [], (args, piped)
    # JSON says the same text all the same.
    assert store.semel("status", "--json").json["consumers"][0]["consumer"] == HOSTILE


def test_a_table_is_cut_to_the_width_of_a_terminal_only(store):
    name = "consumer-" + "x" * 150
    store.semel("consumer", "set", name, '{"retry_max": 3}')
    _, seen = run_on_terminal("consumer", "ls", "--store", store.url, columns=60)
    assert b"\x1b[1mGUARANTEE\x1b[0m" in seen
    lines = uncoloured(seen.decode()).split("\r\n")
    assert "GUARANTEE" in lines[0] and max(map(len, lines)) <= 60
    _, seen = run_on_terminal("consumer", "ls", "--store", store.url, columns=60, env={"NO_COLOR": "1"})
    assert seen.decode().split("\r\n") == lines
    assert name in store.semel("consumer", "ls").out
    assert name in store.semel("consumer", "ls", "--json").out


def test_a_status_has_its_colour_on_a_terminal_only(store):
    store.semel("send", "--consumer", "billing", "--id", "pay-1", "x")
    store.sql("UPDATE semel_inbox SET status = 'dead', due_at = NULL")
    for args in (["status"], ["inbox", "ls"]):
        assert b"\x1b[31mdead\x1b[0m" in run_on_terminal(*args, "--store", store.url)[1]
        for plain in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            assert b"\x1b" not in run_on_terminal(*args, "--store", store.url, env=plain)[1]
        assert b"\x1b[31m" in run_on_terminal(*args, "--store", store.url, env={"NO_COLOR": ""})[1]
        assert "\x1b" not in store.semel(*args).out


def test_a_cut_between_wide_letters_keeps_the_columns_straight(store):
    for name in ("orders-" + "\u8a9e" * 40, "x" * 87):
        store.semel("consumer", "set", name, "{}")
    for columns in (60, 61):  # one of them ends in the middle of a letter
        _, seen = run_on_terminal("consumer", "ls", "--store", store.url, columns=columns, env={"NO_COLOR": "1"})
        head, wide, narrow = seen.decode().split("\r\n")[:3]
        places = [len(line[:line.index("ATOMIC")]) + line.count("\u8a9e") for line in (wide, narrow)]
        assert places == [head.index("GUARANTEE")] * 2 and "\u2026" in wide and "\u2026" in narrow, seen


def test_letters_beyond_ascii_keep_the_columns_straight(store):
    store.semel("consumer", "set", "bücher", "{}")
    store.semel("consumer", "set", "books", "{}")
    lines = run("consumer", "ls", "--store", store.url, env={"LC_ALL": "C"}).out.splitlines()
    assert "bücher" in lines[2]
    assert lines[0].index("GUARANTEE") == lines[1].index("ATOMIC") == lines[2].index("ATOMIC")


# ---- completion ----


OFFER = {
    "bash": ["bash", "-c", """. "$1"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _semel; printf '%s\\n' "${COMPREPLY[@]}" """],
    "zsh": ["zsh", "-f", "-c", """compdef() { }; compadd() { shift; print -rl -- $IPREFIX$^@ }
        compset() { IPREFIX=${(M)words[CURRENT]##${~2}} }; _describe() { print -rl -- ${${(P)2}%%:*} }; . "$1"; shift
        words=("$@"); CURRENT=$#; _semel"""],
    "fish": ["fish", "--no-config", "-c", """source "$argv[1]"
        complete -C(string join -- ' ' $argv[2..-1]) | string replace -r '\\t.*' ''"""],
}


def completed(line, shell="bash"):
    """What the shell offers behind the line."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as script:
        script.write(run("completion", shell).out)
        script.flush()
        done = subprocess.run([*OFFER[shell], *(["bash"] if shell != "fish" else []), script.name, *line],
                              capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == "", done
    return set(done.stdout.split("\n")) - {""}


def test_bash_offers_commands_and_their_options():
    assert completed(["semel", "st"]) == {"status"}
    assert {"demo", "migrate", "--help", "--version"} <= completed(["semel", ""])
    assert {"ls", "show", "retry", "discard", "resolve"} <= completed(["semel", "inbox", ""])
    for command in LEAVES:
        offered = completed(["semel", *words(command), "--"])
        assert offered == {"--" + name for name in options(command)}, command["name"]
    assert completed(["semel", "status", "--store", "sqlite:a.db", "--js"]) == {"--json"}


@pytest.mark.parametrize("shell", OFFER)
def test_a_shell_offers_the_statuses_of_what_is_listed(shell):
    assert "dead" in completed(["semel", "inbox", "ls", "--status", "d"], shell)
    assert {"failed", "quarantined", "unknown"} < completed(["semel", "inbox", "retry", "-s", ""], shell)
    assert {"created", "dead"} < completed(["semel", "outbox", "ls", "--status", ""], shell)
    assert completed(["semel", "keys", "ls", "--status", ""], shell) == {"processing", "unknown", "completed"}


@pytest.mark.parametrize("shell", OFFER)
def test_a_shell_offers_another_status_behind_a_comma(shell):
    assert "dead,failed" in completed(["semel", "inbox", "ls", "--status", "dead,f"], shell)
    assert {"dead,failed,unknown", "dead,failed,waiting"} < completed(["semel", "inbox", "ls", "-s", "dead,failed,"],
                                                                      shell)
    assert "created,dead" in completed(["semel", "outbox", "retry", "--status", "created,"], shell)


@pytest.mark.parametrize("shell", OFFER)
def test_a_shell_offers_what_an_option_takes_and_the_shells(shell):
    sources = {"kafka", "amqp", "rabbitmq", "sqs", "listen", "inbox"}
    assert completed(["semel", "init", "--from", ""], shell) == sources
    assert completed(["semel", "init", "--do", ""], shell) == {"sql", "http", "exec", "pull"}
    assert completed(["semel", "migrate", "--store-kind", ""], shell) == {"sqlite", "postgres"}
    assert {"bash", "zsh", "fish"} <= completed(["semel", "completion", ""], shell)
    for source in sources:
        assert run("init", "--from", source).code == 0
    for handler in ("sql", "http", "exec", "pull"):
        assert run("init", "--do", handler).code == 0


@pytest.mark.parametrize("shell", OFFER)
def test_a_shell_offers_consumers_and_never_runs_what_is_in_a_name(shell, store, tmp_path, monkeypatch):
    trap = tmp_path / "ran"
    for name in ("billing", "books", f"$(touch {trap})", f"`touch {trap}`"):
        store.sql("INSERT INTO semel_consumer (consumer, settings, updated_at) VALUES (?, '{}', 1)", name)
    monkeypatch.setenv("SEMEL_STORE", store.url)
    monkeypatch.setenv("PATH", f"{os.path.dirname(binary())}:{os.environ['PATH']}")
    assert {"billing", "books"} <= completed(["semel", "inbox", "ls", "--consumer", "b"], shell)
    assert {"billing", "books"} < completed(["semel", "inbox", "ls", "--consumer", ""], shell)
    assert not trap.exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_is_one_that_the_shell_accepts(shell, tmp_path):
    script = run("completion", shell)
    assert script.code == 0
    for command in TABLES["commands"]:
        assert f"'{command['name']}'" in script.out
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / "script"
    path.write_text(script.out, encoding="utf-8")
    done = subprocess.run([shell, "-n", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == ""
