/* SPDX-License-Identifier: MIT
 *
 * consumer.c: the table of a consumer's settings; reads, stores and changes them.
 *
 * What it is: `members` has the name, the values and the help of each setting. Reading, writing and documenting use
 * that table and know no setting by its name. What it is not: the meaning of the settings; policy.c has the defaults
 * and the last check.
 *
 * Invariants: a policy leaves this file only after semel__policy_check; its bounds and those of the table are the
 * same (test_consumer tries each). Only members that were set are stored, so that a default can change with the
 * program. The transaction that changes settings reads them again: no change overwrites another.
 *
 * The second half changes settings while rows are stored: which change is refused, and why. `rules` is a table of the
 * changes that would make stored rows mean something else, each with the rows that count. Every other change is
 * allowed: a claim keeps its effect, a stored payload stays until its row is final, and rows without a version run by
 * arrival. Counting, change and audit line are one transaction, and two changes of a consumer wait for each other.
 * Rows are counted only if the change needs it, and never more than COUNT_MAX.
 */
#include "core/consumer.h"

#include <stdio.h>

#include "base/error.h"
#include "base/json_tree.h"
#include "core/transaction.h"

#define SECOND_US INT64_C(1000000)
#define DAY_US (INT64_C(86400) * SECOND_US)
#define SHOWN 41 /* bytes of text from outside in an error, with its NUL */
#define COUNT_MAX 10001
#define WHAT_MAX 512

/* ---- the table ----------------------------------------------------------------------------------------- */

enum kind { WORD, COUNT, TIME, FLAG };

struct member {
    const char *name;
    enum kind kind;
    size_t offset, size;      /* where in the policy; a bool, an int or 64 bits */
    const char *const *words; /* WORD: by value, ended by NULL */
    int64_t low, high;        /* COUNT, TIME */
    const char *none;         /* COUNT, TIME: the word for SEMEL_NONE; NULL: none */
    const char *help;
};

/* NOLINTNEXTLINE(misc-redundant-expression): that they are equal is the point */
_Static_assert(SEMEL_FIRST_VERSION_ANY == SEMEL_NONE, "one word a member stands for one value");

static const char *const effects[] = {
    [SEMEL_EFFECT_ATOMIC] = "atomic", [SEMEL_EFFECT_OUTSIDE] = "outside", [SEMEL_EFFECT_KEYED] = "keyed", NULL};
static const char *const orders[] = {
    [SEMEL_ORDER_NONE] = "none", [SEMEL_ORDER_ARRIVAL] = "arrival", [SEMEL_ORDER_VERSION] = "version", NULL};
static const char *const gaps[] = {
    [SEMEL_GAP_DEAD] = "dead", [SEMEL_GAP_APPLY] = "apply", [SEMEL_GAP_ALERT] = "alert", NULL};
static const char *const keeps[] = {
    [SEMEL_KEEP_UNFINISHED] = "unfinished", [SEMEL_KEEP_ALWAYS] = "always", [SEMEL_KEEP_NEVER] = "never", NULL};

static const char *const timed[] = {[SEMEL_TIMED_UUID7] = "uuidv7",
                                    [SEMEL_TIMED_NONE] = "false",
                                    [SEMEL_TIMED_ALL] = "true",
                                    [SEMEL_TIMED_ULID] = "ulid",
                                    NULL};

#define AT(field) .offset = offsetof(struct semel_policy, field), .size = sizeof(((struct semel_policy *)0)->field)
#define IS_WORD(field, values) .kind = WORD, AT(field), .words = (values)
#define IS_COUNT(field, min, max) .kind = COUNT, AT(field), .low = (min), .high = (max)
#define IS_TIME(field, min, max) .kind = TIME, AT(field), .low = (min), .high = (max)
#define IS_FLAG(field) .kind = FLAG, AT(field)

#define ORDER 1 /* its place in the table, because a message may decide it */

static const struct member members[] = {
    {"effect", IS_WORD(effect, effects),
     .help =
         "where the effect is: in the transaction of this database, outside, or outside and safe to repeat by its step "
         "key"},
    [ORDER] = {"order", IS_WORD(order, orders),
               .help = "the order within a key; not set: the first message with an order key decides it"},
    {"first_version", IS_COUNT(first_version, 0, INT64_MAX), .none = "any",
     .help = "the version that a key starts with"},
    {"on_gap", IS_WORD(on_gap, gaps),
     .help = "what happens to a message when the version before it does not come in time"},
    {"gap_timeout", IS_TIME(gap_timeout_us, 1000, 30 * DAY_US), .help = "how long a missing version is waited for"},
    {"retry_max", IS_COUNT(retry_max, 1, 1000),
     .help = "attempts in all before a transient failure makes a dead letter"},
    {"permanent_max", IS_COUNT(permanent_max, 1, 1000),
     .help = "attempts in all before a permanent failure makes a dead letter"},
    {"retry_first", IS_TIME(retry_first_us, 1000, DAY_US),
     .help = "the longest pause before the second attempt; it doubles with each one"},
    {"retry_ceiling", IS_TIME(retry_ceiling_us, 1000, 30 * DAY_US),
     .help = "the longest pause between attempts; not below retry_first"},
    {"lease", IS_TIME(lease_us, 1000, DAY_US), .help = "how long a claim lasts unless it is renewed"},
    {"parked_key_max", IS_COUNT(parked_key_max, 1, 100000), .help = "how many messages of one order key may wait"},
    {"parked_consumer_max", IS_COUNT(parked_consumer_max, 1, 1000000),
     .help = "how many messages of the consumer may wait"},
    {"keep_payload", IS_WORD(keep, keeps),
     .help = "which messages have their payload kept; never only where there is no order and the effect is atomic"},
    {"payload_max", IS_COUNT(payload_max, 1, SEMEL_PAYLOAD_HARD_MAX),
     .help = "the largest payload in bytes; 100 larger messages are kept for an operator, then the source pauses"},
    {"retention", IS_TIME(retention_us, SEMEL_HORIZON_MIN_US, 36500 * DAY_US),
     .help = "how long a finished message is remembered; longer than a duplicate of it can come"},
    {"business_retention", IS_TIME(business_retention_us, 1000, 36500 * DAY_US), .none = "forever",
     .help = "how long a business key is held after its message ended"},
    {"timed_ids", IS_WORD(timed_ids, timed),
     .help = "which ids tell when a message was made: UUIDv7, none (false), UUIDv7 and ULID (true; in a route's file "
             "every message must tell it, by its id or ce_time), or both among other ids (ulid)"},
    {"one_source", IS_FLAG(one_source), .help = "ids are unique across sources: the source is not part of the key"},
};

