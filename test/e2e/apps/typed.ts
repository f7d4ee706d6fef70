// SPDX-License-Identifier: MIT
// What the types of clients/node allow and refuse; test_inbox_node.py has tsc look at it.
import { Pool } from 'pg';
import { Answer, Inbox, Outbox, Rejected } from 'semel';

const pool = new Pool();
const payments = new Outbox('payment');
const inbox = new Inbox('billing', pool, async (tx, message) => {
  if (message.json().account === 'closed') throw new Rejected('closed');
  await tx.query('INSERT INTO ledger VALUES ($1)', [message.id]);
  const id: string = await payments.put(tx, 7, 'paid', { cents: 5 }, { lock: true });
  return { id };
}, { permanent: [RangeError] });
const answer: Promise<Answer> = inbox.deliver({ id: 'evt-1', body: Buffer.from('{}') });
new Inbox('mail', pool, (message) => message.key() + message.key('send'), { effect: 'keyed' });
new Inbox('bulk', pool, async (tx, messages) => { await tx.query('', [messages.length]); }, { batch: true });
pool.connect().then((client) => inbox.put(client, { id: 1, body: null }, new Date()));
inbox.work({ signal: new AbortController().signal }).then(() => answer);
// @ts-expect-error: a body is always given
inbox.deliver({ id: 'evt-1' });
// @ts-expect-error: no such effect
new Inbox('mail', pool, () => null, { effect: 'atomically' });
