// SPDX-License-Identifier: MIT
// A consumer of RabbitMQ with amqplib: DATABASE_URL=postgres://... AMQP_URL=amqp://... node rabbitmq_consumer.js QUEUE
//
// Each message books one payment and sends one event, once: through copies, poison, and the death of this process, of
// the database and of the broker. What fails is kept in the database with its payload, and run again by inbox.work().
'use strict';
const amqp = require('amqplib');
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

// Acknowledges what is committed. What is not comes again, after a pause.
async function settle(channel, { fields, properties, content }) {
  const { messageId: id, headers, type } = properties;
  const answer = await inbox.deliver({ id, headers, type, body: content }).catch((error) => {
    if (!(error instanceof Unavailable)) throw error;
    console.error(`store unavailable: ${error.message}`);
    return { acknowledge: false };
  });
  if (!answer.acknowledge) await pause(1000);
  try {
    if (answer.acknowledge) channel.ack({ fields });
    else channel.nack({ fields });
  } catch (error) {
    console.error(`not acknowledged: ${error.message}`); // the channel is closed, and the broker delivers it again
  }
}

// Returns when the connection is gone.
async function consume(queue) {
  const connection = await amqp.connect(process.env.AMQP_URL);
  const closed = new Promise((done) => { connection.on('close', done); });
  connection.on('error', (error) => console.error(`broker: ${error.message}`));
  const channel = await connection.createChannel();
  channel.on('error', (error) => console.error(`channel: ${error.message}`));
  channel.on('close', () => connection.close().catch(() => {})); // nothing comes without it, and the loop begins again
  await channel.prefetch(50);
  await channel.consume(queue, (message) => {
    if (message) settle(channel, message).catch(stop);
    else connection.close().catch(() => {}); // the queue was deleted
  });
  await closed;
}

// What nobody can record ends the process; its supervisor starts it again.
function stop(error) {
  console.error(error);
  process.exit(1);
}

async function main() {
  inbox.work().catch(stop);
  for (;;) {
    await consume(process.argv[2]).catch((error) => console.error(`broker unavailable: ${error.message}`));
    await pause(1000);
  }
}

main();
