/* SPDX-License-Identifier: MIT
 *
 * pg_fail.c: what a SQLSTATE means: what to do, and whom to blame.
 *
 * What it is: one table of codes and of beginnings of codes; the longest that fits decides. Message texts are never
 * looked at, they are translated. A code that is in no line is taken for a failure of this message that may pass:
 * retried up to its cap, it neither stops the route (a user's own RAISE ... ERRCODE would) nor is it dead at once
 * (a new code of the environment would be).
 *
 * Invariants: a text never holds a value (P71): DETAIL is not read, and what is quoted in the primary message of a data
 * exception (class 22) is left out.
 */
#include <stdio.h>

#include "store/pg.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const struct meaning {
    const char *code; /* a SQLSTATE, or its beginning */
    semel_status status;
    enum semel_class cls;
} meanings[] = {
    /* the world */
    {"08", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},    /* connection */
    {"53", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},    /* disk full, out of memory, too many connections */
    {"57", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},    /* shut down, cancelled, statement_timeout */
    {"58", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},    /* I/O */
    {"25006", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT}, /* read-only: a standby, or a server that ran full */
    {"25P03", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT}, /* idle_in_transaction_session_timeout */
    {"40", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},    /* rolled back by the server */
    {"55006", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT}, /* an object is in use */
    {"F0", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},    /* configuration file */
    {"HV", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},    /* a foreign server */
    {"28", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},    /* not let in */
    {"3D", SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT},    /* no such database */
    /* somebody else was there at the same time */
    {"40001", SEMEL_RETRY, SEMEL_CLASS_TRANSIENT}, /* serialization failure */
    {"40P01", SEMEL_RETRY, SEMEL_CLASS_TRANSIENT}, /* deadlock */
    {"55P03", SEMEL_RETRY, SEMEL_CLASS_TRANSIENT}, /* lock_timeout, NOWAIT */
    {"72", SEMEL_RETRY, SEMEL_CLASS_TRANSIENT},    /* snapshot too old */
    /* the message */
    {"20", SEMEL_INVALID, SEMEL_CLASS_PERMANENT},    /* no such case */
    {"21", SEMEL_INVALID, SEMEL_CLASS_PERMANENT},    /* more than one row */
    {"22", SEMEL_INVALID, SEMEL_CLASS_PERMANENT},    /* data */
    {"23", SEMEL_INVALID, SEMEL_CLASS_PERMANENT},    /* constraint */
    {"23503", SEMEL_INVALID, SEMEL_CLASS_TRANSIENT}, /* foreign key: what it points to may come */
    {"44", SEMEL_INVALID, SEMEL_CLASS_PERMANENT},    /* WITH CHECK OPTION */
    {"54", SEMEL_INVALID, SEMEL_CLASS_PERMANENT},    /* too complex, too deep */
    {"P0", SEMEL_INVALID, SEMEL_CLASS_PERMANENT},    /* RAISE */
    /* the handler does what it must not */
    {"25", SEMEL_INVALID, SEMEL_CLASS_PERMANENT}, /* went on after an error */
    {"2D", SEMEL_INVALID, SEMEL_CLASS_PERMANENT}, /* COMMIT in a procedure */
    {"3B", SEMEL_INVALID, SEMEL_CLASS_PERMANENT}, /* no such savepoint */
    {"34", SEMEL_INVALID, SEMEL_CLASS_PERMANENT}, /* no such cursor */
    {"24", SEMEL_INVALID, SEMEL_CLASS_PERMANENT}, /* cursor state */
    /* the setup */
    {"0A", SEMEL_INVALID, SEMEL_CLASS_BROKEN}, /* the server cannot do that */
    {"26", SEMEL_INVALID, SEMEL_CLASS_BROKEN}, /* no such prepared statement */
    {"3F", SEMEL_INVALID, SEMEL_CLASS_BROKEN}, /* no such schema */
    {"42", SEMEL_INVALID, SEMEL_CLASS_BROKEN}, /* no such table, no privilege, syntax */
    {"55", SEMEL_INVALID, SEMEL_CLASS_BROKEN}, /* an object is not fit for that */
    {"XX", SEMEL_INVALID, SEMEL_CLASS_BROKEN}, /* internal, damaged data */
};

