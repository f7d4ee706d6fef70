/* SPDX-License-Identifier: MIT
 *
 * fuzz_rules.c: hostile deliveries under any rules.
 *
 * The input: lines, each a letter and its text; a line "." begins the payload, which is the rest.
 *     i t o l v m b   a rule for id, type, order key, lock key, version, time, a business key (up to 4)
 *     h p NAME=VALUE  a header, a property      s P  source, position      d DIGIT  the number of the delivery
 *     n               no fingerprint            L    a payload limit of 16 bytes
 *
 * What must hold: a rule that is refused says why in printable text; taking the fields fails for no delivery, gives
 * the same twice, and a message without a defect has a valid id and valid keys; a message with one says which and is
 * never run; the inbox acknowledges it only with a row.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "core/extract.h"
#include "core/inbox.h"
#include "support/mem_store.h"

#define PAIRS 300
#define MUST(condition) ((condition) ? (void)0 : broken(#condition, __LINE__))

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void broken(const char *condition, int line)
{
    fprintf(stderr, "fuzz_rules.c:%d: does not hold: %s\n", line, condition);
    abort();
}

/* ---- the input ---------------------------------------------------------------------------------------- */

struct input {
    struct semel_rules rules;
    struct semel_delivery delivery;
    struct semel_pair headers[PAIRS], properties[PAIRS];
    size_t payload_max;
};

static void set_rule(struct semel_rule *rule, struct semel_str text)
{
    struct semel_error err;
    if (semel__rule_parse(text, rule, &err) == SEMEL_OK)
        return;
    MUST(err.status == SEMEL_INVALID);
    for (const char *p = err.text; *p != '\0'; p++)
        MUST((unsigned char)*p >= 0x20 && *p != 0x7f);
}

static void add_pair(struct semel_pair *pairs, size_t *n, struct semel_str text)
{
    const char *eq = text.n > 0 ? memchr(text.p, '=', text.n) : NULL;
    if (*n == PAIRS)
        return;
    size_t name = eq != NULL ? (size_t)(eq - text.p) : text.n;
    pairs[*n].name = (struct semel_str){text.p, name};
    pairs[*n].value = eq != NULL ? (struct semel_str){eq + 1, text.n - name - 1} : (struct semel_str){0};
    ++*n;
}

static void read_rule(struct semel_rules *rules, char letter, struct semel_str text)
{
    if (letter == 'i')
        set_rule(&rules->id, text);
    else if (letter == 't')
        set_rule(&rules->type, text);
    else if (letter == 'o')
        set_rule(&rules->order, text);
    else if (letter == 'l')
        set_rule(&rules->lock, text);
    else if (letter == 'v')
        set_rule(&rules->version, text);
    else if (letter == 'm')
        set_rule(&rules->time, text);
    else if (letter == 'b' && rules->n_business < SEMEL_BUSINESS_MAX)
        set_rule(&rules->business[rules->n_business++], text);
}

static void read_line(struct input *in, char letter, struct semel_str text)
{
    struct semel_delivery *d = &in->delivery;
    if (letter == 'h')
        add_pair(in->headers, &d->n_headers, text);
    else if (letter == 'p')
        add_pair(in->properties, &d->n_properties, text);
    else if (letter == 's')
        d->source = text;
    else if (letter == 'P')
        d->position = text;
    else if (letter == 'd')
        d->delivery = text.n > 0 ? text.p[0] & 7 : 0;
    else if (letter == 'n' && semel__json_pointer_valid(text))
        in->rules.count = text;
    else if (letter == 'L')
        in->payload_max = 16;
    else
        read_rule(&in->rules, letter, text);
}

static void read_input(struct input *in, struct semel_str text)
{
    memset(in, 0, sizeof *in);
    in->payload_max = 1 << 16;
    while (text.n > 0) {
        const char *end = memchr(text.p, '\n', text.n);
        size_t n = end != NULL ? (size_t)(end - text.p) : text.n;
        struct semel_str rest = {text.p + n + (end != NULL), text.n - n - (end != NULL)};
        if (n == 1 && text.p[0] == '.') {
            in->delivery.payload = rest;
            break;
        }
        if (n > 0)
            read_line(in, text.p[0], (struct semel_str){text.p + 1, n - 1});
        text = rest;
    }
    in->delivery.headers = in->headers;
    in->delivery.properties = in->properties;
}

/* ---- the fields --------------------------------------------------------------------------------------- */

static bool key_valid(const struct semel_rule *rule, struct semel_str key)
{
    return rule->kind == SEMEL_RULE_DEFAULT ||
           (key.p != NULL && key.n >= 1 && key.n <= SEMEL_ID_MAX && semel__utf8_valid(key));
}

