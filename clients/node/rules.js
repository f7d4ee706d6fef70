// SPDX-License-Identifier: MIT
// The rules that every middleware shares: which key, the transaction around the handler, which answer is kept, and what
// a refusal looks like. The same as in the Python package.
'use strict';
const convertFirst = require('./driver.js');
const { checkPointers, fingerprint } = require('./fingerprint.js');

// The idle time-out ends a transaction whose handler never comes back: its key is free again then.
// A token does not survive a double, and an application may have parsers of its own for bigint and JSON: both are text.
const BEGIN = `SELECT k.act, k.status, k.headers::text, k.body, k.token::text,
       pg_catalog.set_config('idle_in_transaction_session_timeout'::text, $1::text, true)
FROM semel.key_begin($2::text, $3::text, $4::bytea, $5::interval, $6::interval) AS k`;
const FINISH = 'SELECT semel.key_finish($1::bigint, $2::integer, $3::jsonb, $4::bytea)';

// What belongs to one connection, one moment, one client or one trace is neither stored nor replayed. The list is that
// of spec/replay-headers.txt, to which the gateway is held, too.
const DROPPED = `
  connection keep-alive proxy-connection proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade
  http2-settings content-length alt-svc via set-cookie set-cookie2 access-control-* date age retry-after ratelimit*
  x-ratelimit* x-rate-limit* traceparent tracestate traceresponse b3 x-b3-* x-datadog-* x-request-id x-correlation-id
  x-trace-id x-amzn-trace-id x-cloud-trace-context server-timing idempotent-replayed semel-*`.trim().split(/\s+/);
