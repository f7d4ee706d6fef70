# SPDX-License-Identifier: MIT
"""The unit for systemd, as systemd itself reads it. No manager runs here: nothing is started."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from conftest import binary, run

UNIT = pathlib.Path(os.environ["SEMEL_BUILD"]) / "systemd" / "semel@.service"


def analyze(*args):
    """systemd-analyze, without a word to whatever manager there may be."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed (apt-get install systemd)")
    return subprocess.run([program, *map(str, args)], capture_output=True, text=True, timeout=60, check=False)


def installed(folder, change=lambda text: text):
    """The unit in a folder, with this build's program in place of the one that would be installed."""
    text = re.sub(r"^(ExecStart=)\S+", rf"\1{binary()}", UNIT.read_text(), flags=re.MULTILINE)
    (folder / "semel@.service").write_text(change(text))
    return folder / "semel@billing.service"


def setting(name):
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def test_systemd_understands_the_unit(tmp_path):
    done = analyze("verify", "--man=no", installed(tmp_path))
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_a_mistake_in_the_unit_would_be_found(tmp_path):
    done = analyze("verify", "--man=no", installed(tmp_path, lambda text: text.replace("WatchdogSec=", "WatchdogSek=")))
    assert "WatchdogSek" in done.stderr


def test_the_unit_is_hardened(tmp_path):
    installed(tmp_path)
    done = analyze("security", "--offline=yes", "--no-pager", "--threshold=20", tmp_path / "semel@.service")
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot judge a unit that is not installed")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_unit_runs_a_command_that_there_is():
    (command,) = setting("ExecStart")
    program, word, file = command.split()
    assert program.endswith("/bin/semel") and word == "run" and file == "/etc/semel/%i.yaml"
    if not re.search(r"^  run ", run("--help").out, re.MULTILINE):
        pytest.skip("semel run is not in this build")
    done = run(word, "--help")
    assert done.code == 0, done


def test_systemd_waits_longer_for_a_stop_than_a_stop_takes():
    """stop_within is 30s unless it is said."""
    (stop_s,) = setting("TimeoutStopSec")
    page = (pathlib.Path(os.environ["SEMEL_SOURCE"]) / "docs" / "settings.md").read_text()
    (within_s,) = re.findall(r"^\| `stop_within` \|.*\| `(\d+)s` \|", page, re.MULTILINE)
    assert int(stop_s) > int(within_s)


def test_secrets_come_as_credentials(tmp_path):
    names = [value.split(":")[0] for value in setting("LoadCredential")]
    assert names == ["store", "source", "token"]
    (tmp_path / "store").write_text("sqlite:shop.db\n")
    (tmp_path / "token").write_text("sixteen-bytes-and-more\n")
    settings = tmp_path / "billing.yaml"
    settings.write_text("""\
store_file: ${CREDENTIALS_DIRECTORY}/store
admin: {listen: "127.0.0.1:9464", token_file: "${CREDENTIALS_DIRECTORY}/token"}
routes:
  billing:
    from: {listen: "127.0.0.1:8080", path: /billing, token_file: "${CREDENTIALS_DIRECTORY}/token"}
    do: {sql: "SELECT 1"}
    timed_ids: true
""")
    done = run("check", settings, env={"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert done.code == 0, done
