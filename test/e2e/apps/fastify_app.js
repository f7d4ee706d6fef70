// SPDX-License-Identifier: MIT
// An application for middleware.py: node fastify_app.js PORT. A request says what its handler does.
'use strict';
const { Readable } = require('stream');
const { Pool, types } = require('pg');
const { idempotency } = require('semel/fastify');

// As many applications do; a token of the middleware is larger than a double can be exact.
types.setTypeParser(types.builtins.INT8, Number);
types.setTypeParser(types.builtins.JSONB, (text) => text);
const app = require('fastify')();
const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: Number(process.env.POOL || 10) });
pool.on('error', () => {});

const gone = (socket) => new Promise((done) => { if (socket.destroyed) done(); else socket.once('close', done); });

// What one client waits for in vain: the second half comes when it has gone.
async function* halves(socket, body) {
  yield body.slice(0, 5);
  await gone(socket);
  yield body.slice(5);
}

// An array in so many others: no driver can write it.
function nested(depth) {
  let value = [];
  for (let n = 0; n < depth; n += 1) value = [value];
  return value;
}

async function* broken() {
  yield 'part';
  throw new Error('as it was asked');
}

app.register(idempotency, {
  pool,
  caller: (request) => request.headers['x-user'],
  rule: (method, path) => (path.startsWith('/act') ? 'required' : 'off'),
  wait: Number(process.env.WAIT || 20),
  timeout: 600,
  maxStored: 100000,
  maxAnswer: 1000000,
});
app.post('/act', async (request, reply) => {
  const asked = request.body;
  const done = await request.db.query('INSERT INTO ledger VALUES ($1, 1) RETURNING clock_timestamp()::text AS at',
    [request.headers['idempotency-key']]);
  const body = Buffer.from(done.rows[0].at + 'x'.repeat(asked.size || 0));
  await new Promise((later) => { setTimeout(later, (asked.sleep || 0) * 1000); });
  if (asked.never) await new Promise(() => {});
  if (asked.deep) await request.db.query('SELECT $1::text, $2::text', ['half', nested(asked.deep)]);
  if (asked.raise) throw new Error('as it was asked');
  reply.code(asked.status || 201);
  const many = new Map();
  for (const [name, value] of asked.headers || []) many.set(name, [...(many.get(name) || []), value]);
  for (const [name, values] of many) reply.header(name, values.length > 1 ? values : values[0]);
  if (asked.left) return Readable.from(halves(request.raw.socket, body));
  if (asked.breaks) return Readable.from(broken());
  if (asked.web) {
    const answer = new Response(body, { status: 202, headers: [['x-part', '1'], ['x-part', '2']] });
    return asked.web === 'stream' ? answer.body : answer;
  }
  if (asked.again) reply.send(body); // and not returned, so that Fastify sends once more
  if (asked.again === 'throw') throw new Error('behind its answer');
  if (asked.again) return undefined;
  return asked.stream ? Readable.from([body]) : body;
});
app.get('/', async () => 'up');
app.listen({ port: Number(process.argv[2]), host: '127.0.0.1' });
