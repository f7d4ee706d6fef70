// SPDX-License-Identifier: MIT
// A payment endpoint with Express: DATABASE_URL=postgres://... node express_payments.js PORT
//
// The charge and the answer commit together. A client that retries under its key gets the first answer.
'use strict';
const express = require('express');
const { Pool } = require('pg');
const { idempotency } = require('semel/express');

const CUSTOMERS = new Map([['Bearer secret-of-ada', 'ada'], ['Bearer secret-of-bob', 'bob']]); // a verified token
const customer = (req) => CUSTOMERS.get(req.headers.authorization);

const app = express();
const pool = new Pool({ connectionString: process.env.DATABASE_URL });
pool.on('error', (error) => console.error(error.message));
app.use(idempotency({ pool, caller: customer, rule: (method) => (method === 'POST' ? 'required' : 'off') }));
app.use(express.json());

app.post('/charges', async (req, res, next) => {
  try {
    const { cents } = req.body;
    if (!Number.isInteger(cents) || cents <= 0) {
      res.status(422).json({ detail: 'cents must be positive' }); // rolled back; the key may be used again
      return;
    }
    const made = await req.db.query('INSERT INTO charge (customer, cents) VALUES ($1, $2) RETURNING id',
      [customer(req), cents]);
    res.status(201).json({ id: Number(made.rows[0].id), cents });
  } catch (error) {
    next(error);
  }
});

app.listen(Number(process.argv[2]), '127.0.0.1');
