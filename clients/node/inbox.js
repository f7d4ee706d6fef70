// SPDX-License-Identifier: MIT
// The inbox and the outbox of Semel on PostgreSQL: a message takes effect once, whatever its broker does.
//
//     const payments = new Outbox('payment');
//     const inbox = new Inbox('billing', pool, async (tx, message) => {     // pool: a Pool of pg
//       const order = message.json();             // tx.query is in the transaction of the message's record
//       await tx.query('INSERT INTO ledger VALUES ($1, $2)', [order.account, order.cents]);
//       await payments.put(tx, order.id, 'paid', { cents: order.cents });
//       return { receipt: 7 };                    // optional: what its duplicates are answered with
//     });
//
//     const answer = await inbox.deliver({ id: 'evt-1', body });   // committed now; a StoreError where nothing is
//     answer.acknowledge                          // false: pause, and let the broker deliver it again
//
//     await inbox.work({ signal });               // beside it, or in a process of its own: what is to be tried again
//
// Record, effect and events commit together. A handler that throws is rolled back to the savepoint before it, and its
// failure is committed with the payload, under one of four classes: throw Transient, Permanent, Rejected or Unknown, or
// list classes of your own, { permanent: [RangeError] }. Of the database's errors bad data and violated constraints are
// permanent, a missing foreign key and a statement's time-out transient; every other error is transient. After a
// deadlock, a serialization failure or a lost connection the whole transaction runs again, and no attempt counts; after
// a lost COMMIT, too: the store knows whether the message is done. What nobody can record is thrown: Unavailable
// (later), Unusable (fix it first).
//
// Where the effect is outside the database, { effect: 'outside' } (or 'keyed': safe to repeat under its key), the
// handler is (message) => ..., in no transaction, under a lease that a heartbeat renews; its Idempotency-Key is
// message.key(), and an error that is in no class is unknown (keyed: transient).
'use strict';
const { setTimeout: sleep } = require('timers/promises');
const convertFirst = require('./driver.js');
const { Message, StoreError, Unavailable, Unusable, WORDS, clean, moment, written } = require('./message.js');

const TAKEN = 'token::text, message_id AS id, source, type, raw, headers, order_key AS "orderKey", version, attempt';
const BEGUN = 'act, why, attempt, outcome';
const MIGRATE = 'the schema is missing, or older than this client: semel migrate --store postgres://...';
const HINTS = { '3F000': MIGRATE, 42883: MIGRATE, 23000: 'a handler never ends its transaction',
  42501: 'sql/postgres/roles.sql gives a role its rights, a row in semel.access its consumers' };

// Rows as arrays, whatever the parsers of types are: a token does not survive a double, so it is text.
function call(name, columns, given) {
  const names = Object.keys(given).map((one, i) => `${one} => $${i + 1}`).join(', ');
  return { text: `SELECT ${columns} FROM semel.${name}(${names})`, values: Object.values(given) };
}

const lost = new WeakSet(); // errors of a connection, which pg gives no SQLSTATE
const noted = (error, alive = error.severity) => { if (!alive) lost.add(error); throw error; };
const stateOf = (error) => (lost.has(error) ? '08000' : error instanceof Error && error.severity ? error.code : null);

// A class of failure; or `again`: the transaction's, `lost`: the connection's, `stop`: the program's.
const STATES = [[/^(23503|57014|25P02|42804|42846)/, 'transient'], [/^(40|55P03|55006)/, 'again'],
  [/^(08|53|57|58|25006|25P0[34])/, 'lost'], [/^23000/, 'stop'], [/^(2[0-3]|44|54|P0)/, 'permanent'], [/^/, 'stop']];
const kindOf = (state) => (state === null ? 'transient' : STATES.find(([start]) => start.test(state))[1]);

// True: the signal came.
const wait = (ms, signal) => sleep(ms, false, { signal }).catch(() => true);

// One after the other: a connection has one query at a time.
async function each(list, work) {
  const done = [];
  for (const one of list) done.push(await work(one));
  return done;
}

function ignored() {} // of a backend that dies while nobody asks it: the next query reports it

// The connection of one transaction.
class Link {
  constructor(client) {
    this.client = client;
  }

  // Calls a handler with the transaction. When it has ended, a query that it left behind is refused: it would be a part
  // of whatever the transaction does next.
  async lend(handler, given) {
    let lent = true;
    const answers = () => this.client.query('').then(() => true, () => false);
    const query = async (...asked) => {
      if (!lent) throw new Unusable('a query behind the end of its handler: await all of them');
      // An error of pg itself, such as a value that it cannot write, is not the connection's.
      return this.client.query(...asked).catch(async (error) => noted(error, error.severity || await answers()));
    };
    return (async () => handler({ query }, given))().finally(() => { lent = false; });
  }

