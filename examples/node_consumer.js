// SPDX-License-Identifier: MIT
// A consumer in Node with pg: a delivery is a line of standard input, `ID PAYLOAD`. See examples/README.md.
const { Client } = require('pg')
const readline = require('readline')

const effect = "INSERT INTO ledger SELECT e->>'account', (e->>'cents')::int " +
  "FROM (SELECT convert_from($1, 'UTF8')::jsonb) AS m (e)"

const fail = "SELECT act, why FROM semel.inbox_fail('billing', $1, raw => $2, class => 'permanent', reason => $3)"

// Without an id that can be stored the message is quarantined: kept for a person, and acknowledged.
const known = id => id !== '' && Buffer.byteLength(id) <= 255 && !id.includes('\0') ? id : null

async function handle (db, id, payload) {
  await db.query('BEGIN') // one transaction for the record and the effect
  const begun = await db.query("SELECT act, why FROM semel.inbox_begin('billing', $1, raw => $2)", [id, payload])
  const { act, why } = begun.rows[0]
  if (act === 'run') {
    await db.query(effect, [payload])
    await db.query("SELECT semel.inbox_done('billing', $1)", [id])
  }
  await db.query('COMMIT')
  return { act, why }
}

async function deliver (db, name, payload) {
  const id = known(name)
  const { act, why } = await handle(db, id, payload).catch(async error => {
    if (!/^(22|23|54)/.test(error.code)) throw error // else: bad data, a violated constraint, too deep
    await db.query('ROLLBACK') // the message's fault: the effect is undone, and the failure commits whatever it answers
    return (await db.query(fail, [id, payload, error.message])).rows[0]
  })
  console.log(name, act, why) // run and ack: acknowledge it now; later: let the broker bring it again
}

async function main () {
  const db = new Client({ connectionString: process.env.DATABASE_URL })
  await db.connect()
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const at = line.indexOf(' ')
    const payload = Buffer.from(line.slice(at + 1)) // bytes: what is no JSON is kept, too
    await deliver(db, line.slice(0, at), payload) // an error ends the process, and with it the transaction
  }
  await db.end()
}

main().catch(error => { console.error(error.message); process.exit(1) })
