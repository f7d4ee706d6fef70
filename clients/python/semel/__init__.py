# SPDX-License-Identifier: MIT
"""Semel on PostgreSQL: messages take effect once (semel.inbox); idempotency keys (semel.asgi, semel.django)."""
from .adapters import Django, SQLAlchemy
from .fingerprint import fingerprint
from .inbox import AsyncInbox, AsyncOutbox, Inbox, Outbox
from .message import Answer, Message, Permanent, Rejected, StoreError, Transient, Unavailable, Unknown, Unusable

__all__ = ["Answer", "AsyncInbox", "AsyncOutbox", "Django", "Inbox", "Message", "Outbox", "Permanent", "Rejected",
           "SQLAlchemy", "StoreError", "Transient", "Unavailable", "Unknown", "Unusable", "fingerprint"]
__version__ = "0.1.0"