static void check_msg(const struct input *in, const struct semel__msg *m)
{
    MUST((m->defect == SEMEL_DEFECT_NONE) == (m->defect_text.p == NULL));
    if (m->defect != SEMEL_DEFECT_NONE)
        MUST(m->defect_text.n > 0 && semel__utf8_valid(m->defect_text));
    MUST(m->version == SEMEL_NONE || (m->version >= 0 && m->version < INT64_MAX));
    MUST(m->n_business == in->rules.n_business);
    if (m->headers.p != NULL) {
        struct semel_json *json = NULL;
        struct semel_error err;
        MUST(semel__json_parse(&json, m->headers, SEMEL_HEADERS_MAX, &err) == SEMEL_OK || err.status == SEMEL_INVALID);
        MUST(semel__utf8_valid(m->headers));
        semel__json_free(json);
    }
    if (m->defect != SEMEL_DEFECT_NONE)
        return;
    MUST(semel__id_check("id", m->id, 1, NULL) == SEMEL_OK);
    MUST(key_valid(&in->rules.order, m->order_key) && key_valid(&in->rules.lock, m->lock_key));
    for (size_t i = 0; i < m->n_business; i++)
        MUST(m->business[i].p != NULL || in->rules.business[i].kind == SEMEL_RULE_DEFAULT);
}

static void check_same(const struct semel__msg *a, const struct semel__msg *b)
{
    MUST(semel__str_eq(a->id, b->id) && semel__str_eq(a->type, b->type) && semel__str_eq(a->headers, b->headers));
    MUST(semel__str_eq(a->order_key, b->order_key) && semel__str_eq(a->lock_key, b->lock_key));
    MUST(semel__str_eq(a->defect_text, b->defect_text) && a->defect == b->defect);
    MUST(a->version == b->version && a->message_time_us == b->message_time_us);
    MUST(memcmp(&a->fp, &b->fp, sizeof a->fp) == 0);
    for (size_t i = 0; i < a->n_business; i++)
        MUST(semel__str_eq(a->business[i], b->business[i]));
}

/* ---- the inbox ---------------------------------------------------------------------------------------- */

static semel_status count_run(void *ctx, struct semel_store *store, const struct semel__msg *m, int attempt,
                              struct semel__reply *reply, struct semel_error *err)
{
    (void)store;
    (void)attempt;
    (void)reply;
    (void)err;
    MUST(m->defect == SEMEL_DEFECT_NONE);
    ++*(unsigned *)ctx;
    return SEMEL_OK;
}

static void check_process(const struct semel__msg *m)
{
    struct semel_mem_db *db = NULL;
    struct semel_store *store = NULL;
    struct semel_policy policy;
    struct semel_random rng;
    struct semel_inbox inbox;
    struct semel_settled settled[2];
    struct semel_error err;
    unsigned runs = 0;
    const struct semel__handler handler = {.ctx = &runs, .each = count_run};
    struct semel__msg two[] = {*m, *m};

    semel__random_seed(&rng, 1);
    semel__policy_init(&policy, SEMEL_STR("c"));
    policy.order = m->version != SEMEL_NONE ? SEMEL_ORDER_VERSION : SEMEL_ORDER_ARRIVAL;
    MUST(semel__mem_db_new(&db, NULL) == SEMEL_OK && semel__store_mem_open(&store, db, NULL, &err) == SEMEL_OK);
    semel__inbox_init(&inbox, store, &policy, &handler, &rng, SEMEL_STR("w"));
    MUST(semel__inbox_process(&inbox, two, 2, settled, &err) == SEMEL_OK);
    MUST(runs <= 1 && (runs == 0 || m->defect == SEMEL_DEFECT_NONE));
    MUST(settled[0].act == SEMEL_ACK && settled[0].state != SEMEL_ROW_ABSENT);
    MUST(semel__mem_rows(db, NULL, NULL) == 1);
    MUST(semel__inbox_process(&inbox, m, 1, settled, &err) == SEMEL_OK && runs <= 1);
    semel__inbox_done(&inbox);
    semel_store_close(store);
    semel__mem_db_free(db);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    static struct input in;
    struct semel_arena arenas[2];
    struct semel__msg msgs[2];
    struct semel_error err;
    read_input(&in, (struct semel_str){(const char *)data, size});
    for (size_t i = 0; i < 2; i++) {
        semel__arena_init(&arenas[i], (size_t)1 << 24);
        MUST(semel__extract(&in.rules, &in.delivery, in.payload_max, &arenas[i], &msgs[i], &err) == SEMEL_OK);
    }
    check_msg(&in, &msgs[0]);
    check_same(&msgs[0], &msgs[1]);
    check_process(&msgs[0]);
    semel__arena_done(&arenas[0]);
    semel__arena_done(&arenas[1]);
    return 0;
}
