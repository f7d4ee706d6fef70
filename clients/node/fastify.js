// SPDX-License-Identifier: MIT
// Idempotency keys for Fastify, with pg:
//
//     app.register(idempotency, { pool, caller: (request) => request.user.id });
//
// A guarded handler makes its queries by request.db.query, inside one transaction with its key. Its answer is sent
// after it was stored in that transaction and COMMIT was answered. 2xx, 3xx, 402 and 410 commit; every other answer
// rolls back, and the key is free. A client that hangs up cancels nothing. An answer by reply.hijack() or reply.raw is
// not seen: its work is rolled back after `timeout`.
'use strict';
const { Readable } = require('stream');
const { Guard, Refusal, flat, tooLong } = require('./rules.js');

const STATE = Symbol('semel');

async function collect(stream, check) {
  const chunks = [];
  let size = 0;
  for await (const chunk of stream) {
    chunks.push(Buffer.from(chunk));
    size += chunks[chunks.length - 1].length;
    check(size);
  }
  return Buffer.concat(chunks);
}

// Fastify unwraps a Response behind its hooks.
function unwrap(reply, payload) {
  if (Object.prototype.toString.call(payload) !== '[object Response]') return payload;
  reply.code(payload.status);
  for (const [name, value] of payload.headers) reply.header(name, value);
  return payload.body;
}

// Of an answer: what Fastify has serialized, or a stream, of Node or of the web.
async function bodyOf(payload, most) {
  const check = (size) => {
    if (size > most) throw tooLong(most);
  };
  const streamed = payload && (typeof payload.pipe === 'function' || typeof payload.getReader === 'function');
  const body = streamed ? await collect(payload, check) : Buffer.from(payload || '');
  check(body.length);
  return body;
}

// Sets status and headers; the body is returned.
function dress(reply, { status, headers, body }) {
  for (const name of Object.keys(reply.getHeaders())) reply.removeHeader(name);
  reply.code(status);
  for (const name of new Set(headers.map(([other]) => other))) {
    const values = headers.filter(([other]) => other === name).map(([, value]) => value);
    reply.header(name, values.length > 1 ? values : values[0]);
  }
  return body;
}

async function idempotency(app, options) {
  const guard = new Guard(options);
  app.decorateRequest('db', null);
  app.decorateRequest(STATE, null);

  app.addHook('preParsing', async (request, reply, payload) => {
    const look = guard.look(request.raw);
    if (look === null) return payload;
    try {
      const body = await collect(payload, (size) => guard.limit(size));
      request[STATE] = { look, body };
      const again = Readable.from([body], { objectMode: false });
      again.receivedEncodedLength = body.length;
      return again;
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      return reply.send(dress(reply, error.answer));
    }
  });

  app.addHook('preHandler', async (request, reply) => {
    const state = request[STATE];
    if (!state) return undefined;
    try {
      const { held, answer } = await guard.begin(request, state.look, state.body);
      if (answer) return reply.send(dress(reply, answer));
      state.held = held;
      request.db = held.db;
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      return reply.send(dress(reply, error.answer));
    }
    return undefined;
  });

  app.addHook('onSend', async (request, reply, payload) => {
    const state = request[STATE];
    const held = state && state.held;
    if (!held) return payload;
    // An async handler that does not return its reply sends twice (the second time nothing, or its error): only the
    // first answer counts, and nothing may overtake its COMMIT.
    if (state.settling) return new Promise(() => {});
    if (held.ended) return payload;
    state.settling = true;
    try {
      const body = await bodyOf(unwrap(reply, payload), guard.maxAnswer);
      return dress(reply, await held.settle({ status: reply.statusCode, headers: flat(reply.getHeaders()), body }));
    } catch (error) {
      await held.settle({ status: 500 });
      if (!(error instanceof Refusal)) throw error;
      return dress(reply, error.answer);
    } finally {
      state.settling = false;
    }
  });
}

idempotency[Symbol.for('skip-override')] = true; // its hooks are for the whole application
idempotency[Symbol.for('fastify.display-name')] = 'semel';
module.exports = { idempotency };
