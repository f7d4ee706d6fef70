# SPDX-License-Identifier: MIT
"""The inbox and the outbox of clients/python on a session of SQLAlchemy and a connection of Django."""
import os

import pytest

pytestmark = pytest.mark.skipif(os.environ.get("SEMEL_LONG") != "1", reason="SEMEL_LONG=1 runs it")
pytest.register_assert_rewrite("inbox_cases")
from inbox_cases import *  # noqa: E402,F401,F403

DRIVERS = ["sqlalchemy", "django"]


# P16: psycopg2 tells one warning from another by when it came alone
def test_warning_behind_a_commit_is_no_lost_wait(desk):
    if desk.app.driver != "django":
        pytest.skip("nothing of the application is done behind a COMMIT here")
    warn = "DO $$ BEGIN RAISE WARNING 'as asked'; END $$"
    assert [desk.deliver((f"m{n}", {"behind": warn}))["act"] for n in range(3)] == ["run"] * 3
