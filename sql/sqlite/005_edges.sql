-- SPDX-License-Identifier: MIT
--
-- Semel on SQLite: what the rules at the edges need: after the retention, after settings changed, after a discard.

