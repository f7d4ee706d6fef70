-- SPDX-License-Identifier: MIT
--
-- Semel on SQLite: what the rules at the edges need: after the retention, after settings changed, after a discard.


-- A fencing token is made of the clock, the effect of its claim and chance (src/core/token.h): a counter would begin
-- anew in a restored file. Those that are held stay valid.
DELETE FROM semel_counter WHERE name = 'token';

-- Versions of the key that ended without effect while earlier ones are missing: ascending, with commas in between.
ALTER TABLE semel_order_key ADD COLUMN skipped TEXT;
