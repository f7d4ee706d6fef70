// SPDX-License-Identifier: MIT

// A consumer in Go with lib/pq: a delivery is a line of standard input, `ID PAYLOAD`. See examples/README.md.
package main

import (
	"bufio"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/lib/pq"
)

const begin = "SELECT act, why FROM semel.inbox_begin('billing', $1, raw => $2)"
const effect = `INSERT INTO ledger SELECT e->>'account', (e->>'cents')::int
FROM (SELECT convert_from($1, 'UTF8')::jsonb) AS m (e)`

const fail = "SELECT act, why FROM semel.inbox_fail('billing', $1, raw => $2, class => 'permanent', reason => $3)"

// Without an id that can be stored the message is quarantined: kept for a person, and acknowledged.
func known(id string) *string {
	if id == "" || len(id) > 255 || strings.Contains(id, "\x00") || !utf8.ValidString(id) {
		return nil
	}
	return &id
}

// The payload is bytes: what is no JSON is kept, too.
func handle(db *sql.DB, id *string, payload []byte) (act, why string, err error) {
	tx, err := db.Begin() // one transaction for the record and the effect
	if err != nil {
		return
	}
	defer tx.Rollback() // of what was not committed
	err = tx.QueryRow(begin, id, payload).Scan(&act, &why)
	if err == nil && act == "run" {
		_, err = tx.Exec(effect, payload)
		if err == nil {
			_, err = tx.Exec("SELECT semel.inbox_done('billing', $1)", id)
		}
	}
	if err == nil {
		err = tx.Commit()
	}
	return
}

func deliver(db *sql.DB, id *string, payload []byte) (act, why string, err error) {
	act, why, err = handle(db, id, payload)
	var bad *pq.Error
	if errors.As(err, &bad) && strings.Contains("22 23 54", string(bad.Code.Class())) {
		// The message's fault (bad data, a violated constraint, too deep): the effect is undone, and the failure
		// commits by itself, whatever it answers.
		err = db.QueryRow(fail, id, payload, bad.Message).Scan(&act, &why)
	}
	return
}

func main() {
	db, err := sql.Open("postgres", os.Getenv("DATABASE_URL"))
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 4<<20) // a line that is longer ends the program
	for err == nil && lines.Scan() {
		var act, why string
		id, payload, _ := strings.Cut(lines.Text(), " ")
		if act, why, err = deliver(db, known(id), []byte(payload)); err == nil {
			fmt.Println(id, act, why) // run and ack: acknowledge it now; later: let the broker bring it again
		}
	}
	if err == nil {
		err = lines.Err()
	}
	if err != nil {
		log.Fatal(err)
	}
}