  query = (...asked) => this.client.query(...asked).catch((error) => noted(error));

  rows = async (asked) => (await this.query(asked)).rows;
}

// Runs the function in a transaction: committed when it returns, rolled back when it throws.
async function transaction(pool, work) {
  const client = await pool.connect().catch((error) => noted(error, null));
  const link = new Link(client);
  let [broken, early] = [];
  convertFirst(client);
  // A COMMIT that did not wait for its standby says so in a warning alone, and does not count (P16).
  const hear = ({ routine }) => { early ||= routine === 'SyncRepWaitForLSN'; };
  client.on('error', ignored);
  client.on('notice', hear);
  try {
    await link.query('BEGIN');
    const done = await work(link);
    const { command } = await link.query('COMMIT');
    if (command !== 'COMMIT') throw new Unusable(`COMMIT was answered by ${command}: nothing was recorded`);
    if (early) throw new Unavailable('COMMIT did not wait for its synchronous standby, which may not have it');
    return done;
  } catch (error) {
    await client.query('ROLLBACK').catch((second) => { broken = second; });
    throw error;
  } finally {
    client.removeListener('error', ignored);
    client.removeListener('notice', hear);
    client.release(broken);
  }
}

class Inbox {
  constructor(consumer, pool, handler, options = {}) {
    Object.assign(this, {
      consumer, pool, handler, effect: 'atomic', batch: false, lease: 60, tries: 5, transient: [], permanent: [],
      rejected: [], unknown: [], log: (text) => console.error(`semel: ${text}`),
    }, options);
    if (typeof handler !== 'function') throw new TypeError('semel: new Inbox(consumer, pool, handler) needs a handler');
    if (!['atomic', 'outside', 'keyed'].includes(this.effect) || !(this.tries >= 1)) {
      throw new TypeError(`semel: effect ${this.effect}, tries ${this.tries}: must be atomic, outside or keyed, and > 0`);
    }
  }

  // Runs the handler, unless the message is a copy. What is returned is committed.
  async deliver(message) {
    return (await this.deliverMany([message]))[0];
  }

  // The same for a batch in one transaction: an answer for each. A failure undoes its own message only.
  async deliverMany(messages) {
    // A message that was taken may be handed on: its token is another consumer's.
    const made = messages.map((fields) => new Message({ ...fields, consumer: this.consumer, token: undefined }));
    if (this.effect !== 'atomic') return each(made, (message) => this.claim(message));
    return made.length > 0 ? this.settle(made) : [];
  }

  // Stores a message in your transaction, to be run by work().
  async put(tx, message, notBefore) {
    const given = { ...new Message(message).arguments(), not_before: notBefore && (moment(notBefore) || notBefore) };
    return answer((await tx.query(call('inbox_put', '*', { consumer: this.consumer, ...given }))).rows[0]);
  }

  // Runs stored messages when they are due, and the housekeeping, until the signal of an AbortController comes.
  async work({ signal, batch = 10, every = 1, tick = true } = {}) {
    for (let ticked = -Infinity; !(signal && signal.aborted);) {
      let ran = 0;
      try {
        if (tick && performance.now() - ticked >= every * 1000) {
          ticked = performance.now();
          await this.ask(call('tick', '*', {}));
        }
        ran = await this.workOnce(batch, signal);
      } catch (error) {
        if (!(error instanceof Unavailable)) throw error;
        this.log(`${this.consumer}: store unavailable: ${error.message}; tried again in ${every} s`);
      }
      if (ran < batch) await wait(every * 1000, signal);
    }
  }

  // What it is called counts first, then what only the transaction can settle, then what is listed.
  judge(error) {
    const called = Object.keys(WORDS).find((word) => error instanceof WORDS[word]);
    if (called) return called;
    const own = error instanceof StoreError ? 'stop' : kindOf(stateOf(error));
    if (this.effect === 'atomic' && (error instanceof StoreError || own === 'again' || own === 'lost')) return own;
    const listed = Object.keys(WORDS).find((word) => this[word].some((kind) => error instanceof kind));
    return listed || { atomic: own, keyed: 'transient', outside: 'unknown' }[this.effect];
  }

  // Pauses, if repeating can settle it: `again` or `lost`. Throws any other error.
  async again(cause, n) {
    const state = stateOf(cause);
    if (state === null) throw cause;
    const [kind, said] = [kindOf(state.replace('57014', '57')), cause.message || cause.code]; // no handler's time-out
    if (kind !== 'again' && kind !== 'lost') {
      throw new Unusable(`${said} (SQLSTATE ${state}); ${HINTS[state] || 'nothing was recorded'}`, { cause });
    }
    if (n + 1 >= this.tries) throw new Unavailable(`${said}; acknowledge nothing, and deliver it again`, { cause });
    await wait(Math.min(20 * 4 ** n, 1000) * (0.5 + Math.random() / 2));
    return kind;
  }

