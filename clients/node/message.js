// SPDX-License-Identifier: MIT
// A delivery, and the classes of failure: what a consumer's own code sees of the inbox. As in the Python package.
'use strict';
const { createHash } = require('crypto');

// Throw one of these in a handler. The text is kept with the message: no secrets in it.
class Failure extends Error {}
class Transient extends Failure {} // it may work later: tried again with backoff, at last a dead letter
class Permanent extends Failure {} // it never will: a dead letter
class Rejected extends Failure {} // the business refuses it: final, and no dead letter
class Unknown extends Failure {} // the effect, outside this database, may have happened: kept for a person
const WORDS = { transient: Transient, permanent: Permanent, rejected: Rejected, unknown: Unknown };

// Nothing is settled: acknowledge nothing, and let the broker deliver it again.
class StoreError extends Error {}
class Unavailable extends StoreError {} // the server is away, or its answer is: the same call may be repeated
class Unusable extends StoreError {} // somebody must fix the schema, the rights, the settings or the program first

const lone = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
// What has no prototype, and what throws, has no text.
const shown = (value) => { try { return String(value); } catch { return Object.prototype.toString.call(value); } };
// As text that PostgreSQL can keep.
const clean = (value) => shown(value).replace(lone, '\ufffd').replace(/\0/g, '\ufffd');
// What holds U+FFFD was no UTF-8: another id may have become the same text.
const storable = (text) => text === clean(text) && /^[^\ufffd]+$/.test(text) && Buffer.byteLength(text) <= 255;
const cut = (text) => Buffer.from(clean(text)).subarray(0, 255).toString().replace(/\ufffd+$/, '');
const given = (value) => value !== undefined && value !== null;
// An id or key as text. One of another type is a mistake of the program: nothing is recorded.
function asText(name, value) {
  if (!given(value)) return null;
  // A number that is rounded is no name: its neighbours have the same text. Such a text is not storable.
  if (typeof value === 'number' && !(Math.abs(value) <= Number.MAX_SAFE_INTEGER)) return `${value}\ufffd`;
  if (['string', 'number', 'bigint'].includes(typeof value)) return String(value);
  const type = Object.prototype.toString.call(value).slice(8, -1);
  throw new TypeError(`semel: ${name} is of type ${type}; it must be a string, number or bigint (decode bytes first)`);
}
const MOMENT = new RegExp('^(\\d{4}-\\d\\d-\\d\\d)(?:[Tt ](\\d\\d:\\d\\d)(:\\d\\d)?(\\.\\d+)?)?'
  + ' ?(?:[Zz]|([+-]\\d\\d)(?::?(\\d\\d))?)?$'); // as in ISO 8601
// A time, in UTC; empty where it is none that can be stored.
function moment(value) {
  if (typeof value !== 'string' && !(value instanceof Date)) {
    throw new TypeError(`semel: time is of type ${typeof value}; it must be a Date or a string`);
  }
  const found = MOMENT.exec(typeof value === 'string' ? value.trim() : value.toJSON()) || [];
  const [, day, clock = '00:00', second = ':00', fraction = '.0', hours = '+00', minutes = '00'] = found;
  const [local, time] = ['Z', `${hours}:${minutes}`].map((zone) => new Date(`${day}T${clock}${second}${zone}`));
  if (Number.isNaN(Number(local) + Number(time)) || !local.toISOString().startsWith(day)) return ''; // as 30 February
  const said = time.toISOString().replace('.000Z', `${fraction.slice(0, 7)}Z`);
  return said >= '0001' && said <= '9999-12-31T00:00:00.0Z' ? said : '';
}
const inHex = (value) => (given(value) ? `\\x${Buffer.from(value).toString('hex')}` : null); // as bytea is written

// To JSON or from it. What cannot be is a permanent failure, or the program's mistake.
function converted(what, way, Mistake = Permanent) {
  try {
    return way();
  } catch (error) {
    throw new Mistake(`${what} is no JSON: ${error.message}`);
  }
}

// What a handler has returned, as JSON; null where that is nothing.
function written(outcome) {
  const plain = (_, value) => (typeof value === 'bigint' ? String(value) : value);
  return given(outcome) ? converted('the outcome', () => JSON.stringify(outcome, plain) || null) : null;
}

class Message {
  constructor(fields) {
    Object.assign(this, { source: '', headers: {}, attempt: 0 }, fields);
  }

  get raw() {
    const body = this.body ?? '';
    const plain = typeof body === 'string' || body instanceof Uint8Array;
    return converted('semel: the body', () => Buffer.from(plain ? body : JSON.stringify(body)), TypeError);
  }

  // The body, parsed. What is no JSON is a permanent failure.
  json() {
    return converted('the payload', () => JSON.parse(this.raw.toString()));
  }

  // 64 hexadecimal digits for the Idempotency-Key of an outside call: semel.step_key, the same for ever.
  // `semel inbox show` has that of the step 'effect'; who makes several calls names a step for each.
  key(step = 'effect') {
    const hash = createHash('sha256');
    for (const part of [this.consumer, this.source, String(this.id), step]) {
      hash.update(Buffer.byteLength(part).toString(16).padStart(16, '0'), 'hex').update(part); // 8 bytes of its size
    }
    return hash.digest('hex');
  }

  // Those of semel.inbox_begin. The body is always given, so that a failure keeps it. What has an id or a key that
  // cannot be stored has none, and is quarantined; so is one with such a source or time.
  arguments() {
    const [id, orderKey, businessKey] = ['id', 'orderKey', 'businessKey'].map((name) => asText(name, this[name]));
    const source = asText('source', this.source) || '';
    const time = given(this.time) ? moment(this.time) : null;
    const version = asText('version', this.version);
    const headers = Object.fromEntries(Object.entries(this.headers || {}).map((pair) => pair.map(clean)));
    delete headers.semel_tombstone;
    if (!given(this.body)) headers.semel_tombstone = 'true';
    const size = JSON.stringify(headers).length;
    const refused = { ...(size > 1 << 17 ? {} : headers), semel_refused_id: clean(id).slice(0, 255) };
    const type = given(this.type) ? cut(this.type) : null;
    const all = { source: cut(source), raw: inHex(this.raw), message_id: null, type, headers: refused };
    if (![id, orderKey, businessKey, source || null].every((text) => text === null || storable(text))
        || (version !== null && !(/^\d{1,19}$/.test(version) && BigInt(version) < (1n << 63n) - 1n))
        || time === '' || size > 1 << 18) return all;
    return {
      ...all, message_id: id, headers: Object.keys(headers).length > 0 ? headers : null, version,
      order_key: orderKey, business_key: businessKey, fingerprint: inHex(this.fingerprint), message_time: time,
    };
  }
}

module.exports = { Failure, Message, Permanent, Rejected, StoreError, Transient, Unavailable, Unknown, Unusable, WORDS,
  clean, moment, written };
