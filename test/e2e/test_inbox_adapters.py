# SPDX-License-Identifier: MIT
"""The inbox and the outbox of clients/python on a session of SQLAlchemy and a connection of Django."""
import pytest

pytest.register_assert_rewrite("inbox_cases")
from inbox_cases import *  # noqa: E402,F401,F403

DRIVERS = ["sqlalchemy", "django"]