static const struct meaning *find(const char *code)
{
    static const struct meaning other = {"", SEMEL_INVALID, SEMEL_CLASS_TRANSIENT};
    const struct meaning *best = &other;
    for (size_t i = 0; i < COUNT(meanings); i++) {
        size_t n = strlen(meanings[i].code);
        if (n > strlen(best->code) && strncmp(code, meanings[i].code, n) == 0)
            best = &meanings[i];
    }
    return best;
}

static bool is_code(const char *code)
{
    return code != NULL && strspn(code, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 5 && code[5] == '\0';
}

int semel__pg_code(const char *code)
{
    return is_code(code) ? SEMEL_SQLSTATE(code[0], code[1], code[2], code[3], code[4]) : 0;
}

bool semel__pg_data_fault(const struct semel_error *err)
{
    const int cls = err->code & 0xFFF;
    return cls == SEMEL_SQLSTATE('2', '2', '0', '0', '0') || cls == SEMEL_SQLSTATE('2', '3', '0', '0', '0');
}

semel_status semel__pg_meaning(const char *code, enum semel_class *ret_cls)
{
    const struct meaning *m = find(code);
    *ret_cls = m->cls;
    return m->status;
}

/* ---- the text ------------------------------------------------------------------------------------ */

/* Where a typographic quotation mark begins, as translated messages have them. */
static const char *typographic(const char *message)
{
    static const char *const marks[] = {"\xc2\xab",
                                        "\xc2\xbb",
                                        "\xe2\x80\x98",
                                        "\xe2\x80\x99",
                                        "\xe2\x80\x9a",
                                        "\xe2\x80\x9c",
                                        "\xe2\x80\x9d",
                                        "\xe2\x80\x9e",
                                        "\xe3\x80\x8c",
                                        "'",
                                        "`"};
    const char *first = NULL;
    for (size_t i = 0; i < COUNT(marks); i++) {
        const char *at = strstr(message, marks[i]);
        if (at != NULL && (first == NULL || at < first))
            first = at;
    }
    return first;
}

/* The message of a data exception without what it quotes: from the first quotation mark to the last. */
static void without_values(const char *message, char *out, size_t size)
{
    const char *open = strchr(message, '"'), *close = strrchr(message, '"'), *other = typographic(message);
    struct semel_buf buf;
    semel__buf_init(&buf, size - 1);
    if (other != NULL && (open == NULL || other < open)) {
        semel__buf_add(&buf, message, (size_t)(other - message));
        semel__buf_addz(&buf, "...");
    } else if (open != NULL) {
        semel__buf_add(&buf, message, (size_t)(open - message));
        semel__buf_addz(&buf, "\"...\"");
        semel__buf_addz(&buf, close > open ? close + 1 : "");
    } else {
        semel__buf_addz(&buf, message);
    }
    semel__str_show(out, size, semel__buf_str(&buf));
    semel__buf_done(&buf);
}

static void set_text(const PGresult *result, const char *code, const char *doing, semel_status status,
                     enum semel_class cls, struct semel_error *err)
{
    const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
    const char *constraint = PQresultErrorField(result, PG_DIAG_CONSTRAINT_NAME);
    char shown[160] = "no message", name[72] = "";
    if (message != NULL && strncmp(code, "22", 2) == 0)
        without_values(message, shown, sizeof(shown));
    else if (message != NULL)
        semel__str_show(shown, sizeof(shown), semel__str(message));
    if (constraint != NULL)
        semel__str_show(name, sizeof(name), semel__str(constraint));
    bool named = name[0] != '\0' && strstr(shown, name) == NULL;
    semel__fail(err, status, cls, "%s: %s: %s%s%s", doing, code, shown, named ? ", constraint " : "",
                named ? name : "");
    if (err != NULL)
        err->code = semel__pg_code(code);
}

/* A server that says FATAL closes the connection behind it. */
static bool fatal(const PGresult *result)
{
    const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);
    return severity != NULL && (strcmp(severity, "FATAL") == 0 || strcmp(severity, "PANIC") == 0);
}