#define MEMBERS (sizeof members / sizeof members[0])
#define ALL_SAID ((UINT32_C(1) << MEMBERS) - 1)
#define ORDER_SAID (UINT32_C(1) << ORDER)
#define EFFECT_SAID UINT32_C(1) /* the first */

/* Settings, and a bit for each that was set: the others have their defaults. */
struct said {
    struct semel_policy policy;
    uint32_t members;
};

static int64_t get(const struct semel_policy *policy, const struct member *m)
{
    const char *at = (const char *)policy + m->offset;
    int64_t wide = 0;
    int narrow = 0;
    bool flag = false;

    if (m->size == sizeof flag)
        memcpy(&flag, at, sizeof flag);
    else if (m->size == sizeof narrow)
        memcpy(&narrow, at, sizeof narrow);
    else
        memcpy(&wide, at, sizeof wide);
    return flag + narrow + wide;
}

static void set(struct semel_policy *policy, const struct member *m, int64_t value)
{
    char *at = (char *)policy + m->offset;
    const int narrow = (int)value;
    const bool flag = value != 0;

    if (m->size == sizeof flag)
        memcpy(at, &flag, sizeof flag);
    else if (m->size == sizeof narrow)
        memcpy(at, &narrow, sizeof narrow);
    else
        memcpy(at, &value, sizeof value);
}

/* ---- as text ------------------------------------------------------------------------------------------- */

/* A word that JSON itself knows. */
static bool is_flag(const char *word)
{
    return strcmp(word, "true") == 0 || strcmp(word, "false") == 0;
}

/* The value as text; true: JSON needs quotes around it. */
static bool value_text(const struct member *m, int64_t value, char *out, size_t size)
{
    switch (m->kind) {
    case WORD:
        snprintf(out, size, "%s", m->words[value]);
        return !is_flag(m->words[value]);
    case FLAG:
        snprintf(out, size, "%s", value != 0 ? "true" : "false");
        return false;
    case COUNT:
    case TIME:
        break;
    }
    if (m->none != NULL && value == SEMEL_NONE)
        snprintf(out, size, "%s", m->none);
    else if (m->kind == TIME)
        semel__duration_format(value, out, size);
    else
        snprintf(out, size, "%lld", (long long)value);
    return m->kind == TIME || value == SEMEL_NONE;
}

/* "atomic|outside|keyed", "1 to 1000", "1ms to 1d", "0 or more, or any" */
static void range_text(const struct member *m, char *out, size_t size)
{
    char low[32], high[32];
    size_t n = 0;

    if (m->kind == FLAG) {
        snprintf(out, size, "true|false");
        return;
    }
    if (m->kind == WORD) {
        for (const char *const *word = m->words; *word != NULL && n < size; word++)
            n += (size_t)snprintf(out + n, size - n, "%s%s", word == m->words ? "" : "|", *word);
        return;
    }
    value_text(m, m->low, low, sizeof low);
    value_text(m, m->high, high, sizeof high);
    if (m->high == INT64_MAX)
        n = (size_t)snprintf(out, size, "%s or more", low);
    else
        n = (size_t)snprintf(out, size, "%s to %s", low, high);
    if (m->none != NULL && n < size)
        snprintf(out + n, size - n, ", or %s", m->none);
}

static void write_members(const struct semel_policy *policy, uint32_t said, struct semel_buf *buf)
{
    const char *between = "{";

    for (size_t i = 0; i < MEMBERS; i++) {
        char text[64];
        if ((said >> i & 1) == 0)
            continue;
        const char *quote = value_text(&members[i], get(policy, &members[i]), text, sizeof text) ? "\"" : "";
        semel__buf_addf(buf, "%s\"%s\":%s%s%s", between, members[i].name, quote, text, quote);
        between = ",";
    }
    semel__buf_addz(buf, said != 0 ? "}" : "{}");
}

void semel__policy_write(const struct semel_policy *policy, struct semel_buf *buf)
{
    write_members(policy, ALL_SAID, buf);
}

