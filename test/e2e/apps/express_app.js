// SPDX-License-Identifier: MIT
// An application for middleware.py: node express_app.js PORT. A request says what its handler does.
'use strict';
const { Readable, pipeline } = require('stream');
const express = require('express');
const { Pool, types } = require('pg');
const { idempotency } = require('semel/express');

// As many applications do; a token of the middleware is larger than a double can be exact.
types.setTypeParser(types.builtins.INT8, Number);
types.setTypeParser(types.builtins.JSONB, (text) => text);
const app = express();

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

const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: Number(process.env.POOL || 10) });
pool.on('error', () => {});
app.use(idempotency({
  pool,
  caller: (req) => req.headers['x-user'],
  rule: (method, path) => (path.toLowerCase().startsWith('/act') ? 'required' : 'off'),
  wait: Number(process.env.WAIT || 20),
  timeout: 600,
  maxStored: 100000,
  maxAnswer: 1000000,
}));
app.use(express.json({ limit: '2mb' }));
app.post('/act', async (req, res, next) => {
  try {
    const asked = req.body;
    const done = await req.db.query('INSERT INTO ledger VALUES ($1, 1) RETURNING clock_timestamp()::text AS at',
      [req.headers['idempotency-key']]);
    const body = done.rows[0].at + 'x'.repeat(asked.size || 0);
    await new Promise((later) => { setTimeout(later, (asked.sleep || 0) * 1000); });
    if (asked.never) return;
    if (asked.deep) await req.db.query('SELECT $1::text, $2::text', ['half', nested(asked.deep)]);
    if (asked.raise) throw new Error('as it was asked');
    if (asked.list) {
      res.writeHead(201, ['X-Part', '1', 'X-Part', '2']);
      await new Promise((sent) => { res.end(body, sent); });
      await pool.query("INSERT INTO ledger VALUES ('sent', 1)");
      return;
    }
    res.status(asked.badly ? undefined : asked.status || 201);
    for (const [name, value] of asked.headers || []) res.append(name, value);
    if (asked.left) {
      const source = Readable.from(halves(req.socket, body));
      if (asked.left === 'pipe') source.pipe(res);
      if (asked.left === 'pipeline') pipeline(source, res, () => {});
      if (asked.left === 'file') gone(req.socket).then(() => setImmediate(() => res.sendFile(__filename)));
      return;
    }
    if (asked.breaks) {
      pipeline(Readable.from(broken()), res, () => {});
      return;
    }
    if (asked.part) {
      res.write('part');
      throw new Error('behind a part');
    }
    for (let i = 0; asked.stream && i < body.length; i += 5000) res.write(body.slice(i, i + 5000));
    if (asked.stream) res.end();
    else res.send(Buffer.from(body));
    if (asked.again === 'send') res.status(200).send('');
    if (asked.again === 'throw') throw new Error('behind its answer');
  } catch (error) {
    next(error);
  }
});
app.get('/', (req, res) => res.send('up'));
app.listen(Number(process.argv[2]), '127.0.0.1');
