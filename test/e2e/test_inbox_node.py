# SPDX-License-Identifier: MIT
"""The inbox and the outbox of clients/node."""
import pathlib
import shutil
import subprocess

import pytest

pytest.register_assert_rewrite("inbox_cases")
from inbox_cases import *  # noqa: E402,F401,F403
from inbox_cases import APPS, NODE_PATHS, node_command  # noqa: E402

DRIVERS = ["pg"]


# What Promise.all leaves running when one of its queries fails
def test_query_behind_the_end_of_its_handler_is_refused(desk):
    for asked in [{"raise": "Permanent"}, {"sql": "SELECT 1/0"}, {}]:
        desk.deliver((f"m{len(desk.rows())}", asked), straggle=True)
    assert desk.books() == [("m2", "1")] and [row[1] for row in desk.rows()] == ["dead", "dead", "completed"]


def test_types_are_right(tmp_path):
    """As the TypeScript compiler sees a program on the package."""
    command, _ = node_command(APPS / "typed.ts", tmp_path, "typescript", "@types/pg")
    modules = next(pathlib.Path(path) for path in NODE_PATHS if (pathlib.Path(path) / "typescript").is_dir())
    (tmp_path / "node_modules/@types").symlink_to(modules / "@types")
    shutil.copy(command[1], tmp_path)
    done = subprocess.run(["node", modules / "typescript/bin/tsc", "--noEmit", "--strict", "--skipLibCheck", "--types",
                           "node", "--module", "node16", "--preserveSymlinks", "typed.ts"], cwd=tmp_path, check=False,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
