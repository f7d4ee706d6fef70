-- SPDX-License-Identifier: MIT
CREATE TABLE ledger (message_id text NOT NULL, account text NOT NULL, cents bigint NOT NULL CHECK (cents > 0));
