// SPDX-License-Identifier: MIT
// A payment endpoint with Fastify: DATABASE_URL=postgres://... node fastify_payments.js PORT
//
// The charge and the answer commit together. A client that retries under its key gets the first answer.
'use strict';
const { Pool } = require('pg');
const { idempotency } = require('semel/fastify');

const CUSTOMERS = new Map([['Bearer secret-of-ada', 'ada'], ['Bearer secret-of-bob', 'bob']]); // a verified token
const customer = (request) => CUSTOMERS.get(request.headers.authorization);

const app = require('fastify')();
const pool = new Pool({ connectionString: process.env.DATABASE_URL });
pool.on('error', (error) => console.error(error.message));
app.register(idempotency, { pool, caller: customer, rule: (method) => (method === 'POST' ? 'required' : 'off') });

app.post('/charges', async (request, reply) => {
  const { cents } = request.body;
  if (!Number.isInteger(cents) || cents <= 0) {
    return reply.code(422).send({ detail: 'cents must be positive' }); // rolled back; the key may be used again
  }
  const made = await request.db.query('INSERT INTO charge (customer, cents) VALUES ($1, $2) RETURNING id',
    [customer(request), cents]);
  return reply.code(201).send({ id: Number(made.rows[0].id), cents });
});

app.listen({ port: Number(process.argv[2]), host: '127.0.0.1' });
