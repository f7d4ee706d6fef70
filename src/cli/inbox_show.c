/* SPDX-License-Identifier: MIT
 *
 * inbox_show.c: `semel inbox show ID`: everything that is known of one message, and why it is not running.
 *
 * Invariants: nothing of the message reaches a terminal as it is, but with --payload, and then only text. What is cut
 * is said to be cut.
 */
#include <unistd.h>

#include "base/error.h"
#include "cli/inbox.h"

#define SHOWN_MAX 2000           /* bytes of a payload for people */
#define JSON_PAYLOAD_MAX 1000000 /* and for programs */

/* ---- for people ---------------------------------------------------------------------------------- */

static void field(const struct cli *cli, const char *name, struct semel_str value)
{
    char text[SHOWN_MAX + 1];
    if (!semel__str_given(value))
        return;
    semel__str_show(text, sizeof text, value);
    cli_say(cli, "%-14s%s%s", name, text, value.n > SHOWN_MAX ? " ..." : "");
}

static void field_when(const struct cli *cli, const char *name, int64_t us, int64_t now_us)
{
    struct semel_buf buf;
    if (us == SEMEL_NONE)
        return;
    semel__buf_init(&buf, 200);
    cli_put_when(&buf, us, now_us);
    field(cli, name, semel__buf_str(&buf));
    semel__buf_done(&buf);
}

static void field_number(const struct cli *cli, const char *name, int64_t value)
{
    if (value != SEMEL_NONE)
        cli_say(cli, "%-14s%lld", name, (long long)value);
}

/* Text, each line by its own cli_say, which lets no newline pass. */
static void say_lines(const struct cli *cli, const struct semel_buf *buf)
{
    struct semel_str text = semel__buf_str(buf);
    while (text.n > 0) {
        const char *end = memchr(text.p, '\n', text.n);
        size_t n = end != NULL ? (size_t)(end - text.p) : text.n;
        cli_say(cli, "%.*s", (int)n, text.p);
        n += end != NULL;
        text.p += n;
        text.n -= n;
    }
}

static void say_row(const struct cli *cli, const struct cli_facts *f)
{
    const struct semel_row *row = f->row;
    const struct semel_live *live = &row->live;
    field(cli, "id", row->id);
    field(cli, "consumer", row->consumer);
    field(cli, "source", row->source.n > 0 ? row->source : (struct semel_str){0});
    field(cli, "type", row->type);
    field(cli, "status", semel__str(semel__state_name(live->state)));
    if (live->error_class != SEMEL_CLASS_NONE)
        field(cli, "class", semel__str(semel__class_name(live->error_class)));
    field(cli, "error", live->error_text);
    cli_say(cli, "%-14s%d%s", "attempts", live->attempts, live->alone ? ", runs alone" : "");
    if (live->replays > 0)
        cli_say(cli, "%-14s%d, with %d attempts before the last one", "retries", live->replays, live->attempts_before);
    field(cli, "key", row->order_key);
    field_number(cli, "version", row->version);
    field_when(cli, "made", row->message_time_us, f->now_us);
    field_when(cli, "received", row->received_us, f->now_us);
    field_when(cli, "updated", row->updated_us, f->now_us);
    field_when(cli, "finished", live->processed_us, f->now_us);
    field_when(cli, "due", live->due_us, f->now_us);
    field(cli, "held by", live->lease_owner);
    field_when(cli, "held until", live->lease_until_us, f->now_us);
    field(cli, "outcome", live->outcome);
    field(cli, "position", row->position);
    field(cli, "traceparent", row->traceparent);
    field_number(cli, "arrival", row->arrival);
    field(cli, "headers", row->headers);
    if (!row->kept)
        cli_say(cli, "%-14snot kept", "payload");
    else if (semel__utf8_valid(row->payload))
        field(cli, "payload", row->payload);
    else
        cli_say(cli, "%-14s%zu bytes that are not text; --payload writes them", "payload", row->payload.n);
}

/* Who waits for a business key that it has, or that it wants like them (A6). */
static void say_waiters(const struct cli *cli, const struct cli_facts *f)
{
    struct semel_buf buf;
    semel__buf_init(&buf, CLI_EXPLAIN_MAX);
    size_t n = cli_put_waiters(f, &buf);
    if (n > 0)
        cli_say(cli, "%-14s%.*s", f->row->n_wants > 0 ? "waiters too" : "waiters", (int)buf.n, buf.p);
    semel__buf_done(&buf);
}