semel_status semel__pg_lost(PGconn *conn, const char *doing, struct semel_error *err)
{
    const char *message = conn != NULL ? PQerrorMessage(conn) : "";
    char shown[160];
    semel__str_show(shown, sizeof(shown), (struct semel_str){message, strcspn(message, "\n")});
    return semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, "%s: the connection to the server is lost%s%s",
                       doing, shown[0] != '\0' ? ": " : "", shown);
}

semel_status semel__pg_fail(struct pg_conn *conn, const struct pg_result *result, const char *doing,
                            struct semel_error *err)
{
    const char *code = result != NULL ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;
    if (!is_code(code)) {
        if (conn == NULL || PQstatus(conn) != CONNECTION_OK)
            return semel__pg_lost(conn, doing, err);
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s: libpq refused the statement", doing);
    }
    const struct meaning *m = find(code);
    semel_status status = fatal(result) ? SEMEL_CLOSED : m->status;
    set_text(result, code, doing, status, status == SEMEL_CLOSED ? SEMEL_CLASS_ENVIRONMENT : m->cls, err);
    return status;
}

/* Two claims of the same moment may draw one token: then one of them draws again. */
static bool token_is_taken(const PGresult *result)
{
    const char *constraint = PQresultErrorField(result, PG_DIAG_CONSTRAINT_NAME);
    return constraint != NULL && strcmp(constraint, "inbox_token") == 0;
}

/* Some codes mean something else when the statement is ours, or there is more to say. */
static void rejudge(const struct pg_store *d, const PGresult *result, const char *doing, struct semel_error *why)
{
    bool again;
    switch (why->code) {
    case SEMEL_SQLSTATE('2', '5', 'P', '0', '2'):
        semel__fail(why, SEMEL_INVALID, SEMEL_CLASS_PERMANENT,
                    "%s: 25P02: a statement failed before, and whoever sent it went on", doing);
        why->code = SEMEL_SQLSTATE('2', '5', 'P', '0', '2');
        break;
    case SEMEL_SQLSTATE('2', '3', '5', '0', '5'): /* the winner of the race is not in our snapshot (P13) */
        again = d->sql.strict || token_is_taken(result);
        why->status = again ? SEMEL_RETRY : SEMEL_INVALID;
        why->cls = again ? SEMEL_CLASS_TRANSIENT : SEMEL_CLASS_BROKEN;
        break;
    case SEMEL_SQLSTATE('4', '2', '5', '0', '1'):
        snprintf(why->text + strlen(why->text), sizeof(why->text) - strlen(why->text),
                 "; sql/postgres/roles.sql grants roles what they need");
        break;
    case SEMEL_SQLSTATE('0', 'A', '0', '0', '0'): /* the schema was changed under prepared statements, */
    case SEMEL_SQLSTATE('2', '6', '0', '0', '0'): /* or somebody dropped them: a new connection has none */
        why->status = d->n_prepared > 0 ? SEMEL_CLOSED : SEMEL_INVALID;
        why->cls = d->n_prepared > 0 ? SEMEL_CLASS_ENVIRONMENT : SEMEL_CLASS_BROKEN;
        break;
    default:
        break;
    }
}

/* Core checks what it gives us: a constraint that is violated all the same was broken by other hands. */
semel_status semel__pg_own_fail(struct pg_store *d, const PGresult *result, const char *doing, struct semel_error *err)
{
    struct semel_error why;
    semel_status status = semel__pg_fail(d->conn, result, doing, &why);
    if (status == SEMEL_INVALID) {
        why.cls = SEMEL_CLASS_BROKEN;
        rejudge(d, result, doing, &why);
    }
    if (err != NULL)
        *err = why;
    return why.status;
}
