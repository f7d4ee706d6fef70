/* SPDX-License-Identifier: MIT
 *
 * batch_consumer.c: a consumer whose effect is in the database. Payments come in batches, some of them twice; each is
 * booked once.
 *
 * usage: batch_consumer FILE.db [< payments]
 *
 * A payment is a line "ID ACCOUNT CENTS". Without any, a batch that is built in is used. Run it again: now
 * everything is a duplicate, and the accounts stay as they are.
 */
#include <semel/semel.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BATCH 500
#define LINE 200

static const char *const built_in[] = {"pay-1 alice 1250", "pay-2 bob 300", "pay-1 alice 1250", "pay-3 alice 75",
                                       "pay-4 bob 0"};

/* Books one payment. It runs inside Semel's transaction: the booking and the record that it happened commit together,
 * or neither does. It may run more than once for one delivery, with the earlier runs rolled back. */
static semel_status book(void *ctx, struct semel *s, const struct semel_msg *msg, int attempt,
                         struct semel_reply *reply, struct semel_error *err)
{
    char line[LINE], *end;
    sqlite3_stmt *stmt = NULL;
    struct sqlite3 *db = semel_native(s); /* asked for each time: after a lost connection it is another one */
    (void)ctx;
    (void)attempt;
    snprintf(line, sizeof line, "%.*s", (int)msg->payload.n, msg->payload.p);
    size_t account = strcspn(line, " ");
    long long cents = strtoll(line + account, &end, 10);
    if (account == 0 || end == line + account || *end != '\0')
        return semel_fail(err, SEMEL_CLASS_PERMANENT, "a payment is \"ACCOUNT CENTS\"");
    if (cents <= 0) /* the business says no: a final answer, which a duplicate will get as well */
        return semel_reply_set(reply, SEMEL_REJECTED, semel_str("nothing to pay"), semel_str(NULL));
    int rc = sqlite3_prepare_v2(db,
                                "INSERT INTO account (name, cents) VALUES (?1, ?2) "
                                "ON CONFLICT (name) DO UPDATE SET cents = cents + ?2",
                                -1, &stmt, NULL);
    if (rc == SQLITE_OK) {
        sqlite3_bind_text(stmt, 1, line, (int)account, SQLITE_TRANSIENT);
        sqlite3_bind_int64(stmt, 2, cents);
        rc = sqlite3_step(stmt);
    }
    semel_status status = rc == SQLITE_DONE ? SEMEL_OK : semel_fail_sqlite(s, rc, err);
    sqlite3_finalize(stmt);
    return status;
}

/* Splits "ID ACCOUNT CENTS" into the message's id and its payload. */
static void fill(struct semel_msg *msg, const char *line)
{
    size_t n = strcspn(line, " ");
    semel_msg_init(msg);
    msg->consumer = semel_str("billing");
    msg->id.p = line;
    msg->id.n = n;
    msg->payload = semel_str(line + n + strspn(line + n, " "));
}

static size_t read_lines(char lines[BATCH][LINE])
{
    size_t n = 0;
    if (!isatty(STDIN_FILENO))
        while (n < BATCH && fgets(lines[n], LINE, stdin) != NULL) {
            lines[n][strcspn(lines[n], "\n")] = '\0';
            n += lines[n][0] != '\0';
        }
    for (size_t i = 0; n == 0 && i < sizeof built_in / sizeof built_in[0]; i++)
        snprintf(lines[i], LINE, "%s", built_in[i]);
    return n > 0 ? n : sizeof built_in / sizeof built_in[0];
}

static int print_account(void *ctx, int n, char **values, char **names)
{
    (void)ctx;
    (void)n;
    (void)names;
    printf("account %s has %s cents\n", values[0], values[1]);
    return 0;
}

static int consume(struct semel *s, struct semel_error *err)
{
    static char lines[BATCH][LINE];
    static struct semel_msg msgs[BATCH];
    static struct semel_verdict verdicts[BATCH];
    size_t n = read_lines(lines);
    for (size_t i = 0; i < n; i++)
        fill(&msgs[i], lines[i]);
    semel_status status = semel_inbox_process(s, msgs, n, book, NULL, verdicts, err);
    for (size_t i = 0; i < n; i++) /* here the broker would be told: ack, or let it come again */
        printf("%.*s: %s, %s, %s\n", (int)msgs[i].id.n, msgs[i].id.p, semel_act_name(verdicts[i].act),
               semel_why_name(verdicts[i].why), semel_row_status_name(verdicts[i].status));
    if (status == SEMEL_OK)
        sqlite3_exec(semel_native(s), "SELECT name, cents FROM account ORDER BY name", print_account, NULL, NULL);
    return status == SEMEL_OK ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct semel *s = NULL;
    struct semel_error err;
    char url[4096];
    if (argc != 2) {
        fprintf(stderr, "usage: batch_consumer FILE.db [< payments]\n");
        return 2;
    }
    snprintf(url, sizeof url, "sqlite:%s", argv[1]);
    if (semel_open(&s, url, SEMEL_CREATE | SEMEL_MIGRATE, &err) != SEMEL_OK) {
        fprintf(stderr, "batch_consumer: %s\n", err.text);
        return 1;
    }
    sqlite3_exec(semel_native(s), "CREATE TABLE IF NOT EXISTS account (name TEXT PRIMARY KEY, cents INTEGER NOT NULL)",
                 NULL, NULL, NULL);
    int code = consume(s, &err);
    if (code != 0)
        fprintf(stderr, "batch_consumer: %s\n", err.text);
    semel_close(s);
    return code;
}