static void say_history(const struct cli *cli, const struct cli_facts *f)
{
    const struct semel_history *h = f->history;
    char at[40], who[SEMEL_ID_MAX + 1], text[SEMEL_ERROR_TEXT_MAX + 1], what[64];
    for (size_t i = 0; i < h->n_business; i++)
        field(cli, "business key", h->business[i]);
    for (size_t i = 0; i < f->row->n_wants; i++)
        field(cli, "wanted key", f->row->wants[i]);
    say_waiters(cli, f);
    for (size_t i = 0; i < h->n_tries; i++) {
        cli_time(h->tries[i].at_us, at, sizeof at);
        semel__str_show(who, sizeof who, h->tries[i].worker);
        semel__str_show(what, sizeof what, h->tries[i].cls);
        semel__str_show(text, sizeof text, h->tries[i].text);
        cli_say(cli, "%-14s%d  %s  %s  %s%s%s", i == 0 ? "failed" : "", h->tries[i].attempt, at, who, what,
                text[0] != '\0' ? ": " : "", text);
    }
    for (size_t i = 0; i < h->n_acts; i++) {
        cli_time(h->acts[i].at_us, at, sizeof at);
        semel__str_show(who, sizeof who, h->acts[i].who);
        semel__str_show(what, sizeof what, h->acts[i].what);
        semel__str_show(text, sizeof text, h->acts[i].reason);
        cli_say(cli, "%-14s%s  %s  %s: %s", i == 0 ? "audit" : "", at, who, what, text);
    }
    for (size_t i = 0; i < h->n_conflicts; i++) {
        cli_time(h->conflicts[i].last_us, at, sizeof at);
        cli_say(cli, "%-14s%lld times with another payload, last %s", i == 0 ? "conflicts" : "",
                (long long)h->conflicts[i].n, at);
    }
    if (h->more)
        cli_say(cli, "%-14sthere is more than is shown", "");
}

/* ---- for programs -------------------------------------------------------------------------------- */

/* [ ... ] of objects, each filled by `fill`. */
static void put_list(struct cli_object *object, const char *name, const struct semel_history *h, size_t n,
                     void (*fill)(struct cli_object *one, const struct semel_history *h, size_t i))
{
    struct semel_buf list;
    struct cli_object one;
    semel__buf_init(&list, 16 << 20);
    semel__buf_addz(&list, "[");
    for (size_t i = 0; i < n; i++) {
        cli_object_init(&one);
        fill(&one, h, i);
        struct semel_str text = cli_object_end(&one);
        semel__buf_addz(&list, i > 0 ? "," : "");
        semel__buf_add(&list, text.p, text.n);
        list.failed |= one.buf.failed;
        cli_object_done(&one);
    }
    semel__buf_addz(&list, "]");
    cli_object_raw(object, name, semel__buf_str(&list));
    object->buf.failed |= list.failed;
    semel__buf_done(&list);
}

static void fill_try(struct cli_object *one, const struct semel_history *h, size_t i)
{
    cli_object_number(one, "attempt", h->tries[i].attempt);
    cli_object_time(one, "at", h->tries[i].at_us);
    cli_object_text(one, "worker", h->tries[i].worker);
    cli_object_text(one, "class", h->tries[i].cls);
    cli_object_text(one, "error", h->tries[i].text);
}

static void fill_act(struct cli_object *one, const struct semel_history *h, size_t i)
{
    cli_object_time(one, "at", h->acts[i].at_us);
    cli_object_text(one, "who", h->acts[i].who);
    cli_object_text(one, "what", h->acts[i].what);
    cli_object_text(one, "reason", h->acts[i].reason);
}

static void fill_conflict(struct cli_object *one, const struct semel_history *h, size_t i)
{
    struct semel_str fp = h->conflicts[i].fingerprint;
    char hex[2 * (SEMEL_FP_MAX + 1) + 1] = "";
    for (size_t k = 1; k < fp.n && k <= SEMEL_FP_MAX; k++) /* the first byte is the kind */
        snprintf(hex + 2 * (k - 1), 3, "%02x", (unsigned char)fp.p[k]);
    cli_object_text(one, "fingerprint", semel__str(hex));
    cli_object_number(one, "count", h->conflicts[i].n);
    cli_object_time(one, "first", h->conflicts[i].first_us);
    cli_object_time(one, "last", h->conflicts[i].last_us);
}

static void fill_rival(struct cli_object *one, const struct semel_history *h, size_t i)
{
    const struct semel_rival *rival = &h->rivals[i];
    cli_object_text(one, "id", rival->id);
    cli_object_text(one, "source", rival->source);
    cli_object_text(one, "business_key", rival->key);
    cli_object_text(one, "status",
                    rival->state != SEMEL_STATE_ABSENT ? semel__str(semel__state_name(rival->state))
                                                       : (struct semel_str){0});
}

