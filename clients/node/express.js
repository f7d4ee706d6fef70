// SPDX-License-Identifier: MIT
// Idempotency keys for Express, with pg:
//
//     app.use(idempotency({ pool, caller: (req) => req.user.id }));      before the parsers of bodies
//
// A guarded handler makes its queries by req.db.query, inside one transaction with its key. Its answer is held back
// until it is stored in that transaction and COMMIT was answered. 2xx, 3xx, 402 and 410 commit; other answers roll
// back, and the key is free. A client that hangs up cancels nothing.
'use strict';
const { Guard, Refusal, flat, pairsOf, tooLong } = require('./rules.js');

// Reads the whole body and puts it back, so that a parser behind us finds it.
function spool(req, guard) {
  return new Promise((done, fail) => {
    const chunks = [];
    let size = 0;
    const stop = (what, value) => {
      req.removeListener('readable', take);
      req.removeListener('end', take);
      req.removeListener('close', gone);
      what(value);
    };
    const gone = () => stop(done, null);
    function take() {
      for (let chunk = req.read(); chunk !== null; chunk = req.read()) {
        chunks.push(chunk);
        size += chunk.length;
        try {
          guard.limit(size);
        } catch (refusal) {
          stop(fail, refusal);
          return;
        }
      }
      if (!req.complete) return;
      const body = Buffer.concat(chunks);
      req.destroy = () => req; // a client that hangs up does not take the body away from the parser (P99)
      if (size > 0) req.unshift(body); // before 'end' is emitted, which therefore waits
      else req._body = true; // nothing to parse
      stop(done, body);
    }
    req.on('readable', take);
    req.on('end', take);
    req.on('close', gone);
  });
}

// While its answer is held back the handler does not learn that its client has gone: a stream that is piped into the
// answer would stop, and so would sendFile, which asks the socket (P99). What is returned ends that, and tells it.
function hush(res) {
  const { emit, socket } = res;
  const deaf = Object.create(socket, { writable: { value: true }, on: { value: () => deaf } });
  let gone = res.destroyed;
  res.destroyed = false;
  res.socket = deaf;
  res.emit = (name, ...given) => {
    if (name !== 'close') return emit.call(res, name, ...given);
    gone = true;
    res.destroyed = false;
    res._closed = false; // Node's streams ask both
    return false;
  };
  return () => {
    res.emit = emit;
    if (res.socket === deaf) res.socket = socket; // else it was given one meanwhile: of requests in a row the next
    if (!gone) return;
    res.destroyed = true;
    res.emit('close');
  };
}

// Holds the answer back until it is whole, gives it to `settle`, and sends what that returns.
function hold(res, guard, settle) {
  const { writeHead, end, destroy } = res;
  const tell = hush(res);
  const chunks = [];
  let size = 0;
  let whole = false;
  const finish = (answer) => {
    whole = true;
    settle(answer).then((settled) => {
      tell();
      res.destroy = destroy;
      res.writeHead = writeHead; // the others stay: what the handler writes behind its answer is dropped
      send(res, settled, end);
    }).catch((error) => {
      guard.log(`the answer cannot be sent: ${error.message}`);
      destroy.call(res);
    });
  };
  const add = (chunk, encoding) => {
    if (whole || chunk === undefined || chunk === null || typeof chunk === 'function') return;
    chunks.push(Buffer.from(chunk, typeof encoding === 'string' ? encoding : 'utf8'));
    size += chunks[chunks.length - 1].length;
    if (size > guard.maxAnswer) finish(tooLong(guard.maxAnswer).answer);
  };
  res.flushHeaders = () => {};
  res.destroy = (error) => { // by the handler, or by a stream that failed: there will be no answer
    if (whole) return res;
    whole = true;
    settle({ status: 500 }).then(() => {
      tell();
      destroy.call(res, error);
    });
    return res;
  };
  res.writeHead = (status, reason, headers = typeof reason === 'string' ? undefined : reason) => {
    res.statusCode = status;
    const given = Array.isArray(headers) ? pairsOf(headers) : Object.entries(headers || {});
    for (const [name] of given) res.removeHeader(name);
    for (const [name, value] of given) res.appendHeader(name, value); // a list may repeat a name
    return res;
  };
  res.write = (chunk, encoding, callback) => {
    add(chunk, encoding);
    const call = typeof encoding === 'function' ? encoding : callback;
    if (call) process.nextTick(call);
    return true;
  };
  res.end = (chunk, encoding, callback) => {
    if (!(res.statusCode >= 100 && res.statusCode <= 999)) { // as Node does, while the handler can still be told
      throw new RangeError(`Invalid status code: ${res.statusCode}`);
    }
    const call = [chunk, encoding, callback].find((one) => typeof one === 'function');
    if (call) res.once('finish', call);
    add(chunk, encoding);
    if (!whole) finish({ status: res.statusCode, headers: flat(res.getHeaders()), body: Buffer.concat(chunks) });
    return res;
  };
}

function send(res, { status, headers, body }, end = res.end) {
  for (const name of res.getHeaderNames()) res.removeHeader(name);
  const names = new Set(headers.map(([name]) => name));
  for (const name of names) {
    const values = headers.filter(([other]) => other === name).map(([, value]) => value);
    res.setHeader(name, values.length > 1 ? values : values[0]);
  }
  if (![204, 304].includes(status) && !(res.req.method === 'HEAD' && names.has('content-length'))) {
    res.removeHeader('transfer-encoding');
    res.setHeader('content-length', body.length); // the handler's may be that of an error page behind a part
  }
  res.statusCode = status;
  res.statusMessage = undefined; // the one of that status
  end.call(res, body);
}

function idempotency(options) {
  const guard = new Guard(options);
  return async (req, res, next) => {
    try {
      const look = guard.look(Object.create(req, { url: { value: req.originalUrl || req.url } }));
      if (look === null) {
        next();
        return;
      }
      guard.limit(Number(req.headers['content-length'] || 0));
      const empty = req.headers['transfer-encoding'] === undefined && !Number(req.headers['content-length']);
      const body = empty ? Buffer.alloc(0) : await spool(req, guard);
      if (body === null) return; // the client is gone, and nothing was begun
      const { held, answer } = await guard.begin(req, look, body);
      if (held) {
        req.db = held.db;
        hold(res, guard, (whole) => held.settle(whole).finally(() => delete req.destroy));
        next();
        return;
      }
      delete req.destroy;
      send(res, answer);
    } catch (error) {
      delete req.destroy;
      if (error instanceof Refusal) send(res, error.answer);
      else next(error);
    }
  };
}

module.exports = { idempotency };
