// SPDX-License-Identifier: MIT
// A consumer on clients/node that does what test/e2e/inbox_cases.py asks: a JSON document per line, and an answer.
// apps/inbox_app.py is the same.
'use strict';
const fs = require('fs');
const readline = require('readline');
const { Pool } = require('pg');
const semel = require('semel');

const URLS = JSON.parse(process.env.DATABASE_URLS);
const pools = {};
class Bad extends Error {} // listed as permanent
class KeyError extends Error {} // not listed
// Has no text.
function Mute() {
  return Object.create(null);
}
const errors = { ...semel, Bad, KeyError, Mute };
const outbox = new semel.Outbox('payment');
const pause = (s) => new Promise((done) => { setTimeout(done, s * 1000); });

// The effect, and whatever else the payload asks for.
async function book(tx, message) {
  const asked = message.json();
  if (asked.sleep) await pause(asked.sleep);
  await tx.query('INSERT INTO ledger VALUES ($1, $2)', [message.id, asked.cents === undefined ? 1 : asked.cents]);
  if (asked.swallow) {
    await tx.query('SELECT 1/0').catch(() => {});
    return null;
  }
  if (asked.value !== undefined) await tx.query('SELECT $1::text', [asked.value]);
  if (asked.sql) await tx.query(asked.sql);
  if (asked.event !== undefined) {
    const about = typed(asked.about === undefined ? message.id : asked.about);
    await outbox.put(tx, about, 'paid', typed(asked.event), { headers: { from: 'test' }, lock: true });
  }
  if (asked.end) await tx.query(asked.end);
  if (asked.raise) throw new errors[asked.raise](asked.text || 'as asked');
  return outcomeOf(asked);
}

// Leaves a query behind, as Promise.all may.
async function straggle(tx, message) {
  try {
    return await book(tx, message);
  } finally {
    setImmediate(() => tx.query("INSERT INTO ledger VALUES ('late', 1)").catch(() => {}));
  }
}

// What a call to another service is: it cannot be rolled back.
async function outside(message) {
  fs.appendFileSync(process.env.CALLS, `${message.id} ${message.key()} ${message.attempt}\n`);
  const asked = message.json();
  if (asked.hand_on) await new semel.Inbox(asked.hand_on, pools.default, book).deliver(message);
  if (asked.sleep) await pause(asked.sleep);
  if (asked.raise) throw new errors[asked.raise]('as asked');
  return outcomeOf(asked);
}

async function bookAll(tx, messages) {
  if (messages.some((message) => message.json().raise)) throw new Bad(`one of ${messages.length}`);
  for (const message of messages) {
    await tx.query('INSERT INTO ledger VALUES ($1, $2)', [message.id, message.json().cents]);
  }
}

// What JSON cannot say is named. There is no NaN in the JSON of Node.
function outcomeOf(asked) {
  const loop = [];
  loop.push(loop);
  const odd = { loop, nan: '\0', long: 'x'.repeat(70000) };
  return asked.odd ? odd[asked.odd] : asked.outcome;
}

// {"bigint": text} and the like is a value of a type that JSON does not have.
const TYPES = {
  base64: (text) => Buffer.from(text, 'base64'), bigint: BigInt, uuid: String, moment: (text) => new Date(`${text}Z`),
  mute: Mute,
};
function typed(given) {
  const name = Object.keys(TYPES).find((one) => given && given[one] !== undefined);
  return name ? TYPES[name](given[name]) : given;
}

function messageOf(asked) {
  const { order_key: orderKey, business_key: businessKey, ...fields } = Object.fromEntries(
    Object.entries(asked).map(([name, given]) => [name, typed(given)]));
  const headers = Object.entries(fields.headers || {}).map(([name, one]) => [name, typed(one)]);
  return { ...fields, headers: Object.fromEntries(headers), orderKey, businessKey };
}

let running;
async function perform(asked) {
  const { op, effect = 'atomic', db = 'default', consumer } = asked;
  if (!pools[db]) {
    const [max, connectionTimeoutMillis] = db === 'narrow' ? [1, 300] : [4, 5000];
    pools[db] = new Pool({ connectionString: URLS[db], max, connectionTimeoutMillis });
    pools[db].on('error', () => {});
  }
  const handler = asked.no_handler ? undefined : asked.batch_handler ? bookAll
    : effect !== 'atomic' ? outside : asked.straggle ? straggle : book;
  const options = { effect, permanent: [asked.broad ? Error : Bad], batch: Boolean(asked.batch_handler), ...asked.set };
  const inbox = new semel.Inbox(consumer, pools[db], handler, options);
  if (asked.hold) { // the only connection of its pool
    const held = await pools[db].connect();
    return perform({ ...asked, hold: false }).finally(() => held.release());
  }
  if (op === 'deliver') {
    const messages = asked.messages.map(messageOf);
    return messages.length === 1 ? [await inbox.deliver(messages[0])] : inbox.deliverMany(messages);
  }
  if (op === 'work_once') return inbox.workOnce(asked.batch);
  if (op === 'work') {
    const stop = new AbortController();
    running = { stop, work: inbox.work({ signal: stop.signal, every: 0.05, ...asked.with }) };
    return null;
  }
  if (op === 'stop') {
    running.stop.abort();
    await running.work;
    return null;
  }
  const client = await pools[db].connect();
  try {
    await client.query('BEGIN');
    const answer = await inbox.put(client, messageOf(asked.message), typed(asked.not_before));
    if (!asked.rollback) await client.query('COMMIT');
    return answer;
  } finally {
    await client.query('ROLLBACK');
    client.release();
  }
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const said = await perform(JSON.parse(line)).then((is) => ({ is: is === undefined ? null : is }),
      (error) => ({ error: error.constructor.name, text: error.message }));
    process.stdout.write(`${JSON.stringify(said)}\n`);
  }
}

main();