void semel__policy_members(void (*each)(void *ctx, const char *name, const char *kind, const char *value,
                                        const char *help),
                           void *ctx)
{
    struct semel_policy policy;

    semel__policy_init(&policy, SEMEL_STR("any"));
    for (size_t i = 0; i < MEMBERS; i++) {
        char range[96], kind[128], value[64];
        range_text(&members[i], range, sizeof range);
        snprintf(kind, sizeof kind, "%s%s", members[i].kind == TIME ? "duration, " : "", range);
        value_text(&members[i], get(&policy, &members[i]), value, sizeof value);
        each(ctx, members[i].name, kind, value, members[i].help);
    }
}

/* ---- from text ----------------------------------------------------------------------------------------- */

static struct semel_error *error_of(struct semel_setting_fault *why)
{
    return why != NULL ? &why->err : NULL;
}

static semel_status bad(struct semel_setting_fault *why, const char *name, const char *is, const char *right)
{
    if (why != NULL) {
        why->member = name;
        why->other = NULL;
        snprintf(why->right, sizeof why->right, "%s", right);
    }
    return semel__fail(error_of(why), SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s is %s; it must be %s", name, is, right);
}

/* The value as short text for people. */
static void show_node(const struct semel_json_node *node, char *out, size_t size)
{
    static const char *const others[] = {
        [SEMEL_JSON_TAG_NULL] = "null",    [SEMEL_JSON_TAG_FALSE] = "false",      [SEMEL_JSON_TAG_TRUE] = "true",
        [SEMEL_JSON_TAG_INTEGER] = NULL,   [SEMEL_JSON_TAG_REAL] = NULL,          [SEMEL_JSON_TAG_STRING] = NULL,
        [SEMEL_JSON_TAG_ARRAY] = "a list", [SEMEL_JSON_TAG_OBJECT] = "an object",
    };
    const char *quote = node->tag == SEMEL_JSON_TAG_STRING ? "\"" : "";
    char text[SHOWN];

    if (others[node->tag] != NULL) {
        snprintf(out, size, "%s", others[node->tag]);
        return;
    }
    semel__str_show(text, sizeof text, node->u.text);
    snprintf(out, size, "%s%s%s%s", quote, text, node->u.text.n >= sizeof text ? "..." : "", quote);
}

static bool parse_word(const struct member *m, const struct semel_json_node *node, int64_t *ret)
{
    const bool flag = node->tag == SEMEL_JSON_TAG_TRUE || node->tag == SEMEL_JSON_TAG_FALSE;
    struct semel_str word = SEMEL_STR("");

    if (node->tag == SEMEL_JSON_TAG_STRING)
        word = node->u.text;
    else if (flag)
        word = node->tag == SEMEL_JSON_TAG_TRUE ? SEMEL_STR("true") : SEMEL_STR("false");
    for (int64_t i = 0; m->words[i] != NULL; i++)
        if (semel__str_eqz(word, m->words[i]) && is_flag(m->words[i]) == flag) {
            *ret = i;
            return true;
        }
    return false;
}

static bool parse_number(const struct member *m, const struct semel_json_node *node, int64_t *ret)
{
    const bool string = node->tag == SEMEL_JSON_TAG_STRING;

    if (string && m->none != NULL && semel__str_eqz(node->u.text, m->none)) {
        *ret = SEMEL_NONE;
        return true;
    }
    if (m->kind == TIME ? !string || !semel__duration_parse(node->u.text, ret)
                        : node->tag != SEMEL_JSON_TAG_INTEGER || !semel__str_int64(node->u.text, ret))
        return false;
    return *ret >= m->low && *ret <= m->high;
}

static bool take(const struct member *m, const struct semel_json_node *node, int64_t *ret)
{
    switch (m->kind) {
    case WORD:
        return parse_word(m, node, ret);
    case COUNT:
    case TIME:
        return parse_number(m, node, ret);
    case FLAG:
        *ret = node->tag == SEMEL_JSON_TAG_TRUE;
        return *ret || node->tag == SEMEL_JSON_TAG_FALSE;
    }
    return false;
}

static semel_status unknown_member(struct semel_str key, struct semel_setting_fault *why)
{
    const char *names[MEMBERS], *near = NULL;
    char text[SHOWN];

    for (size_t i = 0; i < MEMBERS; i++)
        names[i] = members[i].name;
    semel__str_show(text, sizeof text, key);
    if (key.n < sizeof text)
        near = semel__nearest(text, names, MEMBERS);
    return semel__fail(error_of(why), SEMEL_INVALID, SEMEL_CLASS_BROKEN, "there is no setting \"%s%s\"; %s%s", text,
                       key.n >= sizeof text ? "..." : "",
                       near != NULL ? "did you mean " : "docs/settings-consumer.md lists them",
                       near != NULL ? near : "");
}

/* MEMBERS: there is no such member. */
static size_t member_of(struct semel_str key)
{
    size_t i = 0;

    while (i < MEMBERS && !semel__str_eqz(key, members[i].name))
        i++;
    return i;
}

static semel_status read_member(const struct semel_json_node *node, struct semel_policy *policy, uint32_t *said,
                                struct semel_setting_fault *why)
{
    static const char *const right[] = {"one of ", "a whole number, ", "a duration such as \"90s\", ", ""};
    char is[SHOWN + 8], range[96], must[160];
    const size_t i = member_of(node->key);
    int64_t value;

    if (i == MEMBERS)
        return unknown_member(node->key, why);
    if (take(&members[i], node, &value)) {
        set(policy, &members[i], value);
        *said |= UINT32_C(1) << i;
        return SEMEL_OK;
    }
    show_node(node, is, sizeof is);
    range_text(&members[i], range, sizeof range);
    snprintf(must, sizeof must, "%s%s", right[members[i].kind], range);
    return bad(why, members[i].name, is, must);
}

/* NULL in *ret: no settings were given. */
static semel_status parse_object(struct semel_str settings, struct semel_json **ret, struct semel_setting_fault *why)
{
    char is[SHOWN + 8];

    *ret = NULL;
    if (!semel__str_given(settings))
        return SEMEL_OK;
    if (settings.n > SEMEL_SETTINGS_MAX)
        return semel__fail(error_of(why), SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                           "they have %zu bytes; at most %d are allowed", settings.n, SEMEL_SETTINGS_MAX);
    semel_status status = semel__json_parse(ret, settings, SEMEL_SETTINGS_MAX, error_of(why));
    if (status != SEMEL_OK || (*ret)->root->tag == SEMEL_JSON_TAG_OBJECT)
        return status;
    show_node((*ret)->root, is, sizeof is);
    semel__json_free(*ret);
    *ret = NULL;
    return bad(why, "what was given", is, "a JSON object such as {\"retry_max\": 5}");
}

static const struct semel_json_node *first_of(const struct semel_json *json)
{
    return json != NULL ? json->root->u.first : NULL;
}

static bool has(const struct semel_json *json, struct semel_str key)
{
    for (const struct semel_json_node *node = first_of(json); node != NULL; node = node->next)
        if (semel__str_eq(node->key, key))
            return true;
    return false;
}

/* Members that contradict each other, in the members' names; then the checks of policy.c. */
static semel_status check_policy(const struct semel_policy *policy, struct semel_setting_fault *why)
{
    char first[32], ceiling[32], right[64];

    if (policy->retry_ceiling_us < policy->retry_first_us) {
        semel__duration_format(policy->retry_first_us, first, sizeof first);
        semel__duration_format(policy->retry_ceiling_us, ceiling, sizeof ceiling);
        snprintf(right, sizeof right, "at least retry_first, which is %s", first);
        semel_status status = bad(why, "retry_ceiling", ceiling, right);
        if (why != NULL)
            why->other = "retry_first";
        return status;
    }
    if (policy->keep == SEMEL_KEEP_NEVER && policy->order != SEMEL_ORDER_NONE)
        return bad(why, "keep_payload", "never",
                   "unfinished or always where an order is kept: messages wait in the store");
    if (policy->keep == SEMEL_KEEP_NEVER && policy->effect != SEMEL_EFFECT_ATOMIC)
        return bad(why, "keep_payload", "never", "unfinished or always unless the effect is atomic: retries need it");
    return semel__policy_check(policy, error_of(why));
}

/* Reads every member of `json` except those that `hidden` has too. */
static semel_status read_but(const struct semel_json *json, const struct semel_json *hidden, struct said *said,
                             struct semel_setting_fault *why)
{
    semel_status status = SEMEL_OK;

    for (const struct semel_json_node *node = first_of(json); status == SEMEL_OK && node != NULL; node = node->next)
        if (!has(hidden, node->key))
            status = read_member(node, &said->policy, &said->members, why);
    return status;
}

static void said_init(struct said *said, struct semel_str consumer)
{
    semel__policy_init(&said->policy, consumer);
    said->members = 0;
}

static void said_note(struct said *said)
{
    said->policy.effect_said = (said->members & EFFECT_SAID) != 0;
}

static semel_status read_settings(struct semel_str consumer, struct semel_str settings, struct said *ret,
                                  struct semel_setting_fault *why)
{
    struct semel_json *json = NULL;
    semel_status status = parse_object(settings, &json, why);

    said_init(ret, consumer);
    if (status == SEMEL_OK)
        status = read_but(json, NULL, ret, why);
    semel__json_free(json);
    said_note(ret);
    return status == SEMEL_OK ? check_policy(&ret->policy, why) : status;
}

/* Puts the name of the consumer before what is wrong with its settings; a failure of the environment stays as it is. */
static semel_status blame(const char *what, struct semel_str consumer, const struct semel_setting_fault *why,
                          struct semel_error *err)
{
    char name[SHOWN];

    if (why->err.status != SEMEL_INVALID) {
        if (err != NULL)
            *err = why->err;
        return why->err.status;
    }
    semel__str_show(name, sizeof name, consumer);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "%s of consumer \"%s\": %s", what, name, why->err.text);
}