const IS_DROPPED = new RegExp(`^(${DROPPED.join('|').replace(/\*/g, '.*')})$`, 'i');
const stored = (headers) => headers.filter(([name]) => !IS_DROPPED.test(name));
const OUTCOME = 'semel-outcome';
// A key within its quotes. With them and its escapes it has at most 257 characters, as at the gateway.
const QUOTED = /^"((?:[^"\\]|\\["\\])*)"$/;
// A key that is a time and nothing else, as semel._idempotency_check sees it: since 1970, or as ISO 8601 writes it.
const TIME = new RegExp('^([12]\\d{9}(\\d{3}){0,3}|[12]\\d{3}-?[01]\\d-?[0-3]\\d'
  + '([T ]?[0-2]\\d:?[0-5]\\d(:?[0-6]\\d([.,]\\d+)?)?(Z|[+-]\\d{2}:?\\d{2})?)?)$');
const TITLES = {
  missing: 'The Idempotency-Key header is missing',
  malformed: 'The Idempotency-Key header is malformed',
  anonymous: 'The caller is not known',
  caller: 'The name of the caller cannot be stored',
  'too-large': 'The request is too large',
  mismatch: 'The key was used for another request',
  running: 'A request with this key is running',
  unknown: 'The outcome of the first request is unknown',
  'not-stored': 'The answer could not be stored',
  failed: 'The work could not be committed',
};

// An answer of the middleware itself: a problem document (RFC 9457) with a stable type.
class Refusal extends Error {
  constructor(status, name, detail, retryAfter) {
    super(detail);
    const problem = { type: `urn:semel:idempotency:${name}`, title: TITLES[name], status, detail };
    const headers = [['content-type', 'application/problem+json']];
    this.answer = { status, headers, body: Buffer.from(JSON.stringify(problem)) };
    if (retryAfter !== undefined) headers.push(['retry-after', String(retryAfter)]);
  }
}

const tooLong = (most) => new Refusal(503, 'not-stored', `the answer has more than ${most} bytes; nothing was done`);
const notStored = (certain) => new Refusal(503, 'not-stored', certain
  ? 'nothing was done; repeat the request with the same key'
  : 'it is not known yet whether the work was done; repeat the request with the same key', 1);

function refusalOf(act) {
  if (act === 'mismatch') {
    return new Refusal(422, act, 'use a new key for a new request, and the same one only for retries');
  }
  if (act === 'busy') return new Refusal(409, 'running', 'repeat the request later, with the same key', 1);
  return new Refusal(409, 'unknown', 'it must be reconciled before this request can be repeated');
}

// Of Node's flat list, which has every header as it was sent.
const pairsOf = (raw) => raw.flatMap((name, i) => (i % 2 === 0 ? [[name, raw[i + 1]]] : []));

// Of an object whose values may be lists.
const flat = (headers) => Object.entries(headers)
  .flatMap(([name, value]) => [].concat(value).map((one) => [name.toLowerCase(), String(one)]));

// As a router sees it: another spelling of a guarded path is guarded, too, and so is http://host/path.
function routed(sent) {
  const path = sent.replace(/^[^/]+:\/\/[^/]*/, '');
  try {
    return decodeURIComponent(path);
  } catch {
    return path;
  }
}

// The key, bare or quoted (a string of RFC 8941). What begins with a quote and is no such string is malformed.
function keyOf(values) {
  if (values.length === 0) {
    throw new Refusal(400, 'missing', 'send an Idempotency-Key, for example a UUID, and repeat it with each retry');
  }
  let [key] = values;
  if (key.startsWith('"')) {
    const quoted = QUOTED.exec(key);
    key = quoted && key.length <= 257 ? quoted[1].replace(/\\(.)/g, '$1') : '';
  }
  if (values.length > 1 || !/^[ -~]{8,255}$/.test(key)) {
    throw new Refusal(400, 'malformed', 'send one Idempotency-Key of 8 to 255 characters of printable ASCII');
  }
  return key;
}

// Is the answer final, so that the work commits with it? Its own header Semel-Outcome counts before its status.
function completes({ status, headers = [] }) {
  const said = headers.filter(([name]) => name === OUTCOME).map(([, value]) => value.trim().toLowerCase())
    .find((word) => ['completed', 'released', 'unknown'].includes(word));
  return said ? said === 'completed' : (status >= 200 && status < 400) || status === 402 || status === 410;
}
const pause = (ms) => new Promise((done) => { setTimeout(done, ms); });

class Guard {
  constructor(options) {
    Object.assign(this, {
      rule: (method) => (['POST', 'PATCH'].includes(method) ? 'optional' : 'off'),
      anonymous: false, listed: [], ignore: [], answer: '24 hours', keep: '30 days', wait: 5, timeout: 60,
      maxBody: 1 << 20, maxStored: 1 << 20, maxAnswer: 1 << 26,
      log: (text) => console.error(`semel: ${text}`),
    }, options);
    if (!this.pool || typeof this.caller !== 'function') throw new TypeError('semel: pool and caller are needed');
    if (!Array.isArray(this.listed)) throw new TypeError('semel: listed must be a list of names of headers');
    checkPointers(this.ignore);
  }

  // What the rule says of a request, and its keys; null: it is not guarded.
  look(raw) {
    const [path, ...query] = raw.url.split('?');
    const headers = pairsOf(raw.rawHeaders);
    const keys = headers.filter(([name]) => name.toLowerCase() === 'idempotency-key').map(([, value]) => value);
    const how = this.rule(raw.method, routed(path));
    if (how === 'off' || (how === 'optional' && keys.length === 0)) return null;
    return { method: raw.method, path, query: query.join('?'), headers, keys };
  }

  // Of all keys that are times the first one is warned of.
  keyOf(values) {
    const key = keyOf(values);
    if (!this.warned && TIME.test(key)) {
      this.warned = true;
      this.log(`Idempotency-Key "${key}" is a time and nothing else: two requests of one moment would share it; `
        + 'clients must send a UUID');
    }
    return key;
  }

  limit(size) {
    if (size <= this.maxBody) return;
    throw new Refusal(413, 'too-large', `a request with a key has at most ${this.maxBody} bytes`);
  }

  // Begins the key. Gives {answer}, to be sent as it is; or {held}, for a handler that now runs.
  async begin(request, look, body) {
    const key = this.keyOf(look.keys);
    const caller = (await this.caller(request)) ?? ''; // an empty name, as of a header without a value, is nobody's
    if (caller === '' && !this.anonymous) {
      throw new Refusal(401, 'anonymous', 'a key belongs to a caller, and this request has none');
    }
    const scope = caller === '' ? 'anonymous' : `caller:${caller}`;
    if (Buffer.byteLength(scope) > 255 || /\0|\p{Surrogate}/u.test(scope)) {
      throw new Refusal(403, 'caller', 'a caller has a name of at most 248 bytes of UTF-8, without NUL');
    }
    const print = fingerprint({ ...look, body, listed: this.listed, ignore: this.ignore });
    const values = [`${Math.round(this.timeout * 1000)}ms`, scope, key, print, this.answer, this.keep];
    const { row, client } = await this.ask(values, this.wait);
    return row.act === 'run' ? { held: new Held(this, client, row.token, values) } : { answer: this.replay(row) };
  }

  // Asks for the key until the answer is not busy, at most for the wait. Holds no connection while it waits.
  async ask(values, wait) {
    const deadline = performance.now() + wait * 1000;
    for (let ms = 20; ; ms = Math.min(ms * 2, 500)) {
      let row;
      let client;
      try {
        client = await this.pool.connect();
        convertFirst(client);
        client.on('error', ignored); // of a backend that dies while nobody asks it; the next query reports it
        await client.query('BEGIN');
        row = (await client.query(BEGIN, values)).rows[0];
        if (row.act === 'run') return { row, client };
        await client.query('ROLLBACK');
        free(client);
      } catch (error) {
        free(client, error);
        row = undefined;
        this.log(`store unavailable: ${error.message}`);
        if (/^(22|23|42|3)/.test(error.code || '')) throw notStored(true);
      }
      if (row && row.act !== 'busy') return { row };
      if (performance.now() >= deadline) throw row ? refusalOf('busy') : notStored(true);
      await pause(ms * (0.5 + Math.random() / 2));
    }
  }

  replay({ act, status, headers, body }) {
    if (act !== 'replay') throw refusalOf(act);
    const pairs = JSON.parse(headers).map(([name, value]) => [name.toLowerCase(), value]); // they may be in any case
    const kept = pairs.filter(([name]) => body !== null || name !== 'content-encoding'); // no body, no encoding
    return { status, headers: [...kept, ['idempotent-replayed', 'true']], body: body || Buffer.alloc(0) };
  }
}

function ignored() {}

function free(client, error) {
  if (!client) return;
  client.removeListener('error', ignored);
  client.release(error);
}

// A key that is begun, and the transaction of its handler.
class Held {
  constructor(guard, client, token, values) {
    Object.assign(this, { guard, client, token, values, ended: false, lost: false });
    // The server has ended the transaction of a handler that never answers: the pool gets its place back.
    this.gone = (error) => {
      if (this.ended || this.lost) return;
      this.lost = true;
      this.free(error);
      guard.log(`connection lost while a handler ran: ${error.message}; its work was rolled back`);
    };
    // A COMMIT that did not wait for its standby says so in a warning alone (P16).
    this.hear = ({ routine }) => { this.early ||= routine === 'SyncRepWaitForLSN'; };
    client.on('error', this.gone);
    client.on('notice', this.hear);
    // What a handler is given: its queries are part of the transaction, until its answer is there.
    this.db = {
      query: (...given) => {
        if (this.ended || this.lost) throw new Error('semel: the transaction of this request has ended');
        return client.query(...given);
      },
    };
  }

  free(error) {
    this.client.removeListener('error', this.gone);
    this.client.removeListener('notice', this.hear);
    free(this.client, error);
  }

  // Commits or rolls back; gives the answer that may be sent now.
  async settle(given) {
    if (this.ended) return given;
    this.ended = true;
    const { client, guard } = this;
    const answer = { ...given, headers: (given.headers || []).filter(([name]) => name !== OUTCOME) };
    if (this.lost) return completes(given) ? notStored(true).answer : answer; // no COMMIT was sent
    if (!completes(given)) {
      await client.query('ROLLBACK').then(() => this.free(), (error) => this.free(error));
      return answer;
    }
    const kept = answer.body.length <= guard.maxStored ? answer.body : null;
    try {
      await client.query(FINISH, [this.token, answer.status, JSON.stringify(stored(answer.headers)), kept]);
      const done = await client.query('COMMIT');
      if (done.command !== 'COMMIT') throw new Error(`COMMIT was answered by ${done.command}`);
    } catch (error) {
      this.free(error);
      if (this.early) return this.doubtful();
      if (/^2[23]/.test(error.code || '')) {
        guard.log(`the work cannot be committed: ${error.message}; it was rolled back`);
        return new Refusal(500, 'failed', 'nothing was done').answer;
      }
      guard.log(`COMMIT has no answer: ${error.message}; the key is read again`);
      return this.readAgain().catch((refusal) => refusal.answer);
    }
    this.free();
    return this.early ? this.doubtful() : answer;
  }

  // What a repetition reads may still be lost.
  doubtful() {
    this.guard.log('COMMIT did not wait for its synchronous standby, which may not have it');
    return notStored(false).answer;
  }

  async readAgain() {
    const wait = Math.max(this.guard.wait, 5);
    const { row, client } = await this.guard.ask(this.values, wait).catch(() => { throw notStored(false); });
    if (row.act !== 'run') return this.guard.replay(row);
    await client.query('ROLLBACK').then(() => free(client), (error) => free(client, error));
    throw notStored(true);
  }
}

module.exports = { DROPPED, Guard, Refusal, TIME, flat, pairsOf, stored, tooLong };