/* Those that have a business key that it wants; those who wait for one, the first of them and how many there are. */
static void put_rivals(struct cli_object *object, const struct cli_facts *f)
{
    struct semel_history part = *f->history;
    size_t holders = cli_facts_waiters(f), waiters = part.n_rivals - holders;
    put_list(object, "holders", &part, holders, fill_rival);
    if (holders > 0)
        part.rivals += holders;
    put_list(object, "waiters", &part, waiters < CLI_WAITERS_MAX ? waiters : CLI_WAITERS_MAX, fill_rival);
    cli_object_number(object, "waiters_count", (int64_t)waiters);
}

static void put_keys(struct cli_object *object, const char *name, const struct semel_str *keys, size_t n)
{
    struct semel_buf list;
    semel__buf_init(&list, 1 << 20);
    semel__buf_addz(&list, "[");
    for (size_t i = 0; i < n; i++) {
        semel__buf_addz(&list, i > 0 ? "," : "");
        cli_json_string(&list, keys[i]);
    }
    semel__buf_addz(&list, "]");
    cli_object_raw(object, name, semel__buf_str(&list));
    object->buf.failed |= list.failed;
    semel__buf_done(&list);
}

static void put_row(struct cli_object *o, const struct semel_row *row)
{
    const struct semel_live *live = &row->live;
    const char *cls = live->error_class != SEMEL_CLASS_NONE ? semel__class_name(live->error_class) : NULL;
    bool text = row->kept && row->payload.n <= JSON_PAYLOAD_MAX && semel__utf8_valid(row->payload);
    cli_object_text(o, "id", row->id);
    cli_object_text(o, "consumer", row->consumer);
    cli_object_text(o, "source", row->source);
    cli_object_text(o, "type", row->type);
    cli_object_text(o, "status", semel__str(semel__state_name(live->state)));
    cli_object_text(o, "class", semel__str(cls));
    cli_object_text(o, "error", live->error_text);
    cli_object_number(o, "attempts", live->attempts);
    cli_object_number(o, "attempts_before", live->attempts_before);
    cli_object_number(o, "replays", live->replays);
    cli_object_bool(o, "alone", live->alone);
    cli_object_text(o, "key", row->order_key);
    cli_object_number(o, "version", row->version);
    cli_object_time(o, "made", row->message_time_us);
    cli_object_time(o, "received", row->received_us);
    cli_object_time(o, "updated", row->updated_us);
    cli_object_time(o, "finished", live->processed_us);
    cli_object_time(o, "due", live->due_us);
    cli_object_text(o, "held_by", live->lease_owner);
    cli_object_time(o, "held_until", live->lease_until_us);
    cli_object_raw(o, "outcome", live->outcome);
    cli_object_text(o, "position", row->position);
    cli_object_text(o, "traceparent", row->traceparent);
    cli_object_number(o, "arrival", row->arrival);
    cli_object_raw(o, "headers", row->headers);
    cli_object_bool(o, "payload_kept", row->kept);
    cli_object_number(o, "payload_bytes", row->kept ? (int64_t)row->payload.n : SEMEL_NONE);
    cli_object_text(o, "payload", text ? row->payload : (struct semel_str){0});
}

static int print_object(const struct cli_facts *f, const struct semel_buf *why, const struct semel_buf *next)
{
    const struct semel_history *h = f->history;
    struct cli_object o;
    cli_object_init(&o);
    put_row(&o, f->row);
    put_keys(&o, "business_keys", h->business, h->n_business);
    put_keys(&o, "wanted_keys", f->row->wants, f->row->n_wants);
    put_rivals(&o, f);
    put_list(&o, "failures", h, h->n_tries, fill_try);
    put_list(&o, "audit", h, h->n_acts, fill_act);
    put_list(&o, "conflicts", h, h->n_conflicts, fill_conflict);
    cli_object_bool(&o, "more", h->more);
    cli_object_text(&o, "why", semel__buf_str(why));
    cli_object_text(&o, "next", semel__buf_str(next));
    return cli_object_print(&o);
}

/* ---- the command --------------------------------------------------------------------------------- */

