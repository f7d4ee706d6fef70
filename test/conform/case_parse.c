/* SPDX-License-Identifier: MIT
 *
 * case_parse.c: a line of spec/cases.txt, read.
 *
 * Each column is a list of words, `name` or `name=value`. One table a column says which words there are, how the value
 * is read and where it goes. A word that is not in the table is an error, and so is a word that is said twice: a
 * mistyped expectation must not pass for a kept one.
 */
#include "conform/cases.h"

#include <stdlib.h>

typedef bool (*read_fn)(struct semel_str value, int64_t *ret);

struct word {
    const char *name;
    read_fn read; /* NULL: the word stands alone and means 1 */
    size_t offset;
};

/* ---- values ------------------------------------------------------------------------------------------- */

static bool pick(struct semel_str value, const char *const *names, int64_t *ret)
{
    for (int64_t i = 0; names[i] != NULL; i++)
        if (semel__str_eqz(value, names[i])) {
            *ret = i;
            return true;
        }
    return false;
}

#define PICKER(name, ...)                                       \
    static bool name(struct semel_str value, int64_t *ret)      \
    {                                                           \
        static const char *const names[] = {__VA_ARGS__, NULL}; \
        return pick(value, names, ret);                         \
    }

PICKER(read_order, "none", "arrival", "version")
PICKER(read_gap, "dead", "apply", "alert")
PICKER(read_effect, "atomic", "outside", "keyed")
PICKER(read_claimed, "atomic", "outside", "keyed", "old")
PICKER(read_keep, "unfinished", "always", "never")
PICKER(read_timed, "uuidv7", "false", "true", "ulid")
PICKER(read_id, "uuidv7", "ulid", "number")
PICKER(read_bool, "no", "yes")
PICKER(read_token, "own", "stale", "new", "same")
PICKER(read_held, "free", "own", "other", "busy", "gone")
PICKER(read_body, "none", "A", "B", "raw")
PICKER(read_alert, "dead", "conflict", "quarantined", "unknown", "gap", "damaged", "parked_full")

static bool read_number(struct semel_str value, int64_t *ret)
{
    return semel__str_int64(value, ret) && *ret >= 0;
}

/* A number, or none. */
static bool read_version(struct semel_str value, int64_t *ret)
{
    if (!semel__str_eqz(value, "none"))
        return read_number(value, ret);
    *ret = NO_VERSION;
    return true;
}

/* none, N, or N..M: all versions from N to M. */
static bool read_skipped(struct semel_str value, int64_t *ret)
{
    const char *dots = memchr(value.p, '.', value.n);
    struct semel_str low = {value.p, dots != NULL ? (size_t)(dots - value.p) : value.n};
    int64_t from, to;

    *ret = NO_VERSION;
    if (semel__str_eqz(value, "none"))
        return true;
    if (!read_number(low, &from))
        return false;
    to = from;
    if (dots != NULL &&
        (value.n < low.n + 3 || dots[1] != '.' || !read_number((struct semel_str){dots + 2, value.n - low.n - 2}, &to)))
        return false;
    *ret = ((to - from + 1) << 40) + from;
    return to >= from && to - from < SEMEL_SKIPPED_MAX && to < INT64_C(1) << 40;
}

static bool read_first(struct semel_str value, int64_t *ret)
{
    if (!semel__str_eqz(value, "any"))
        return read_number(value, ret);
    *ret = ANY_VERSION;
    return true;
}

