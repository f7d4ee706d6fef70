// SPDX-License-Identifier: MIT
// A consumer of Kafka with kafkajs: DATABASE_URL=postgres://... KAFKA=host:port node kafka_consumer.js TOPIC
//
// A batch is one transaction. An offset is committed when every message before it is: booked, a copy, or kept
// in the database with its failure, where inbox.work() runs it again. The id of an event is in its header `id`.
'use strict';
const { Kafka, logLevel } = require('kafkajs');
const { Pool } = require('pg');
const { Inbox, Outbox, Rejected, Unavailable } = require('semel');

const pool = new Pool({ connectionString: process.env.DATABASE_URL });
pool.on('error', (error) => console.error(error.message));
const payments = new Outbox('payment');
const pause = (ms) => new Promise((done) => { setTimeout(done, ms); });

const inbox = new Inbox('billing', pool, async (tx, message) => {
  const order = message.json();
  if (order.account === 'closed') throw new Rejected('the account is closed');
  await tx.query('INSERT INTO ledger VALUES ($1, $2, $3)', [message.id, order.account, order.cents]);
  await payments.put(tx, order.account, 'booked', { cents: order.cents });
}, { permanent: [TypeError] });

function messageOf(topic, { headers, value }) {
  const texts = Object.entries(headers || {}).map(([name, one]) => [name, String([].concat(one)[0])]);
  const { id, ...others } = Object.fromEntries(texts);
  return { id, body: value, headers: others, source: topic };
}

// Returns when all of them are committed.
async function settle(given, heartbeat) {
  for (let messages = given; messages.length > 0;) {
    try {
      const answers = await inbox.deliverMany(messages);
      messages = messages.filter((_, at) => !answers[at].acknowledge);
    } catch (error) {
      if (!(error instanceof Unavailable)) stop(error);
      console.error(`store unavailable: ${error.message}`);
    }
    await heartbeat();
    if (messages.length > 0) await pause(500);
  }
}

async function eachBatch({ batch, resolveOffset, heartbeat, isRunning, isStale, commitOffsetsIfNecessary }) {
  for (let at = 0; at < batch.messages.length && isRunning() && !isStale(); at += 100) {
    const records = batch.messages.slice(at, at + 100);
    await settle(records.map((record) => messageOf(batch.topic, record)), heartbeat);
    resolveOffset(records[records.length - 1].offset);
    await commitOffsetsIfNecessary();
  }
}

// What nobody can record ends the process; its supervisor starts it again.
function stop(error) {
  console.error(error);
  process.exit(1);
}

async function main() {
  inbox.work().catch(stop);
  const kafka = new Kafka({ brokers: [process.env.KAFKA], logLevel: logLevel.ERROR, retry: { retries: 1000 } });
  const consumer = kafka.consumer({ groupId: process.env.GROUP || 'billing' });
  consumer.on(consumer.events.CRASH, ({ payload }) => { if (!payload.restart) stop(payload.error); });
  await consumer.connect();
  await consumer.subscribe({ topics: [process.argv[2]], fromBeginning: true });
  await consumer.run({ eachBatchAutoResolve: false, eachBatch });
}

main().catch(stop);
