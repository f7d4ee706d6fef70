# SPDX-License-Identifier: MIT
"""The inbox and the outbox of clients/python."""
import shutil
import subprocess

import pytest

pytest.register_assert_rewrite("inbox_cases")
from inbox_cases import *  # noqa: E402,F401,F403
from inbox_cases import SOURCE  # noqa: E402

DRIVERS = ["psycopg", "async"]


def test_types_are_right():
    """As mypy sees the package, with the settings of its pyproject.toml."""
    if shutil.which("mypy") is None:
        pytest.skip("there is no mypy here: apt-get install mypy")
    pytest.importorskip("psycopg", reason="Python has no psycopg here: tools/setup languages")
    done = subprocess.run(["mypy", "--no-incremental", "--cache-dir=/dev/null", "semel"], capture_output=True,
                          text=True, check=False, cwd=SOURCE / "clients/python")
    assert done.returncode == 0, done.stdout
