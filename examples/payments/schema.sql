-- SPDX-License-Identifier: MIT
CREATE TABLE charge (
    id       bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    customer text NOT NULL,
    cents    bigint NOT NULL CHECK (cents > 0),
    made_at  timestamptz NOT NULL DEFAULT now()
);