static semel_status read_policy(const char *what, struct semel_str consumer, struct semel_str settings,
                                struct semel_policy *ret, bool *ret_order_said, struct semel_error *err)
{
    struct said said;
    struct semel_setting_fault why = {0};

    if (read_settings(consumer, settings, &said, &why) != SEMEL_OK)
        return blame(what, consumer, &why, err);
    *ret = said.policy;
    if (ret_order_said != NULL)
        *ret_order_said = (said.members & ORDER_SAID) != 0;
    return SEMEL_OK;
}

semel_status semel__policy_read(struct semel_str consumer, struct semel_str settings, struct semel_policy *ret,
                                bool *ret_order_said, struct semel_error *err)
{
    return read_policy("settings", consumer, settings, ret, ret_order_said, err);
}

semel_status semel__policy_try(struct semel_str consumer, struct semel_str settings, struct semel_policy *ret,
                               struct semel_setting_fault *fault)
{
    struct said said;
    *fault = (struct semel_setting_fault){0};
    semel_status status = read_settings(consumer, settings, &said, fault);
    if (status == SEMEL_OK)
        *ret = said.policy;
    return status;
}

/* ---- changes ------------------------------------------------------------------------------------------- */

static semel_status said_read(struct semel_str consumer, struct semel_str settings, struct said *ret,
                              struct semel_error *err)
{
    struct semel_setting_fault why = {0};

