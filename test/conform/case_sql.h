/* SPDX-License-Identifier: MIT
 *
 * case_sql.h: a case through SQL functions: what the extension of SQLite and the functions of PostgreSQL have in
 * common, which is all but the words of the two and the way to say them.
 *
 * A delivery is begin, and then done or fail; where it runs behind a claim, it is claim, and then finish or release.
 * The world's failure is a rollback, or a release. Every second case has its fail in a transaction of its own, after
 * the one that began was rolled back.
 *
 * What the SQL surface has no words for is left out, and an account says what and how many. Alerts are not compared:
 * SQL raises none.
 */
#ifndef SEMEL_CONFORM_CASE_SQL_H
#define SEMEL_CONFORM_CASE_SQL_H

#include "conform/cases.h"

#define SQL_TAKEN 8

struct sql_words;

struct sql_client {
    struct engine *engine;
    const struct sql_words *words;
    void *conn;
    char outcome[64]; /* what the last answer told a duplicate */
};

struct sql_answer {
    enum semel_act act;
    enum semel_why why;
    int64_t attempt, token;
};

struct sql_taken {
    int64_t token, attempt;
    bool ours;
};

/* What fails is told to the engine's finding. */
struct sql_words {
    const char *begin; /* a transaction */
    void (*exec)(struct sql_client *client, const char *sql);
    /* In the open transaction: begin, or claim; done; failed (false: the answer was none). */
    struct sql_answer (*ask)(struct sql_client *client, bool claim);
    void (*done)(struct sql_client *client, const char *outcome);
    bool (*failed)(struct sql_client *client, const char *cls, enum semel_act *ret_act,
                   enum semel_row_status *ret_state);
    /* In a transaction of their own. end: finish, renew or release: SAYS_DONE, SAYS_FENCED, or SAYS_REFUSED where the
     * transaction could not commit. tick: whether anything was done. */
    int64_t (*end)(struct sql_client *client, enum case_op op, int64_t token, const char *result, const char *outcome);
    int (*take)(struct sql_client *client, struct sql_taken taken[SQL_TAKEN]);
    bool (*tick)(struct sql_client *client);
    bool (*set)(struct sql_client *client, const char *settings);  /* false: refused by what is stored */
    void (*plant_stale)(struct sql_client *client, int64_t token); /* as a claim of the message that ran out */
};

void case_sql_happen(struct sql_client *client);

/* ---- what is left out ----------------------------------------------------------------------------- */

enum sql_absence {
    ABSENT_OPERATOR,
    ABSENT_BATCH,
    ABSENT_DEFECT,
    ABSENT_POSITION,
    ABSENT_OUTCOME,
    ABSENT_EVIDENCE, /* from here on: not the case, but a part of what it becomes */
    ABSENT_TOGETHER,
    ABSENT_COUNT
};

struct sql_account {
    int expected[ABSENT_COUNT], found[ABSENT_COUNT];
};

/* The case without what the client cannot tell; false: it is left out. */
bool case_sql_pare(const struct kase *kase, struct sql_account *account, struct kase *ret_pared);
/* Prints it. false: others were left out than must be. */
bool case_sql_account(const struct sql_account *account);

#endif
