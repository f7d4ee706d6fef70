# SPDX-License-Identifier: MIT
"""The inbox and the outbox of clients/python on a session of SQLAlchemy and a connection of Django."""
import os

import pytest

pytestmark = pytest.mark.skipif(os.environ.get("SEMEL_LONG") != "1", reason="SEMEL_LONG=1 runs it")
pytest.register_assert_rewrite("inbox_cases")
from inbox_cases import *  # noqa: E402,F401,F403

DRIVERS = ["sqlalchemy", "django"]