    return read_settings(consumer, settings, ret, &why) == SEMEL_OK ? SEMEL_OK : blame("settings", consumer, &why, err);
}

/* Reads the known members of stored settings and ignores the rest. */
static void said_known(struct semel_str consumer, struct semel_str stored, struct said *ret)
{
    struct semel_json *json = NULL;

    said_init(ret, consumer);
    (void)parse_object(stored, &json, NULL);
    for (const struct semel_json_node *node = first_of(json); node != NULL; node = node->next)
        (void)read_member(node, &ret->policy, &ret->members, NULL);
    semel__json_free(json);
    said_note(ret);
}

/* null removes a member, also an unknown one that is stored. */
static semel_status read_change(const struct semel_json *change, const struct semel_json *stored, struct said *said,
                                struct semel_setting_fault *why)
{
    semel_status status = SEMEL_OK;

    for (const struct semel_json_node *node = first_of(change); status == SEMEL_OK && node != NULL; node = node->next) {
        if (node->tag != SEMEL_JSON_TAG_NULL)
            status = read_member(node, &said->policy, &said->members, why);
        else if (!has(stored, node->key) && member_of(node->key) == MEMBERS)
            status = unknown_member(node->key, why);
    }
    return status;
}

/* `change` over `stored`: null removes a member, {} changes nothing. Stored members are checked except those that
 * change, so that a damaged member can be fixed. */
static semel_status said_merge(struct semel_str consumer, struct semel_str stored, struct semel_str change,
                               struct said *ret, struct semel_error *err)
{
    struct semel_json *old = NULL, *new = NULL;
    const char *what = "settings";
    struct semel_setting_fault why = {0};
    semel_status status = parse_object(change, &new, &why);

    said_init(ret, consumer);
    if (status == SEMEL_OK) {
        what = "stored settings";
        status = parse_object(stored, &old, &why);
        status = status == SEMEL_INVALID ? SEMEL_OK : status; /* nothing in it can be kept */
    }
    if (status == SEMEL_OK)
        status = read_but(old, new, ret, &why);
    if (status == SEMEL_OK) {
        what = "settings";
        status = read_change(new, old, ret, &why);
    }
    semel__json_free(old);
    semel__json_free(new);
    said_note(ret);
    if (status == SEMEL_OK)
        status = check_policy(&ret->policy, &why);
    return status == SEMEL_OK ? SEMEL_OK : blame(what, consumer, &why, err);
}

static void said_write(const struct said *said, struct semel_buf *buf)
{
    write_members(&said->policy, said->members, buf);
}

/* The change that leads from `from` to `to`. false: there is none, and {} was written. */
static bool said_diff(const struct said *from, const struct said *to, struct semel_buf *buf)
{
    const char *between = "{";

    for (size_t i = 0; i < MEMBERS; i++) {
        const struct member *m = &members[i];
        /* A mask, not `members >> i & 1`: gcc 12.2 at -O2 (-ftree-vrp) miscompiles a comparison of two such shifts. */
        const uint32_t bit = UINT32_C(1) << i;
        const bool is = (to->members & bit) != 0;
        char text[64] = "null";
        const char *quote = "";
        if (is == ((from->members & bit) != 0) && (!is || get(&from->policy, m) == get(&to->policy, m)))
            continue;
        if (is)
            quote = value_text(m, get(&to->policy, m), text, sizeof text) ? "\"" : "";
        semel__buf_addf(buf, "%s\"%s\": %s%s%s", between, m->name, quote, text, quote);
        between = ", ";
    }
    semel__buf_addz(buf, between[0] == ',' ? "}" : "{}");
    return between[0] == ',';
}

void semel__setting_show(const struct semel_policy *policy, const char *name, char *out, size_t size)
{
    const size_t i = member_of(semel__str(name));

    out[0] = '\0';
    if (i < MEMBERS)
        value_text(&members[i], get(policy, &members[i]), out, size);
}

/* ---- the store ----------------------------------------------------------------------------------------- */

semel_status semel__consumer_use(struct semel_str consumer, struct semel_str settings, struct semel_policy *ret,
                                 bool *ret_order_said, struct semel_error *err)
{
    return read_policy("stored settings", consumer, settings, ret, ret_order_said, err);
}

semel_status semel__consumer_load(struct semel_store *store, struct semel_str consumer, struct semel_arena *arena,
                                  struct semel_policy *ret, bool *ret_order_said, struct semel_error *err)
{
    struct semel_str settings = {0};
    semel_status status = semel_store_consumer_get(store, consumer, arena, &settings, err);

