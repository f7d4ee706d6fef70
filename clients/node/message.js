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

// Nothing is settled: acknowledge nothing, and let the broker deliver it again.
class StoreError extends Error {}
class Unavailable extends StoreError {} // the server is away, or its answer is: the same call may be repeated
class Unusable extends StoreError {} // somebody must fix the schema, the rights, the settings or the program first

const lone = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
// As text that PostgreSQL can keep.
const clean = (value) => String(value).replace(lone, '\ufffd').replace(/\0/g, '\ufffd');
const storable = (text) => text === clean(text) && text !== '' && Buffer.byteLength(text) <= 255;
const given = (value) => value !== undefined && value !== null;

class Message {
  constructor(fields) {
    Object.assign(this, { source: '', headers: {}, attempt: 0 }, fields);
  }

  get raw() {
    const { body } = this;
    if (!given(body)) return Buffer.alloc(0);
    if (body instanceof Uint8Array) return Buffer.from(body);
    return Buffer.from(typeof body === 'string' ? body : JSON.stringify(body));
  }

  // The body, parsed. What is no JSON is a permanent failure.
  json() {
    try {
      return JSON.parse(this.raw.toString());
    } catch (error) {
      throw new Permanent(`the payload is no JSON: ${error.message}`);
    }
  }

  // 64 hexadecimal digits for the Idempotency-Key of an outside call: semel.step_key, the same for ever.
  key(step) {
    const hash = createHash('sha256');
    for (const part of [this.consumer, this.source, String(this.id), step]) {
      const size = Buffer.alloc(8);
      size.writeBigUInt64BE(BigInt(Buffer.byteLength(part)));
      hash.update(size).update(part);
    }
    return hash.digest('hex');
  }

  // Those of semel.inbox_begin that are given. The body always is, so that a failure keeps it. What has an id or a key
  // that cannot be stored has none, and is quarantined.
  arguments(inJson = false) {
    let id = given(this.id) ? String(this.id) : null;
    let headers = {};
    for (const [name, value] of Object.entries(this.headers || {})) headers[clean(name)] = clean(value);
    delete headers.semel_tombstone;
    if (!given(this.body)) headers.semel_tombstone = 'true';
    let named = {
      type: given(this.type) ? Buffer.from(clean(this.type)).subarray(0, 255).toString().replace(/\ufffd+$/, '') : null,
      order_key: this.orderKey, version: given(this.version) ? String(this.version) : null,
      business_key: this.businessKey, fingerprint: this.fingerprint, message_time: this.time,
    };
    if (![id, this.orderKey, this.businessKey].every((text) => !given(text) || storable(text))
        || (named.version !== null && !(/^\d{1,19}$/.test(named.version) && BigInt(named.version) < (1n << 63n) - 1n))
        || JSON.stringify(headers).length > 1 << 18) {
      [id, named, headers] = [null, {}, { semel_refused_id: clean(id).slice(0, 255) }];
    }
    const bytes = (value) => (inJson && given(value) ? `\\x${Buffer.from(value).toString('hex')}` : value);
    const all = {
      source: this.source, ...named, raw: bytes(this.raw), fingerprint: bytes(named.fingerprint),
      headers: Object.keys(headers).length === 0 ? null : inJson ? headers : JSON.stringify(headers),
    };
    return { message_id: id, ...Object.fromEntries(Object.entries(all).filter(([, value]) => given(value))) };
  }
}

module.exports = {
  Failure, Message, Permanent, Rejected, StoreError, Transient, Unavailable, Unknown, Unusable, clean,
};
