// SPDX-License-Identifier: MIT
// What makes an HTTP request the same as another one: docs/idempotency.md has the format, spec/fingerprints.json the
// vectors. The C library and the Python package compute the same bytes.
'use strict';
const { createHash } = require('crypto');

const DEPTH = 64;
class Raw extends Error {} // the body is not what its media type promises: its bytes count as they are

// Bytes are strings of characters up to 255 here, which Node joins and compares without copies.
const lower = (text) => text.replace(/[A-Z]/g, (c) => c.toLowerCase());
const trim = (text) => text.replace(/^[ \t]+/, '').replace(/(?<![ \t])[ \t]+$/, '');

const count = (n) => String.fromCharCode(0, 0, 0, 0, n >>> 24, (n >>> 16) & 255, (n >>> 8) & 255, n & 255);
const field = (value) => count(value.length) + value;
const listOf = (items) => count(items.length) + items.join('');
const pairOf = ([name, value]) => field(name) + field(value);
const byFirst = (a, b) => (a[0] < b[0] ? -1 : Number(a[0] > b[0]));

// ---- JSON: RFC 8785 ----

// The digits without zeros at either end, and the power of ten behind them.
function decimal(text) {
  const [, whole, fraction = '', exponent = '0'] = /^-?(\d+)(?:\.(\d+))?(?:[eE](.+))?$/.exec(text);
  const digits = whole + fraction;
  let from = 0;
  let to = digits.length;
  while (from < to && digits[from] === '0') from++;
  while (to > from && digits[to - 1] === '0') to--;
  return { digits: digits.slice(from, to), power: Number(exponent) - fraction.length + digits.length - to };
}

function number(text) {
  const value = Number(text);
  const written = String(value);
  if (written === text) return text; // as most are sent
  const given = decimal(text);
  if (given.digits === '') return '0';
  if (!Number.isFinite(value) || value === 0 || given.digits.length > 17) throw new Raw();
  const shortest = decimal(written);
  if (shortest.digits !== given.digits || shortest.power !== given.power) throw new Raw();
  return written;
}

// Without escapes a string is its own canonical text: its bytes were UTF-8, and have no control characters.
function string(text) {
  if (!text.includes('\\')) return text.slice(1, -1);
  const value = JSON.parse(text);
  if (value.includes('\0') || /\p{Surrogate}/u.test(value)) throw new Raw();
  return value;
}

// Behind the string that begins there. An expression would use up its stack on a string of megabytes.
function endOf(text, from) {
  for (let quote = text.indexOf('"', from + 1); ; quote = text.indexOf('"', quote + 1)) {
    let first = quote;
    while (text[first - 1] === '\\') first--;
    if ((quote - first) % 2 === 0) return quote + 1;
  }
}

// The next character that says something.
function mark(source) {
  while (' \t\n\r,:'.includes(source.text[source.at])) source.at++;
  return source.text[source.at];
}

// The string, number or word there, as it is written.
const WORD = /[-+.\w]+/y;
function token(source) {
  const from = source.at;
  if (source.text[from] === '"') {
    source.at = endOf(source.text, from);
  } else {
    WORD.lastIndex = from;
    WORD.test(source.text);
    source.at = WORD.lastIndex;
  }
  return source.text.slice(from, source.at);
}

function plain(text) {
  if (text[0] === '"') return text.includes('\\') ? JSON.stringify(string(text)) : text;
  return /^[-\d]/.test(text) ? number(text) : text;
}

// A value of a text that JSON.parse has accepted: an object is a Map, an array an array, all else its canonical text.
function read(source, depth) {
  const first = mark(source);
  if (first !== '{' && first !== '[') return plain(token(source));
  if (depth === DEPTH) throw new Raw();
  const value = first === '{' ? new Map() : [];
  source.at++;
  for (let next = mark(source); next !== '}' && next !== ']'; next = mark(source)) {
    if (first === '[') {
      value.push(read(source, depth + 1));
      continue;
    }
    const name = string(token(source));
    if (value.has(name)) throw new Raw();
    value.set(name, read(source, depth + 1));
  }
  source.at++;
  return value;
}

function write(value) {
  if (Array.isArray(value)) return `[${value.map(write).join(',')}]`;
  if (!(value instanceof Map)) return value;
  const names = [...value.keys()].sort(); // by UTF-16 code units
  return `{${names.map((name) => `${JSON.stringify(name)}:${write(value.get(name))}`).join(',')}}`;
}

// Without what the pointer names: a member goes, an element becomes null.
function ignore(root, pointer) {
  let above;
  let at;
  let value = root;
  for (const escaped of pointer.split('/').slice(1)) {
    above = value;
    at = escaped.replace(/~1/g, '/').replace(/~0/g, '~');
    const there = Array.isArray(value) ? /^(0|[1-9]\d*)$/.test(at) && Number(at) < value.length
      : value instanceof Map && value.has(at);
    if (!there) return root;
    value = Array.isArray(value) ? value[Number(at)] : value.get(at);
  }
  if (above === undefined) return 'null';
  if (Array.isArray(above)) above[Number(at)] = 'null';
  else above.delete(at);
  return root;
}