    return status == SEMEL_OK ? read_policy("stored settings", consumer, settings, ret, ret_order_said, err) : status;
}

static semel_status put_said(struct semel_store *store, const struct said *said, int64_t now_us,
                             struct semel_error *err)
{
    struct semel_buf buf;
    semel_status status;

    semel__buf_init(&buf, SEMEL_SETTINGS_MAX);
    said_write(said, &buf);
    if (buf.failed)
        status = semel__fail_memory(err); /* all members together are far from the bound */
    else
        status = semel_store_consumer_put(store, said->policy.consumer, semel__buf_str(&buf), now_us, err);
    semel__buf_done(&buf);
    return status;
}

/* The caller may have read the settings before this transaction: what is stored now counts. */
static semel_status settle_order(struct semel_store *store, const struct semel__msg *msg, struct semel_policy *policy,
                                 int64_t now_us, struct semel_error *err)
{
    struct semel_arena arena;
    struct semel_consumer stored;
    struct said fresh;
    struct semel_setting_fault why = {0};

    semel__arena_init(&arena, 4 * SEMEL_SETTINGS_MAX);
    semel_status status = semel_store_consumer_read(store, policy->consumer, true, &arena, &stored, err);
    if (status == SEMEL_OK && read_settings(policy->consumer, stored.settings, &fresh, &why) != SEMEL_OK)
        status = blame("stored settings", policy->consumer, &why, err);
    if (status == SEMEL_OK && (fresh.members & ORDER_SAID) == 0) {
        fresh.policy.order = msg->version != SEMEL_NONE ? SEMEL_ORDER_VERSION : SEMEL_ORDER_ARRIVAL;
        fresh.members |= ORDER_SAID;
        if (check_policy(&fresh.policy, &why) != SEMEL_OK)
            status = blame("a message has an order key; settings", policy->consumer, &why, err);
        else
            status = put_said(store, &fresh, now_us, err);
    }
    if (status == SEMEL_OK)
        *policy = fresh.policy;
    semel__arena_done(&arena);
    return status;
}

semel_status semel__consumer_order(struct semel_store *store, const struct semel__msg *msg, bool order_said,
                                   struct semel_policy *policy, int64_t now_us, struct semel_error *err)
{
    struct semel_setting_fault why = {0};
    semel_status status = SEMEL_OK;

    if (!semel__str_given(msg->order_key))
        return SEMEL_OK;
    if (!order_said)
        status = settle_order(store, msg, policy, now_us, err);
    if (status != SEMEL_OK || policy->order != SEMEL_ORDER_ARRIVAL || msg->version == SEMEL_NONE ||
        msg->defect != SEMEL_DEFECT_NONE) /* it will not run */
        return status;
    semel__fail(
        &why.err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
        "order is arrival, and a message has a version; give none, or set order to version (and first_version to "
        "any where keys begin later)");
    return blame("settings", policy->consumer, &why, err);
}

/* A change, from the stored settings to the requested ones. */
struct change {
    const struct semel_policy *from, *to;
    bool takes_over; /* a route's file, for a consumer that no file had set */
};

/* ---- what is refused ----------------------------------------------------------------------------------- */

static bool order_lost(const struct change *c)
{
    return c->from->order != SEMEL_ORDER_NONE && c->to->order < c->from->order;
}

static bool versions_lost(const struct change *c)
{
    return c->from->order == SEMEL_ORDER_VERSION && c->to->order != SEMEL_ORDER_VERSION;
}

static bool first_version_raised(const struct change *c)
{
    return c->to->order == SEMEL_ORDER_VERSION && c->to->first_version > c->from->first_version;
}

static bool key_lost(const struct change *c)
{
    return c->from->effect == SEMEL_EFFECT_KEYED && c->to->effect != SEMEL_EFFECT_KEYED;
}

static bool source_dropped(const struct change *c)
{
    return !c->from->one_source && c->to->one_source;
}

static bool source_added(const struct change *c)
{
    return c->from->one_source && !c->to->one_source;
}

/* The number of id kinds that have a time. */
static int timed_kinds(const struct semel_policy *policy)
{
    static const int kinds[] = {
        [SEMEL_TIMED_NONE] = 0, [SEMEL_TIMED_UUID7] = 1, [SEMEL_TIMED_ALL] = 2, [SEMEL_TIMED_ULID] = 2};
    return kinds[policy->timed_ids];
}

static bool time_lost(const struct change *c)
{
    return timed_kinds(c->to) < timed_kinds(c->from);
}

static bool takes_other_effect(const struct change *c)
{
    return c->takes_over && c->from->effect != c->to->effect;
}

static bool takes_other_order(const struct change *c)
{
    return c->takes_over && c->from->order != c->to->order;
}

static bool takes_other_source(const struct change *c)
{
    return c->takes_over && c->from->one_source != c->to->one_source;
}

#define NOT_ITS_OWN "messages of a consumer that no route's file had set", "give the route another name"