/* now, none, + (soon), or a sign, a number and one of s m h d. */
static bool read_time(struct semel_str value, int64_t *ret)
{
    static const struct {
        char unit;
        int64_t seconds;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    int64_t n;

    if (semel__str_eqz(value, "none"))
        *ret = NEVER;
    else if (semel__str_eqz(value, "now"))
        *ret = 0;
    else if (semel__str_eqz(value, "+"))
        *ret = SOON;
    else if (value.n < 3 || (value.p[0] != '+' && value.p[0] != '-'))
        return false;
    else if (!read_number((struct semel_str){value.p + 1, value.n - 2}, &n) || n > 1000000)
        return false;
    else {
        for (size_t i = 0; i < COUNT(units); i++)
            if (value.p[value.n - 1] == units[i].unit) {
                *ret = (value.p[0] == '-' ? -n : n) * units[i].seconds * SECOND;
                return true;
            }
        return false;
    }
    return true;
}

static bool read_state(struct semel_str value, int64_t *ret)
{
    enum semel_row_status state;

    if (!semel__row_status_parse(value, &state) || state == SEMEL_ROW_ABSENT)
        return false;
    *ret = state;
    return true;
}

static bool read_class(struct semel_str value, int64_t *ret)
{
    enum semel_class cls;

    if (!semel__class_parse(value, &cls))
        return false;
    *ret = cls;
    return true;
}

static bool read_result(struct semel_str value, int64_t *ret)
{
    enum semel_result result;

    if (!semel__result_parse(value, &result))
        return false;
    *ret = result;
    return true;
}

static bool read_handler(struct semel_str value, int64_t *ret)
{
    if (semel__str_eqz(value, "environment"))
        *ret = HANDLER_ENVIRONMENT;
    else if (semel__str_eqz(value, "broken"))
        *ret = HANDLER_BROKEN;
    else
        return read_result(value, ret);
    return true;
}

/* STATUS or STATUS:VERSION; waiter is a status here. */
static bool read_other(struct semel_str value, int64_t *ret)
{
    const char *colon = memchr(value.p, ':', value.n);
    struct semel_str name = {value.p, colon != NULL ? (size_t)(colon - value.p) : value.n};
    int64_t state, version = -1;

    if (semel__str_eqz(name, "waiter"))
        state = OTHER_WAITER;
    else if (!read_state(name, &state))
        return false;
    if (colon != NULL && !read_number((struct semel_str){colon + 1, value.n - name.n - 1}, &version))
        return false;
    *ret = (version + 1) * 16 + state;
    return true;
}

/* ---- the words of each column ------------------------------------------------------------------------- */

#define AT(type, field) offsetof(struct type, field)

static const struct word policy_words[] = {
    {"order", read_order, AT(case_policy, order)},
    {"first", read_first, AT(case_policy, first)},
    {"gap", read_gap, AT(case_policy, gap)},
    {"effect", read_effect, AT(case_policy, effect)},
    {"keep", read_keep, AT(case_policy, keep)},
    {"retry", read_number, AT(case_policy, retry)},
    {"permanent", read_number, AT(case_policy, permanent)},
    {"parked_key", read_number, AT(case_policy, parked_key)},
    {"parked_route", read_number, AT(case_policy, parked_route)},
    {"ceiling", read_time, AT(case_policy, ceiling)},
    {"retention", read_time, AT(case_policy, retention)},
    {"timed_ids", read_timed, AT(case_policy, timed_ids)},
    {"one_source", read_bool, AT(case_policy, one_source)},
    {NULL, NULL, 0},
};

static const struct word given_words[] = {
    {"none", NULL, AT(case_given, none)},
    {"row", read_state, AT(case_given, row.state)},
    {"attempts", read_number, AT(case_given, row.attempts)},
    {"before", read_number, AT(case_given, row.before)},
    {"retries", read_number, AT(case_given, row.retries)},
    {"alone", NULL, AT(case_given, row.alone)},
    {"due", read_time, AT(case_given, row.due)},
    {"lease", read_time, AT(case_given, row.lease)},
    {"claimed", read_claimed, AT(case_given, row.claimed)},
    {"class", read_class, AT(case_given, row.cls)},
    {"kept", read_bool, AT(case_given, row.kept)},
    {"outcome", NULL, AT(case_given, row.outcome)},
    {"version", read_version, AT(case_given, row.version)},
    {"time", read_time, AT(case_given, row.time)},
    {"received", read_time, AT(case_given, row.received)},
    {"processed", read_time, AT(case_given, row.processed)},
    {"fp", read_body, AT(case_given, row.body)},
    {"damaged", NULL, AT(case_given, row.damaged)},
    {"last", read_number, AT(case_given, last)},
    {"skipped", read_skipped, AT(case_given, skipped)},
    {"ahead", read_other, AT(case_given, ahead)},
    {"behind", read_other, AT(case_given, behind)},
    {"behind_due", read_time, AT(case_given, behind_due)},
    {"behind_wants", NULL, AT(case_given, behind_wants)},
    {"business", read_held, AT(case_given, business)},
    {"wants", NULL, AT(case_given, wants)},
    {"watermark", read_time, AT(case_given, watermark)},
    {"parked", read_number, AT(case_given, parked)},
    {"parked_elsewhere", read_number, AT(case_given, parked_elsewhere)},
    {"large", read_number, AT(case_given, large)},
    {NULL, NULL, 0},
};

static const struct word when_words[] = {
    {"fp", read_body, AT(case_when, body)},
    {"version", read_version, AT(case_when, version)},
    {"time", read_time, AT(case_when, time)},
    {"handler", read_handler, AT(case_when, handler)},
    {"delivery", read_number, AT(case_when, delivery)},
    {"no_id", NULL, AT(case_when, no_id)},
    {"no_field", NULL, AT(case_when, no_field)},
    {"too_large", NULL, AT(case_when, too_large)},
    {"business", NULL, AT(case_when, business)},
    {"outcome", NULL, AT(case_when, outcome)},
    {"alone", NULL, AT(case_when, alone)},
    {"with", read_number, AT(case_when, with)},
    {"token", read_token, AT(case_when, token)},
    {"result", read_result, AT(case_when, result)},
    {"force", NULL, AT(case_when, force)},
    {"no_reason", NULL, AT(case_when, no_reason)},
    {"no_payload", NULL, AT(case_when, no_payload)},
    {"tombstone", NULL, AT(case_when, tombstone)},
    {"id", read_id, AT(case_when, id)},
    {NULL, NULL, 0},
};

static const struct word becomes_words[] = {
    {"attempts", read_number, AT(case_becomes, row.attempts)},
    {"before", read_number, AT(case_becomes, row.before)},
    {"retries", read_number, AT(case_becomes, row.retries)},
    {"alone", read_bool, AT(case_becomes, row.alone)},
    {"due", read_time, AT(case_becomes, row.due)},
    {"lease", read_time, AT(case_becomes, row.lease)},
    {"token", read_token, AT(case_becomes, row.token)},
    {"class", read_class, AT(case_becomes, row.cls)},
    {"kept", read_bool, AT(case_becomes, row.kept)},
    {"outcome", read_bool, AT(case_becomes, row.outcome)},
    {"time", read_time, AT(case_becomes, row.time)},
    {"last", read_version, AT(case_becomes, last)},
    {"skipped", read_skipped, AT(case_becomes, skipped)},
    {"ahead", read_other, AT(case_becomes, ahead)},
    {"behind", read_other, AT(case_becomes, behind)},
    {"behind_due", read_time, AT(case_becomes, behind_due)},
    {"behind_class", read_class, AT(case_becomes, behind_cls)},
    {"with", read_state, AT(case_becomes, with)},
    {"with_class", read_class, AT(case_becomes, with_cls)},
    {"business", read_held, AT(case_becomes, business)},
    {"wants", read_bool, AT(case_becomes, wants)},
    {"watermark", read_time, AT(case_becomes, watermark)},
    {"conflicts", read_number, AT(case_becomes, conflicts)},
    {"attempt_rows", read_number, AT(case_becomes, attempt_rows)},
    {"audits", read_number, AT(case_becomes, audits)},
    {"alert", read_alert, AT(case_becomes, alert)},
    {"answer", read_bool, AT(case_becomes, answer)},
    {NULL, NULL, 0},
};

/* ---- columns ------------------------------------------------------------------------------------------ */

static char *next_word(char **at)
{
    char *word = *at + strspn(*at, " \t");

    if (*word == '\0')
        return NULL;
    *at = word + strcspn(word, " \t");
    if (**at != '\0')
        *(*at)++ = '\0';
    return word;
}

static bool say(const struct word *words, char *word, void *into, char *complaint, size_t size)
{
    char *equals = strchr(word, '=');
    int64_t *field = NULL;

    if (equals != NULL)
        *equals++ = '\0';
    for (; words->name != NULL && strcmp(words->name, word) != 0; words++)
        ;
    if (words->name != NULL)
        field = (int64_t *)(void *)((char *)into + words->offset);
    if (field == NULL || (words->read == NULL) != (equals == NULL))
        snprintf(complaint, size, "%s%s: no such word in this column", word, equals != NULL ? "=..." : "");
    else if (*field != UNSAID)
        snprintf(complaint, size, "%s is said twice", word);
    else if (words->read == NULL)
        return (*field = 1) == 1;
    else if (!words->read(semel__str(equals), field))
        snprintf(complaint, size, "%s=%s: no such value", word, equals);
    else
        return true;
    return false;
}

static bool say_all(const struct word *words, char *column, void *into, char *complaint, size_t size)
{
    for (char *word; (word = next_word(&column)) != NULL;)
        if (!say(words, word, into, complaint, size))
            return false;
    return true;
}

static bool parse_when(char *column, struct case_when *when, char *complaint, size_t size)
{
    static const char *const ops[] = {"deliver", "claim",   "finish",  "renew", "release", "recover", "take", "work",
                                      "retry",   "discard", "resolve", "purge", "tick",    "set",     NULL};
    char *word = next_word(&column);

    if (word == NULL || !pick(semel__str(word), ops, &when->op)) {
        snprintf(complaint, size, "%s: nothing of that name can happen", word != NULL ? word : "(empty)");
        return false;
    }
    if (when->op == OP_SET)
        return say_all(policy_words, column, &when->set, complaint, size);
    return say_all(when_words, column, when, complaint, size);
}

/* `run WHY [ack|later]`, `ack WHY`, `later WHY`, or one word of done nothing refused fenced. */
static bool parse_verdict(char *column, struct case_verdict *verdict, char *complaint, size_t size)
{
    static const char *const says[] = {"run", "ack", "later", "done", "nothing", "refused", "fenced", NULL};
    char *first = next_word(&column), *why = next_word(&column), *then = next_word(&column);
    enum semel_why parsed;
    enum semel_act act;
    bool ok = first != NULL && pick(semel__str(first), says, &verdict->says) && next_word(&column) == NULL;

    ok = ok && (why != NULL) == (verdict->says <= SAYS_LATER);
    if (ok && why != NULL) {
        ok = semel__why_parse(semel__str(why), &parsed);
        verdict->why = ok ? (int64_t)parsed : UNSAID;
    }
    if (ok && then != NULL) {
        ok = verdict->says == SAYS_RUN && semel__act_parse(semel__str(then), &act) && act != SEMEL_RUN;
        verdict->then = ok ? (int64_t)act : UNSAID;
    }
    if (!ok)
        snprintf(complaint, size, "%s %s %s: not a verdict", first != NULL ? first : "", why != NULL ? why : "",
                 then != NULL ? then : "");
    return ok;
}

static bool parse_becomes(char *column, struct case_becomes *becomes, char *complaint, size_t size)
{
    char *word = next_word(&column);

    if (word != NULL && strcmp(word, "unchanged") == 0)
        becomes->unchanged = 1;
    else if (word != NULL && strcmp(word, "absent") == 0)
        becomes->absent = 1;
    else if (word == NULL || !read_state(semel__str(word), &becomes->row.state)) {
        snprintf(complaint, size, "%s: not a status, nor unchanged, nor absent", word != NULL ? word : "(empty)");
        return false;
    }
    return say_all(becomes_words, column, becomes, complaint, size);
}

/* ---- lines -------------------------------------------------------------------------------------------- */

static void unsay(void *fields, size_t size)
{
    for (size_t i = 0; i < size / sizeof(int64_t); i++)
        ((int64_t *)fields)[i] = UNSAID;
}

static bool parse_name(char *column, struct kase *kase, char *complaint, size_t size)
{
    char *name = next_word(&column);

    if (name == NULL || next_word(&column) != NULL || strlen(name) >= sizeof kase->name ||
        strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != strlen(name)) {
        snprintf(complaint, size, "a name is one sentence_with_underscores");
        return false;
    }
    memcpy(kase->name, name, strlen(name) + 1);
    return true;
}

/* What a word needs beside it. */
static bool fits(const struct kase *kase, char *complaint, size_t size)
{
    const struct case_given *given = &kase->given;
    const char *wrong = NULL;
    bool ends = kase->when.op == OP_FINISH || kase->when.op == OP_RENEW || kase->when.op == OP_RELEASE;

    if ((given->none == 1) == (given->row.state != UNSAID))
        wrong = "given must say either none or row=STATUS";
    else if (kase->when.op == OP_DELIVER && kase->verdict.says == SAYS_RUN && kase->verdict.then == UNSAID)
        wrong = "a delivery that runs says in the end ack or later";
    else if ((kase->when.op == OP_FINISH) != (kase->when.result != UNSAID) || ends != (kase->when.token != UNSAID))
        wrong = "finish needs token= and result=, renew and release need token=, nothing else has them";
    else if (kase->when.handler != UNSAID && kase->when.op != OP_DELIVER && kase->when.op != OP_WORK)
        wrong = "only deliver and work have a handler";
    else if (kase->when.id != UNSAID &&
             (given->none != 1 || (kase->when.id == ID_NUMBER) != (kase->when.time == UNSAID)))
        wrong = "an id is said of a message without a row; one with a time in it needs time=";
    if (wrong != NULL)
        snprintf(complaint, size, "%s", wrong);
    return wrong == NULL;
}

/* The id that the case says: with that time in it, or a number padded with zeros. */
static void make_id(struct kase *kase)
{
    static const char digits[] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    const int64_t ms = kase->when.time != UNSAID ? case_at(kase->when.time) / 1000 : 0;

    snprintf(kase->id, sizeof kase->id, "%s", CASE_ID);
    if (kase->when.id == ID_UUID7)
        snprintf(kase->id, sizeof kase->id, "%08llx-%04llx-7000-8000-00000000006d",
                 (unsigned long long)ms >> 16 & 0xFFFFFFFF, (unsigned long long)ms & 0xFFFF);
    else if (kase->when.id != UNSAID)
        snprintf(kase->id, sizeof kase->id, "%026d", 12345);
    for (int i = 0; kase->when.id == ID_ULID && i < 10; i++)
        kase->id[i] = digits[ms >> 5 * (9 - i) & 31];
}

bool case_parse(char *line, struct kase *ret, bool *ret_is, char *complaint, size_t size)
{
    char *columns[6], *at = line + strspn(line, " \t");
    size_t n = 0;

    complaint[0] = '\0';
    line[strcspn(line, "\r\n")] = '\0';
    *ret_is = *at != '\0' && *at != '#';
    if (!*ret_is)
        return true;
    for (; n < COUNT(columns) && at != NULL; n++) {
        columns[n] = at;
        at = strchr(at, '|');
        if (at != NULL)
            *at++ = '\0';
    }
    if (n != COUNT(columns) || at != NULL) {
        snprintf(complaint, size, "a case has six columns");
        return false;
    }
    unsay(&ret->policy, sizeof ret->policy);
    unsay(&ret->given, sizeof ret->given);
    unsay(&ret->when, sizeof ret->when);
    unsay(&ret->verdict, sizeof ret->verdict);
    unsay(&ret->becomes, sizeof ret->becomes);
    if (!parse_name(columns[0], ret, complaint, size) ||
        !say_all(policy_words, columns[1], &ret->policy, complaint, size) ||
        !say_all(given_words, columns[2], &ret->given, complaint, size) ||
        !parse_when(columns[3], &ret->when, complaint, size) ||
        !parse_verdict(columns[4], &ret->verdict, complaint, size) ||
        !parse_becomes(columns[5], &ret->becomes, complaint, size) || !fits(ret, complaint, size))
        return false;
    make_id(ret);
    return true;
}