  // One call, one transaction. After a lost COMMIT the tokens in its rows show what was committed.
  async ask(asked) {
    let rows = [];
    for (let n = 0; ; n += 1) {
      try {
        return await transaction(this.pool, async (link) => {
          const ours = await each(rows, ({ token }) => token && this.renew(link, token));
          rows = ours.some(Boolean) ? rows.filter((_, at) => ours[at]) : await link.rows(asked);
          return rows;
        });
      } catch (error) {
        if (await this.again(error, n) === 'again') rows = [];
      }
    }
  }

  // Within a transaction: is the lease still ours?
  renew = async (link, token) => (await link.rows(this.renewal(token)))[0].inbox_renew;

  renewal = (token) => call('inbox_renew', '*', { token, lease: `${this.lease} seconds` });

  // ---- effects in the transaction --------------------------------------------------------------------------------

  // Runs messages in one transaction, again where that can settle it. One that was taken comes alone.
  async settle(messages) {
    let [wasLost, answers] = [false, []];
    for (let n = 0; ; n += 1) {
      try {
        answers = [];
        await transaction(this.pool, async (link) => {
          answers = await this.begin(link, messages);
          await this.attempt(link, messages, answers);
        });
        if (!wasLost || n + 1 >= this.tries || answers.every(({ why }) => why !== 'busy')) return answers;
        await wait(200); // the server has yet to notice that the lost connection is gone
      } catch (error) {
        const kind = answers.length > 0 ? this.judge(error) : ''; // what begins nothing is no message's fault
        if (kind in WORDS && messages.length > 1) { // only one by one they show whose fault it was
          return (await each(messages, (message) => this.settle([message]))).flat();
        }
        if (kind in WORDS && stateOf(error) !== null) { // by a deferred constraint, or the outcome
          return [failed(messages[0], await this.ask(this.failure(messages[0], kind, error)))];
        }
        wasLost = await this.again(error, n) === 'lost' || wasLost;
      }
    }
  }

  async attempt(link, messages, answers) {
    const [runs, done] = [messages.filter((_, at) => answers[at].act === 'run'), []];
    for (const group of this.batch && runs.length > 0 ? [runs] : runs.map((one) => [one])) {
      try {
        await link.query('SAVEPOINT semel');
        const said = await link.lend(this.handler, this.batch ? group : group[0]);
        const outcome = this.batch ? null : written(said);
        await link.query('RELEASE SAVEPOINT semel');
        for (const one of group) done.push({ message_id: String(one.id), source: one.source, outcome });
      } catch (error) {
        const word = this.judge(error);
        if (!(word in WORDS) || group.length > 1) throw error;
        await link.query('ROLLBACK TO SAVEPOINT semel');
        answers[messages.indexOf(group[0])] = failed(group[0], await link.rows(this.failure(group[0], word, error)));
      }
    }
    if (done.length > 0) await this.end(link, messages[0].token, done);
    await link.query('SET CONSTRAINTS ALL IMMEDIATE');
  }

  async begin(link, messages) {
    const [consumer, first] = [this.consumer, messages[0]];
    if (first.token) { // its row is ours from here on: nobody takes it while the handler runs
      const mine = await this.renew(link, first.token);
      return [answer({ act: mine ? 'run' : 'ack', why: mine ? 'retry' : 'fenced', attempt: first.attempt })];
    }
    const asked = messages.length === 1
      ? call('inbox_begin', BEGUN, { consumer, ...first.arguments() })
      : call('inbox_begin_many', BEGUN, { consumer, messages: JSON.stringify(messages.map((m) => m.arguments())) });
    const rows = await link.rows(asked);
    rows.forEach((row, at) => { messages[at].attempt = row.attempt; });
    return rows.map(answer);
  }

  async end(link, token, done) {
    let asked = call('inbox_done', '*', { consumer: this.consumer, ...done[0] });
    if (token) asked = call('inbox_finish', '*', { token, outcome: done[0].outcome });
    if (done.length > 1) {
      const messages = JSON.stringify(done.map((one) => ({ ...one, outcome: JSON.parse(one.outcome) })));
      asked = call('inbox_done_many', '*', { consumer: this.consumer, messages });
    }
    const [row] = await link.rows(asked);
    if (row.inbox_finish === false) throw new Unusable('the lease was lost while its row was held');
  }

  failure(message, word, error) {
    const reason = clean(error && error.message ? error.message : error).slice(0, 500);
    if (message.token) return call('inbox_finish', '*', { token: message.token, class: word, reason });
    const all = { consumer: this.consumer, ...message.arguments(), class: word, reason };
    return call('inbox_fail', 'act, why, status, due_at', all);
  }

