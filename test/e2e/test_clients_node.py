# SPDX-License-Identifier: MIT
"""The middleware of clients/node."""
import pytest

pytest.register_assert_rewrite("middleware")
from middleware import *  # noqa: E402,F401,F403

FRAMEWORKS = ["express", "fastify"]