static const struct rule {
    const char *member;
    bool (*is)(const struct change *change);
    enum semel_affected rows;
    const char *which, *todo;
} rules[] = {
    {"order", order_lost, SEMEL_AFFECTED_ORDERED, "messages with an order key that wait, failed or run",
     "let them end first"},
    /* An operator may resolve them: under another order that would not move the last version of their key. */
    {"order", versions_lost, SEMEL_AFFECTED_VERSIONED, "messages with a version that are dead or of unknown outcome",
     "resolve, retry or discard them first"},
    {"first_version", first_version_raised, SEMEL_AFFECTED_BELOW,
     "messages below it that wait or failed, of keys without a last version", "let them end first"},
    {"effect", key_lost, SEMEL_AFFECTED_DOUBTED, "messages that may have had their effect and are to be repeated",
     "let them end first"},
    {"one_source", source_dropped, SEMEL_AFFECTED_SOURCED, "records with a source, which would be forgotten",
     "use another consumer, or stop its processes and force it"},
    {"one_source", source_added, SEMEL_AFFECTED_SOURCELESS, "records without a source, which would be forgotten",
     "use another consumer, or stop its processes and force it"},
    {"timed_ids", time_lost, SEMEL_AFFECTED_WATERMARKS,
     "sources of which records were purged, whose copies only the time in their ids tells from new messages",
     "leave it as it is"},
    {"effect", takes_other_effect, SEMEL_AFFECTED_ANY, NOT_ITS_OWN},
    {"order", takes_other_order, SEMEL_AFFECTED_ANY, NOT_ITS_OWN},
    {"one_source", takes_other_source, SEMEL_AFFECTED_ANY, NOT_ITS_OWN},
};

static semel_status refuse(const struct rule *rule, const struct change *change, int64_t n, struct semel_error *err)
{
    char name[41], from[32], to[32];

    semel__str_show(name, sizeof name, change->to->consumer);
    semel__setting_show(change->from, rule->member, from, sizeof from);
    semel__setting_show(change->to, rule->member, to, sizeof to);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                       "consumer \"%s\": %s cannot go from %s to %s; %s: %s%lld; %s", name, rule->member, from, to,
                       rule->which, n >= COUNT_MAX ? "more than " : "", (long long)(n >= COUNT_MAX ? n - 1 : n),
                       rule->todo);
}

/* The first rule of the table that finds rows; *ret_n is their number. */
static semel_status judge(struct semel_store *store, const struct change *change, const struct rule **ret,
                          int64_t *ret_n, struct semel_error *err)
{
    semel_status status = SEMEL_OK;

    *ret = NULL;
    for (size_t i = 0; status == SEMEL_OK && *ret == NULL && i < sizeof rules / sizeof rules[0]; i++) {
        int64_t n = 0;
        if (!rules[i].is(change))
            continue;
        status = semel_store_affected(store, change->to->consumer, rules[i].rows, change->to->first_version, COUNT_MAX,
                                      &n, err);
        if (status == SEMEL_OK && n > 0) {
            *ret = &rules[i];
            *ret_n = n;
        }
    }
    return status;
}

static semel_status refuse_marked(struct semel_str consumer, const struct semel_set_by *by, struct semel_error *err)
{
    char name[41], file[97], host[65];

    semel__str_show(name, sizeof name, consumer);
    semel__str_show(file, sizeof file, by->file);
    semel__str_show(host, sizeof host, by->host);
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN,
                       "consumer \"%s\" is set by the file %s on %s: change it there", name, file, host);
}

bool semel__policy_same(const struct semel_policy *a, const struct semel_policy *b)
{
    return a->order == b->order && a->effect == b->effect && a->one_source == b->one_source &&
           a->first_version == b->first_version;
}

/* ---- the change ---------------------------------------------------------------------------------------- */

/* One change while its transaction runs. */
struct setting {
    struct semel_store *store;
    const struct semel_setter *by;
    struct semel_consumer stored;
    struct said from, to;
    int64_t now_us;
    int64_t past; /* rows that force ignored */
    bool damaged; /* the stored settings could not be read: the change fixes them */
    struct semel_setting *ret;
};

static bool is_file(const struct setting *s)
{
    return semel__str_given(s->by->file);
}

static semel_status read_both(struct setting *s, struct semel_str consumer, struct semel_str settings,
                              struct semel_error *err)
{
    semel_status status = said_read(consumer, s->stored.settings, &s->from, err);
    s->damaged = status == SEMEL_INVALID;
    if (s->damaged)
        said_known(consumer, s->stored.settings, &s->from);
    else if (status != SEMEL_OK)
        return status;
    if (is_file(s))
        return said_read(consumer, settings, &s->to, err);
    return said_merge(consumer, s->stored.settings, settings, &s->to, err);
}

static semel_status allow(struct setting *s, struct semel_error *err)
{
    const struct change change = {&s->from.policy, &s->to.policy,
                                  is_file(s) && !s->by->adopts && !semel__str_given(s->stored.by.file)};
    const struct rule *rule;
    int64_t n = 0;

    if (semel__str_given(s->stored.by.file) && !is_file(s) && !s->by->force) {
        s->ret->refused = true;
        return refuse_marked(s->to.policy.consumer, &s->stored.by, err);
    }
    semel_status status = judge(s->store, &change, &rule, &n, err);
    if (status != SEMEL_OK || rule == NULL)
        return status;
    s->past = n;
    s->ret->refused = !s->by->force;
    return s->by->force ? SEMEL_OK : refuse(rule, &change, n, err);
}