// What is no pointer would be taken for the whole document, and all requests for one.
function checkPointers(given) {
  const wrong = Array.isArray(given) ? given.find((one) => !/^(\/([^~/]|~[01])*)*$/.test(one)) : given;
  if (wrong === undefined) return;
  throw new TypeError(`semel: ignore must be a list of JSON pointers such as /sent_at: ${JSON.stringify(wrong)}`);
}

function json(body, ignored) {
  const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(body);
  JSON.parse(text);
  const value = ignored.reduce(ignore, read({ text, at: 0 }, 0));
  return field('json') + field(Buffer.from(write(value)).toString('latin1'));
}

// ---- forms and parts ----

function decoded(text) {
  if (/%(?![0-9A-Fa-f]{2})/.test(text)) throw new Raw();
  return text.replace(/\+/g, ' ').replace(/%(..)/g, (_, hex) => String.fromCharCode(parseInt(hex, 16)));
}

function cut(text, mark) {
  const at = text.indexOf(mark);
  return at < 0 ? [text, undefined] : [text.slice(0, at), text.slice(at + mark.length)];
}

function form(body) {
  const pairs = body.toString('latin1').split('&').filter(Boolean).map((pair) => {
    const [name, value = ''] = cut(pair, '=');
    return [decoded(name), decoded(value)];
  });
  return field('form') + listOf(pairs.sort(byFirst).map(pairOf));
}

function boundaryOf(type) {
  for (const parameter of type.split(';').slice(1)) {
    const [name, given] = cut(parameter, '=');
    if (given !== undefined && lower(trim(name)) === 'boundary') {
      const value = /^".*"$/s.test(trim(given)) && trim(given).length > 1 ? trim(given).slice(1, -1) : trim(given);
      if (value.length > 0 && value.length <= 70 && !/["\\]/.test(value)) return value;
      break;
    }
  }
  throw new Raw();
}

// What it is sorted by among the others, and the part.
function part(piece) {
  const headers = [];
  let key = '';
  if (!piece.startsWith('\r\n')) throw new Raw();
  let rest = piece.slice(2);
  while (rest !== '' && rest[0] !== '\r') {
    const [line, behind] = cut(rest, '\r\n');
    const [name, value] = cut(line, ':');
    if (behind === undefined || value === undefined || name === '') throw new Raw();
    headers.push([lower(name), trim(value)]);
    if (lower(name) === 'content-disposition') key = trim(value);
    rest = behind;
  }
  if (!rest.startsWith('\r\n')) throw new Raw();
  return [key, listOf(headers.sort(byFirst).map(pairOf)) + field(rest.slice(2))];
}

function multipart(media, type, body) {
  const [first, ...pieces] = `\r\n${body.toString('latin1')}`.split(`\r\n--${boundaryOf(type)}`);
  const last = pieces.pop();
  if (first !== '' || pieces.length === 0 || (last !== '--' && last !== '--\r\n')) throw new Raw();
  const parts = pieces.map(part);
  if (media === 'multipart/form-data') parts.sort(byFirst);
  return field('multipart') + listOf(parts.map(([, content]) => content));
}

function payload(media, type, encoding, body, ignored) {
  if (!['', 'identity'].includes(lower(encoding))) throw new Raw();
  if (media === 'application/json' || (media.endsWith('+json') && media.length > 5)) return json(body, ignored);
  if (media === 'application/x-www-form-urlencoded') return form(body);
  if (media.startsWith('multipart/')) return multipart(media, type, body);
  throw new Raw();
}

// 33 bytes for semel.key_begin. Strings are bytes, as Node gives what was sent (latin1). listed: names of headers that
// count; ignore: JSON pointers to what does not.
function fingerprint({ method, path, query, headers, body, listed = [], ignore: ignored = [] }) {
  checkPointers(ignored);
  const pairs = headers.map(([name, value]) => [lower(name), trim(value)]);
  const valueOf = (name) => (pairs.find(([other]) => other === name) || [name, ''])[1];
  const type = valueOf('content-type');
  const media = lower(trim(type.split(';')[0]));
  const named = [...new Set(listed.map(lower))].sort();
  let out = ['semel-http-1', method, path, query, media].map(field).join('') + count(named.length);
  for (const name of named) {
    const values = pairs.filter(([other]) => other === name).map(([, value]) => field(value));
    out += field(name) + listOf(values);
  }
  try {
    out += payload(media, type, valueOf('content-encoding'), body, ignored);
  } catch (error) {
    if (!(error instanceof Raw || error instanceof SyntaxError || error instanceof TypeError)) throw error;
    out += field('raw') + field(body.toString('latin1'));
  }
  return Buffer.concat([Buffer.from('h'), createHash('sha256').update(out, 'latin1').digest()]);
}

module.exports = { checkPointers, fingerprint };
