// SPDX-License-Identifier: MIT
// What the gateway is measured against: idempotency keys as a good team writes them, in the application itself.
//   node middleware.js DATABASE        prints its port
// One prepared INSERT claims the key, the handler runs, one prepared UPDATE stores its answer, which is then sent: two
// commits per request, and a pool of 10 connections. A key that is there is answered from its row. There is no lease, no
// recovery and no purge. GET /calls answers as in gateway.c.
'use strict';
const { createHash } = require('crypto');
const http = require('http');
const { Pool } = require('pg');

const pool = new Pool({ connectionString: process.argv[2], max: 10 });
const TABLE = `CREATE TABLE idempotency_key (caller text, key text, fingerprint bytea NOT NULL, status integer,
  body text, created_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (caller, key))`;
const CLAIM = 'INSERT INTO idempotency_key (caller, key, fingerprint) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING';
const STORE = 'UPDATE idempotency_key SET status = $3, body = $4 WHERE caller = $1 AND key = $2';
const READ = 'SELECT fingerprint, status, body FROM idempotency_key WHERE caller = $1 AND key = $2';
const ANSWER = JSON.stringify({ charge: '1'.padStart(86, '0') }).padEnd(100);
let calls = 0;

function handler() {
  calls += 1;
  return { status: 201, body: ANSWER };
}

async function guarded(req, payload) {
  const id = [req.headers['x-user-id'], req.headers['idempotency-key']];
  const fingerprint = createHash('sha256').update(`${req.method} ${req.url}\n`).update(payload).digest();
  const claim = await pool.query({ name: 'claim', text: CLAIM, values: [...id, fingerprint] });
  if (claim.rowCount === 1) {
    const answer = handler();
    await pool.query({ name: 'store', text: STORE, values: [...id, answer.status, answer.body] });
    return answer;
  }
  const [row] = (await pool.query({ name: 'read', text: READ, values: id })).rows;
  if (!row.fingerprint.equals(fingerprint)) return { status: 422, body: '' };
  if (row.status === null) return { status: 409, body: '' };
  return { status: row.status, body: row.body, replayed: true };
}

const server = http.createServer((req, res) => {
  const chunks = [];
  const send = ({ status, body, replayed }) => {
    res.writeHead(status, { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body),
      ...(replayed && { 'Idempotent-Replayed': 'true' }) });
    res.end(body);
  };
  if (req.url === '/calls') {
    send({ status: 200, body: `${calls} 0\n` });
    calls = 0;
    return;
  }
  req.on('data', (chunk) => chunks.push(chunk));
  req.on('end', () => guarded(req, Buffer.concat(chunks)).then(send, (err) => send({ status: 500, body: err.message })));
});

pool.query(TABLE).then(() => server.listen(0, '127.0.0.1', () => console.log(`port ${server.address().port}`)));