static int print_payload(const struct semel_row *row)
{
    if (!row->kept)
        return cli_fail(CLI_REFUSED, "the payload of this message was not kept");
    if (isatty(STDOUT_FILENO) == 1) {
        struct semel_str rest = row->payload;
        while (rest.n > 0) {
            uint32_t c = 0;
            size_t n = semel__utf8_next(rest, &c);
            if (n == 0 || (c != '\n' && c != '\t' && !semel__utf8_shown(c)))
                return cli_fail(CLI_REFUSED, "the payload has control characters or is not text: send it to a file");
            rest.p += n;
            rest.n -= n;
        }
    }
    fwrite(row->payload.p, 1, row->payload.n, stdout);
    return CLI_OK;
}

static int print_all(const struct cli *cli, const struct cli_facts *f)
{
    struct semel_buf why, next;
    int code = CLI_OK;
    semel__buf_init(&why, CLI_EXPLAIN_MAX);
    semel__buf_init(&next, CLI_EXPLAIN_MAX);
    cli_explain(f, &why, &next);
    if (why.failed || next.failed) {
        code = cli_fail(CLI_FAILED, "out of memory");
    } else if (cli->json) {
        code = print_object(f, &why, &next);
    } else {
        say_row(cli, f);
        say_history(cli, f);
        cli_say(cli, "%s", "");
        say_lines(cli, &why);
        say_lines(cli, &next);
    }
    semel__buf_done(&why);
    semel__buf_done(&next);
    return code;
}

/* Its row is there and cannot be read: what is wrong with it is known to who reads it under its whole name. */
static int tell_damaged(struct cli *cli, const struct cli_args *args, struct semel_store *store, const char *id)
{
    const char *consumer = cli_value(args, "consumer"), *source = cli_value(args, "source");
    struct semel_fetched found = {.source = semel__str(source != NULL ? source : ""), .id = semel__str(id)};
    struct semel_fetch_batch batch = {.consumer = semel__str(consumer), .items = &found, .n_items = 1};
    struct semel_buf why, next;
    int64_t now_us;
    if (consumer == NULL)
        return cli_fail(CLI_FAILED, "the row of '%s' cannot be read; add its --consumer and --source to see why", id);
    if (semel_store_begin(store, SEMEL_TX_OWN, &now_us, NULL) == SEMEL_OK) {
        (void)semel_store_fetch(store, &batch, &cli->arena, NULL);
        semel_store_rollback(store);
    }
    semel__buf_init(&why, CLI_EXPLAIN_MAX);
    semel__buf_init(&next, CLI_EXPLAIN_MAX);
    cli_explain_damaged(semel__str(found.damaged ? found.damage.text : "add its --source to see why"), &why, &next);
    struct semel_str lines[] = {semel__buf_str(&why), semel__buf_str(&next)};
    for (size_t i = 0; i < 2; i++)
        cli_fail(CLI_FAILED, "%.*s", (int)lines[i].n, lines[i].p);
    semel__buf_done(&why);
    semel__buf_done(&next);
    return CLI_FAILED;
}

static int run(struct cli *cli, const struct cli_args *args)
{
    const char *id = cli_operand(args, 0);
    struct semel_row *row = NULL;
    struct cli_facts facts;
    bool damaged = false, raw = cli_flag(args, "payload");
    int code = CLI_OK;
    if (raw && cli->json)
        return cli_fail(CLI_USAGE, "--payload writes the bytes as they are, and --json cannot; give one of them");
    struct semel_store *store = cli_store_open(args, false, &code);
    if (store == NULL)
        return code;
    code = inbox_find(cli, args, store, id, true, &row, &damaged);
    if (code == CLI_OK && damaged)
        code = tell_damaged(cli, args, store, id);
    else if (code == CLI_OK && raw)
        code = print_payload(row);
    else if (code == CLI_OK && (code = inbox_facts(cli, args, store, row, &facts)) == CLI_OK)
        code = print_all(cli, &facts);
    semel_store_close(store);
    return code;
}

static const struct cli_option options[] = {
    INBOX_WHOSE_OPTIONS,
    {"payload", 0, NULL, "write the payload alone, byte for byte"},
    CLI_STORE_OPTION,
    {NULL, 0, NULL, NULL},
};

const struct cli_command inbox_show = {
    .name = "show",
    .summary = "show one message, and say why it is not running",
    .operands = "ID",
    .operands_min = 1,
    .operands_max = 1,
    .options = options,
    .help = "Shows the row, its failed attempts, what operators did to it, and then in words why it is not running and "
            "what\n"
            "would make it run.\n"
            "\n"
            "Examples:\n"
            "  semel inbox show pay-17\n"
            "  semel inbox show pay-17 --consumer billing --payload > pay-17.json",
    .run = run,
};