  // ---- effects outside -------------------------------------------------------------------------------------------

  async claim(message) {
    const columns = `${BEGUN}, token::text, semel.consumer($1) ->> 'one_source' AS mono`;
    const given = { consumer: this.consumer, lease: `${this.lease} seconds`, ...message.arguments() };
    const [row] = await this.ask(call('inbox_claim', columns, given));
    Object.assign(message, { attempt: row.attempt, token: row.token });
    if (row.mono === 'true') message.source = ''; // as it is stored: a retry has the same key
    if (row.act === 'run') await this.outside(message).finally(this.beat(new Set([row.token])));
    return answer(row);
  }

  // Calls the handler and records its end. Where the store is away by then, the lease runs out.
  async outside(message) {
    const { id, token } = message;
    let [said, rows, end] = [null, [], call('inbox_finish', '*', { token })];
    try {
      said = await this.handler(message);
    } catch (error) {
      end = this.failure(message, this.judge(error), error);
    }
    try {
      const outcome = written(said);
      rows = await this.ask(outcome === null ? end : call('inbox_finish', '*', { token, outcome }));
    } catch (error) {
      if (said === null || said === undefined || error instanceof Unavailable) throw error;
      rows = await this.ask(end); // the effect has happened, whatever it said
      this.log(`${this.consumer}: ${id} is done, and its outcome cannot be stored: ${error.message}`);
    }
    if (!rows[0].inbox_finish) this.log(`${this.consumer}: lease expired while ${id} ran; its end is kept as evidence`);
  }

  // Renews leases until the function that it gives is called.
  beat(tokens) {
    const stop = new AbortController();
    const report = (error) => this.log(`${this.consumer}: lease not renewed: ${error.message}`);
    const running = (async () => {
      while (!await wait(this.lease * 1000 / 3, stop.signal)) {
        await each([...tokens], (token) => this.ask(this.renewal(token)).catch(report));
      }
    })();
    return () => { stop.abort(); return running; };
  }

  // ---- what is stored --------------------------------------------------------------------------------------------

  // Runs stored messages that are due now; how many there were.
  async workOnce(max = 10, signal = undefined) {
    const given = { consumer: this.consumer, max, lease: `${this.lease} seconds` };
    const rows = await this.ask(call('inbox_take', TAKEN, given));
    const [unrun, waiting] = [1, 2].map(() => new Set(rows.map(({ token }) => token)));
    const still = rows.length > 0 ? this.beat(waiting) : ignored;
    // A transaction holds its row: a renewal would wait for it. A call outside needs its lease until its end, and may
    // have happened when it ends badly: it is not given back.
    const [before, behind] = this.effect === 'atomic' ? [waiting, unrun] : [unrun, waiting];
    try {
      for (const { raw, headers, ...row } of rows) {
        if (signal && signal.aborted) break;
        const { semel_tombstone: none, ...others } = headers || {};
        const message = new Message({ ...row, body: none ? null : raw, headers: others, consumer: this.consumer });
        before.delete(row.token);
        await (this.effect === 'atomic' ? this.settle([message]) : this.outside(message));
        behind.delete(row.token);
      }
    } finally {
      await still();
      await each([...unrun], (token) => this.ask(call('inbox_release', '*', { token }))); // no attempt counts
    }
    return rows.length;
  }
}

const answer = ({ act, why, attempt = 0, outcome = null, status = null, due_at: dueAt = null }) => ({
  act, why, attempt, outcome, status, dueAt, acknowledge: act !== 'later',
});

const failed = ({ token, attempt }, [row]) => answer(token
  ? { act: 'ack', why: row.inbox_finish ? 'retry' : 'fenced', attempt } : { ...row, attempt });

// Events of one kind of aggregate. put() is a part of your transaction: rolled back means never sent.
class Outbox {
  constructor(aggregatetype, destination) {
    Object.assign(this, { aggregatetype, destination });
  }

  // Gives the id of the event. With { lock: true } events of an aggregate leave in the order of their commits; a lock
  // of yours on the aggregate will do as well.
  async put(tx, aggregateid, type, body, { headers = {}, id, lock = false } = {}) {
    const { message_id: about, raw } = new Message({ id: aggregateid, body }).arguments();
    if (about === null) throw new WORDS.permanent(`an event about "${clean(aggregateid)}": such an id cannot be stored`);
    const payload = body === null || body === undefined ? null : raw;
    const given = { ...this, aggregateid: about, type, id, lock, headers, raw: payload };
    return (await tx.query(call('outbox_put', 'outbox_put::text AS id', given))).rows[0].id;
  }
}

module.exports = { Inbox, Outbox };
