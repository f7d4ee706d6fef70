# SPDX-License-Identifier: MIT
"""The inbox and the outbox of clients/node."""
import pytest

pytest.register_assert_rewrite("inbox_cases")
from inbox_cases import *  # noqa: E402,F401,F403

DRIVERS = ["pg"]
