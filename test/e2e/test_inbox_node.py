# SPDX-License-Identifier: MIT
"""The inbox and the outbox of clients/node."""
import pathlib
import shutil
import subprocess

import pytest

pytest.register_assert_rewrite("inbox_cases")
from inbox_cases import *  # noqa: E402,F401,F403
from inbox_cases import APPS, NODE_PATHS, SOURCE, node_command  # noqa: E402

DRIVERS = ["pg"]


# What Promise.all leaves running when one of its queries fails
def test_query_behind_the_end_of_its_handler_is_refused(desk):
    for asked in [{"raise": "Permanent"}, {"sql": "SELECT 1/0"}, {}]:
        desk.deliver((f"m{len(desk.rows())}", asked), straggle=True)
    assert desk.books() == [("m2", "1")] and [row[1] for row in desk.rows()] == ["dead", "dead", "completed"]


CLOCK = """
const { Inbox } = require(process.argv[1]);
const { Guard } = require(`${process.argv[1]}/rules.js`);
Date.now = () => 0;
const seen = { tick: 0, inbox_take: 0, key_begin: 0 };
const stop = new AbortController();
async function query(asked) {
  const [, name] = /semel\\.(\\w+)/.exec(asked.text || asked) || [];
  seen[name] += 1;
  if (seen.tick === 3) stop.abort();
  if (seen.inbox_take > 1000 || seen.key_begin > 6) process.exit(1);
  return { rows: name === 'key_begin' ? [{ act: 'busy' }] : [], command: asked };
}
const nothing = () => {};
const pool = { connect: async () => ({ query, on: nothing, removeListener: nothing, release: nothing }) };
(async () => {
  await new Inbox('billing', pool, nothing).work({ every: 0.001, signal: stop.signal });
  const refused = await new Guard({ pool, caller: nothing }).ask([], 0.03).catch((refusal) => refusal.answer.status);
  console.log(seen.tick, refused);
})();
"""


# P45: a clock that is set back stops neither the housekeeping nor the end of a wait
def test_intervals_do_not_depend_on_the_time_of_day():
    if shutil.which("node") is None:
        pytest.skip("there is no node here: apt-get install nodejs")
    done = subprocess.run(["node", "-e", CLOCK, SOURCE / "clients/node"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "3 409\n"), done.stderr


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