static semel_status hint(struct setting *s, struct semel_error *err)
{
    const struct semel_policy *from = &s->from.policy, *to = &s->to.policy;
    int64_t n = 0;

    if (to->order != SEMEL_ORDER_VERSION || to->first_version == SEMEL_FIRST_VERSION_ANY ||
        (from->order == SEMEL_ORDER_VERSION && from->first_version == to->first_version))
        return SEMEL_OK;
    semel_status status = semel_store_affected(s->store, to->consumer, SEMEL_AFFECTED_KEYS, SEMEL_NONE, 1, &n, err);
    if (status == SEMEL_OK && n > 0)
        s->ret->hint = "order keys exist already: is first_version \"any\" right for them?";
    return status;
}

static semel_status audit(const struct setting *s, struct semel_error *err)
{
    char what[WHAT_MAX], past[64] = "";
    struct semel_audit line = {.consumer = s->to.policy.consumer,
                               .who = s->by->who,
                               .forced = s->by->force,
                               .reason = semel__str_given(s->by->reason) ? s->by->reason : SEMEL_STR("")};

    if (s->past > 0)
        snprintf(past, sizeof past, ", forced past %lld", (long long)s->past);
    else if (s->by->force)
        snprintf(past, sizeof past, ", forced");
    snprintf(what, sizeof what, "set %.*s%s", WHAT_MAX - 80, s->ret->change.p, past);
    line.what = semel__str(what);
    return semel_store_audit(s->store, &line, 1, s->now_us, err);
}

static semel_status put(const struct setting *s, struct semel_error *err)
{
    struct semel_buf buf;

    semel__buf_init(&buf, SEMEL_SETTINGS_MAX);
    said_write(&s->to, &buf);
    semel_status status = buf.failed ? semel__fail_memory(err)
                                     : semel_store_consumer_put(s->store, s->to.policy.consumer, semel__buf_str(&buf),
                                                                s->now_us, err);
    semel__buf_done(&buf);
    return status;
}

static semel_status store_all(const struct setting *s, struct semel_error *err)
{
    const struct semel_set_by none = {.at_us = SEMEL_NONE}, mark = {s->by->host, s->by->file, s->now_us};
    const bool unmark = s->by->force && semel__str_given(s->stored.by.file);
    semel_status status = SEMEL_OK;

    if (s->ret->changed || unmark) /* before the change: a store may write both at once */
        status = audit(s, err);
    if (status == SEMEL_OK && (s->ret->changed || !semel__str_given(s->stored.settings)))
        status = put(s, err);
    if (status == SEMEL_OK && (is_file(s) || unmark))
        status = semel_store_consumer_mark(s->store, s->to.policy.consumer, is_file(s) ? &mark : &none, err);
    return status;
}

static semel_status write_change(struct setting *s, struct semel_arena *arena, struct semel_error *err)
{
    struct semel_buf buf;

    semel__buf_init(&buf, SEMEL_SETTINGS_MAX);
    s->ret->changed = said_diff(&s->from, &s->to, &buf) || s->damaged;
    semel__buf_add(&buf, "", 1);
    bool ok = !buf.failed && semel__arena_copy(arena, semel__buf_str(&buf), &s->ret->change);
    semel__buf_done(&buf);
    if (ok)
        s->ret->change.n--;
    return ok ? SEMEL_OK : semel__fail_memory(err);
}

semel_status semel__consumer_set(struct semel_store *store, struct semel_str consumer, struct semel_str settings,
                                 const struct semel_setter *by, int64_t now_us, struct semel_arena *arena,
                                 struct semel_setting *ret, struct semel_error *err)
{
    struct setting s = {.store = store, .by = by, .now_us = now_us, .ret = ret};

    *ret = (struct semel_setting){.change = SEMEL_STR("{}"), .by.at_us = SEMEL_NONE};
    semel_status status = semel_store_consumer_read(store, consumer, true, arena, &s.stored, err);
    if (status == SEMEL_OK) {
        ret->by = s.stored.by;
        status = read_both(&s, consumer, settings, err);
    }
    if (status == SEMEL_OK)
        status = write_change(&s, arena, err);
    if (status == SEMEL_OK) {
        ret->policy = s.to.policy;
        status = ret->changed ? allow(&s, err) : SEMEL_OK;
    }
    if (status == SEMEL_OK && ret->changed)
        status = hint(&s, err);
    return status == SEMEL_OK ? store_all(&s, err) : status;
}

/* A change in a transaction of its own. */
struct changing {
    struct semel_store *store;
    struct semel_str consumer, settings;
    const struct semel_setter *by;
    struct semel_arena *arena;
    struct semel_setting *ret;
};

static semel_status change_settings(void *ctx, int64_t now_us, bool *undo, struct semel_error *err)
{
    const struct changing *c = ctx;
    (void)undo;
    return semel__consumer_set(c->store, c->consumer, c->settings, c->by, now_us, c->arena, c->ret, err);
}

semel_status semel__consumer_change(struct semel_store *store, struct semel_str consumer, struct semel_str settings,
                                    const struct semel_setter *by, struct semel_arena *arena, struct semel_setting *ret,
                                    struct semel_error *err)
{
    static const struct semel__transaction tx = {.body = change_settings};
    struct changing changing = {store, consumer, settings, by, arena, ret};

    *ret = (struct semel_setting){0};
    return semel__transaction_run(store, &tx, &changing, err);
}
