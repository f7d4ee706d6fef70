# SPDX-License-Identifier: MIT
"""Idempotency keys for Python web applications, on Semel's PostgreSQL functions. See docs/idempotency.md."""
from .fingerprint import fingerprint

__all__ = ["fingerprint"]
__version__ = "0.1.0"
