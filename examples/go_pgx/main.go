// SPDX-License-Identifier: MIT

// A consumer in Go with pgx: a delivery is a line of standard input, `ID PAYLOAD`. See examples/README.md.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const begin = "SELECT act, why FROM semel.inbox_begin('billing', $1::text, raw => $2)"
const effect = `INSERT INTO ledger SELECT e->>'account', (e->>'cents')::int
FROM (SELECT convert_from($1::bytea, 'UTF8')::jsonb) AS m (e)`
const done = "SELECT semel.inbox_done('billing', $1::text)"
const fail = `SELECT act, why
FROM semel.inbox_fail('billing', $1::text, raw => $2, class => 'permanent', reason => $3)`

// Without an id that can be stored the message is quarantined: kept for a person, and acknowledged.
func known(id string) *string {
	if id == "" || len(id) > 255 || strings.Contains(id, "\x00") || !utf8.ValidString(id) {
		return nil
	}
	return &id
}

// deliver commits the record of the message together with its effect, or with its failure. What it returns is durable.
// The payload is bytes: what is no JSON is kept, too.
func deliver(ctx context.Context, db *pgxpool.Pool, id *string, payload []byte) (act, why string, err error) {
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, begin, id, payload).Scan(&act, &why); err != nil || act != "run" {
			return err
		}
		failed := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { // a savepoint: a failure undoes the effect alone
			_, err := tx.Exec(ctx, effect, payload)
			return err
		})
		var bad *pgconn.PgError
		if errors.As(failed, &bad) && strings.Contains("22 23 54", bad.Code[:2]) { // data, constraint, depth: its fault
			return tx.QueryRow(ctx, fail, id, payload, bad.Message).Scan(&act, &why)
		}
		if failed == nil {
			_, failed = tx.Exec(ctx, done, id)
		}
		return failed
	})
	return
}

func main() {
	ctx := context.Background()
	db, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 4<<20) // a line that is longer ends the program
	for err == nil && lines.Scan() {
		var act, why string
		id, payload, _ := strings.Cut(lines.Text(), " ")
		if act, why, err = deliver(ctx, db, known(id), []byte(payload)); err == nil {
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
