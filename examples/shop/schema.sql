-- SPDX-License-Identifier: MIT
CREATE TABLE charge (id text, cents bigint);
CREATE TABLE parcel (id text, insured_cents bigint CHECK (insured_cents <= 50000));
