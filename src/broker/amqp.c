/* SPDX-License-Identifier: MIT
 *
 * amqp.c: RabbitMQ as a source: settings, the window of unanswered deliveries, messages from frames, opening and
 * closing, poll, the answers, and questions about a queue. See amqp.h.
 *
 * The window. The server numbers the deliveries of a channel from 1 on. A tag is the channel's epoch, 24 bits that no
 * other channel of this process has had for sixteen million channels, and the number, 40 bits. The slots are
 * ascending; an answered one is GONE and is removed when it is the first, or when room is needed. So there are never
 * many more slots than the server may leave unanswered, however long the oldest of them takes.
 *
 * A message consists of its delivery, its header, and the frames of its body. librabbitmq's own function waits for
 * the next frame for ever. This code takes the frames that have come, and may stop in the middle of a message.
 *
 * A header of a plain type becomes its text: numbers in decimal, booleans as true and false, times as seconds since
 * 1970, bytes as they are. A value in a table or an array is named by its path, `x-death.0.queue`, and comes after
 * all plain ones; at most NESTED_MAX of them are kept, and none deeper than DEPTH_MAX. Values without a text (void,
 * NaN) are left out. Headers of CloudEvents, `cloudEvents:NAME` or `cloudEvents_NAME`, are called `ce_NAME`, and
 * their times are RFC 3339.
 *
 * Invariants: all strings of a conf are in one allocation that is wiped before it is freed. A slot is answered once
 * (P30): ack, hold and cut find only OPEN ones; `live` counts those that are not GONE, `held` the HELD; an
 * acknowledgement up to a number covers only acknowledged slots. Data of a frame is copied, so that librabbitmq can
 * reuse its memory after each. The server is not trusted: a frame that does not fit, or is too long, ends the
 * connection. HEADERS_MAX is more than core accepts (SEMEL_HEADER_COUNT_MAX), so that a message with too many is seen
 * to have too many. The reader has a channel that consumes exactly when window.epoch is not 0. A reader that fails is
 * closed at once, which fences all tags, and stays closed until reopen; `error` has the reason. Deliveries of poll
 * are in the arena: none points to the library's memory.
 */
#include "broker/amqp_private.h"

#include <assert.h>
#include <math.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/number.h"

#define POLL_MAX 1000
#define POLL_BYTES ((size_t)4 << 20) /* a batch of this size ends early */
#define LATER_MS 600000
#define URL_MAX 4096
#define TEXT_MAX ((size_t)32 << 10)
#define SECRET_MAX 4096
#define PORT 5672
#define PORT_TLS 5671
#define PREFETCH 1000
#define HEARTBEAT_S 30
#define HEARTBEAT_MAX_S 600
#define SECOND_US INT64_C(1000000)
#define TIMEOUT_MS 10000
#define TIMEOUT_MAX_MS 600000
#define NUMBER_BITS 40
#define NUMBER_MASK AMQP_NUMBER_MAX
#define EPOCH_MASK ((UINT32_C(1) << 24) - 1)
#define SLOTS_FIRST 64
#define SLOTS_MAX (4 * (size_t)AMQP_PREFETCH_MAX)
#define ARENA_MAX ((size_t)8 << 20) /* a header is one frame, and frames are bounded; texts may be longer */
#define KEEP_BODY ((size_t)1 << 20) /* a larger buffer is not kept for the next message */
#define KEEP_ARENA ((size_t)64 << 10)
#define HEADERS_MAX 1024
#define NESTED_MAX 128
#define DEPTH_MAX 4
#define NAME_MAX_BYTES 1024
#define DELIVERIES_MAX 1000000
#define ASK_US INT64_C(15000000)
#define REFUSED_US (20 * ASK_US)
#define SECONDS_MAX UINT64_C(253402300799) /* the end of the year 9999 */

/* ---- settings ------------------------------------------------------------------------------------------ */

static semel_status wrong(struct semel_error *err, const char *what)
{
    return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "amqp: %s", what);
}

static semel_status wrong_url(struct semel_error *err)
{
    return wrong(err, "the URL must look like amqp://USER:PASSWORD@HOST:PORT/VHOST, with %XX for odd bytes");
}

/* Cuts the text at `found`; returns what is behind it, or NULL. */
static char *cut(char *found)
{
    if (found != NULL)
        *found++ = '\0';
    return found;
}

static bool number_in(const char *text, int64_t low, int64_t high, int *ret)
{
    int64_t number;

    if (!semel__str_int64(semel__str(text), &number) || number < low || number > high)
        return false;
    *ret = (int)number;
    return true;
}

/* HOST, HOST:PORT, [ADDRESS], [ADDRESS]:PORT */
static bool parse_host(struct amqp_conf *conf, char *text)
{
    char *port;

    if (text[0] == '[') {
        char *end = strchr(text, ']');
        if (end == NULL || (end[1] != '\0' && end[1] != ':'))
            return false;
        port = end[1] == ':' ? end + 2 : NULL;
        *end = '\0';
        text++;
    } else {
        port = cut(strchr(text, ':'));
    }
    if (port != NULL && !number_in(port, 1, 65535, &conf->port))
        return false;
    conf->host = text[0] != '\0' ? text : "localhost";
    return semel__unescape(text);
}

/* USER:PASSWORD@HOST:PORT/VHOST; `text` belongs to the conf. */
static bool parse_place(struct amqp_conf *conf, char *text)
{
    char *vhost = cut(strchr(text, '/'));
    char *host = cut(strrchr(text, '@'));

    if (host != NULL) {
        char *password = cut(strchr(text, ':'));
        if (!semel__unescape(text) || (password != NULL && !semel__unescape(password)))
            return false;
        conf->user = text;
        conf->password = password;
    }
    if (vhost != NULL && (strchr(vhost, '/') != NULL || !semel__unescape(vhost)))
        return false;
    conf->vhost = vhost != NULL && vhost[0] != '\0' ? vhost : "/";
    return parse_host(conf, host != NULL ? host : text);
}

static semel_status check(const struct semel_amqp_options *o, struct semel_error *err)
{
    if (o->url == NULL || strlen(o->url) >= URL_MAX)
        return wrong_url(err);
    if (o->queue != NULL && (o->queue[0] == '\0' || strlen(o->queue) > AMQP_SHORT_MAX))
        return wrong(err, "the queue's name must have 1 to 255 bytes");
    if (o->exchange != NULL && (o->exchange[0] == '\0' || strlen(o->exchange) > AMQP_SHORT_MAX))
        return wrong(err, "the exchange's name must have 1 to 255 bytes");
    if (o->prefetch < 0 || o->prefetch > AMQP_PREFETCH_MAX)
        return wrong(err, "prefetch must be 1 to 65535");
    if (o->heartbeat_us < 0 || o->heartbeat_us > HEARTBEAT_MAX_S * SECOND_US)
        return wrong(err, "the heartbeat must be 1 to 600 seconds");
    if (o->timeout_ms < 0 || o->timeout_ms > TIMEOUT_MAX_MS)
        return wrong(err, "the time-out must be 1 to 600000 milliseconds");
    if ((o->tls.cert_file != NULL) != (o->tls.key_file != NULL))
        return wrong(err, "a certificate and its key belong together; one of them is missing");
    if (o->password != NULL && o->user == NULL)
        return wrong(err, "there is a password, and no user to whom it belongs");
    return SEMEL_OK;
}

/* Copies a string into the conf's text; NULL stays NULL. */
static const char *keep(struct amqp_conf *conf, const char *text)
{
    const size_t n = text != NULL ? strlen(text) + 1 : 0;
    char *copy = conf->text + conf->n_text;

    if (text == NULL)
        return NULL;
    memcpy(copy, text, n);
    conf->n_text += n;
    return copy;
}

static size_t length(const struct semel_amqp_options *o)
{
    const char *const texts[] = {o->exchange,      o->url,          o->queue,
                                 o->user,          o->password,     o->tls.ca_file,
                                 o->tls.cert_file, o->tls.key_file, o->tls.key_password};
    size_t n = 0;

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        n += texts[i] != NULL ? strlen(texts[i]) + 1 : 0;
    return n;
}

static semel_status parse_url(struct amqp_conf *conf, const char *url, struct semel_error *err)
{
    char *text = (char *)(uintptr_t)keep(conf, url); /* in our own memory */

    if (strncmp(text, "amqps://", 8) == 0)
        conf->tls = true;
    else if (strncmp(text, "amqp://", 7) != 0)
        return wrong_url(err);
    conf->port = conf->tls ? PORT_TLS : PORT;
    if (strpbrk(text, " \t\r\n?#") != NULL || !parse_place(conf, text + (conf->tls ? 8 : 7)))
        return wrong_url(err);
    return SEMEL_OK;
}

static void copy_rest(struct amqp_conf *conf, const struct semel_amqp_options *o)
{
    if (o->user != NULL) {
        conf->user = keep(conf, o->user);
        conf->password = keep(conf, o->password);
    }
    conf->external = conf->tls && conf->user == NULL && o->tls.cert_file != NULL;
    conf->user = conf->user != NULL ? conf->user : "guest";
    conf->password = conf->password != NULL ? conf->password : "guest";
    conf->queue = keep(conf, o->queue);
    conf->exchange = keep(conf, o->exchange);
    conf->ca_file = keep(conf, o->tls.ca_file);
    conf->cert_file = keep(conf, o->tls.cert_file);
    conf->key_file = keep(conf, o->tls.key_file);
    conf->key_password = keep(conf, o->tls.key_password);
    conf->prefetch = o->prefetch > 0 ? o->prefetch : PREFETCH;
    conf->heartbeat_s = o->heartbeat_us > 0 ? (int)((o->heartbeat_us + SECOND_US - 1) / SECOND_US) : HEARTBEAT_S;
    conf->timeout_ms = o->timeout_ms > 0 ? o->timeout_ms : TIMEOUT_MS;
    conf->declare = o->declare;
    conf->single_active = o->single_active;
    conf->no_verify = o->tls.no_verify;
}

semel_status semel__amqp_configure(struct amqp_conf *conf, const struct semel_amqp_options *o, struct semel_error *err)
{
    semel_status status = check(o, err);
    size_t n;

    *conf = (struct amqp_conf){0};
    if (status != SEMEL_OK)
        return status;
    n = length(o);
    if (n > TEXT_MAX)
        return wrong(err, "the settings are longer than 32 KiB");
    conf->text = semel__alloc(n);
    if (conf->text == NULL)
        return semel__fail_memory(err);
    status = parse_url(conf, o->url, err);
    if (status == SEMEL_OK)
        copy_rest(conf, o);
    if (status == SEMEL_OK && (strlen(conf->user) > AMQP_SHORT_MAX || strlen(conf->password) > SECRET_MAX ||
                               strlen(conf->vhost) > AMQP_SHORT_MAX))
        status = wrong(err, "the user or the vhost is longer than 255 bytes, or the password than 4096");
    if (status != SEMEL_OK)
        semel__amqp_conf_done(conf);
    return status;
}

void semel__amqp_conf_done(struct amqp_conf *conf)
{
    if (conf->text != NULL)
        explicit_bzero(conf->text, conf->n_text);
    semel__free(conf->text);
    *conf = (struct amqp_conf){0};
}

/* ---- the window of unanswered deliveries ---------------------------------------------------------------- */

static uint32_t new_epoch(void)
{
    static _Atomic uint32_t last;
    uint32_t epoch;

    do
        epoch = (atomic_fetch_add(&last, 1) + 1) & EPOCH_MASK;
    while (epoch == 0);
    return epoch;
}

static void forget(struct amqp_window *window)
{
    window->first = window->n = 0;
    window->live = window->held = 0;
    window->due_us = SEMEL_NONE;
    window->low = window->high = 0;
    window->cut = 0;
}

void semel__amqp_window_begin(struct amqp_window *window)
{
    forget(window);
    window->epoch = new_epoch();
}

void semel__amqp_window_end(struct amqp_window *window)
{
    forget(window);
    window->epoch = 0;
}

void semel__amqp_window_done(struct amqp_window *window)
{
    semel__free(window->at);
    *window = (struct amqp_window){.due_us = SEMEL_NONE};
}

/* Not between ack and next_ack: it moves slots. */
static void compact(struct amqp_window *window)
{
    size_t kept = 0;

    for (size_t i = window->first; i < window->n; i++)
        if (window->at[i].state != AMQP_SLOT_GONE)
            window->at[kept++] = window->at[i];
    assert(kept == window->live);
    window->first = 0;
    window->n = kept;
}

static bool make_room(struct amqp_window *window)
{
    const size_t cap = window->cap == 0 ? SLOTS_FIRST : 2 * window->cap;
    struct amqp_slot *at;

    if (window->n < window->cap)
        return true;
    compact(window);
    if (2 * window->n < window->cap)
        return true;
    at = cap <= SLOTS_MAX ? semel__realloc(window->at, cap, sizeof *at) : NULL;
    if (at == NULL)
        return window->n < window->cap;
    window->at = at;
    window->cap = cap;
    return true;
}

bool semel__amqp_window_enter(struct amqp_window *window, uint64_t number, uint64_t *ret_tag)
{
    assert(window->epoch != 0 && number <= NUMBER_MASK && window->low == window->high);
    assert(window->n == window->first || window->at[window->n - 1].number < number);
    if (!make_room(window))
        return false;
    window->at[window->n++] = (struct amqp_slot){.number = number, .state = AMQP_SLOT_OPEN};
    window->live++;
    *ret_tag = (uint64_t)window->epoch << NUMBER_BITS | number;
    return true;
}

/* The index of a tag that is still unanswered. false: fenced. */
static bool find(const struct amqp_window *window, uint64_t tag, size_t *ret)
{
    const uint64_t number = tag & NUMBER_MASK;
    size_t low = window->first, high = window->n;

    if (window->epoch == 0 || tag >> NUMBER_BITS != window->epoch || (window->cut != 0 && number >= window->cut))
        return false;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (window->at[mid].number == number) {
            *ret = mid;
            return window->at[mid].state == AMQP_SLOT_OPEN;
        }
        if (window->at[mid].number < number)
            low = mid + 1;
        else
            high = mid;
    }
    return false;
}

bool semel__amqp_window_has(const struct amqp_window *window, uint64_t tag)
{
    size_t i;

    return find(window, tag, &i);
}

static void drop(struct amqp_window *window, struct amqp_slot *slot)
{
    window->held -= slot->state == AMQP_SLOT_HELD;
    slot->state = AMQP_SLOT_GONE;
    window->live--;
    while (window->first < window->n && window->at[window->first].state == AMQP_SLOT_GONE)
        window->first++;
}

bool semel__amqp_window_ack(struct amqp_window *window, uint64_t tag)
{
    size_t i;

    if (!find(window, tag, &i))
        return false;
    window->at[i].state = AMQP_SLOT_ACKED;
    window->low = window->low < window->high && window->low < i ? window->low : i;
    window->high = window->high > i ? window->high : i + 1;
    return true;
}

bool semel__amqp_window_next_ack(struct amqp_window *window, uint64_t *ret_number, bool *ret_multiple)
{
    size_t i = window->low > window->first ? window->low : window->first;
    const bool from_first = i == window->first;
    size_t n = 0;

    while (i < window->high && window->at[i].state != AMQP_SLOT_ACKED)
        i++;
    if (i >= window->high) {
        window->low = window->high = 0;
        return false;
    }
    /* No unanswered slot before it: a run of any length is one acknowledgement. */
    if (from_first && i == window->first) {
        for (; i < window->high && window->at[i].state != AMQP_SLOT_OPEN && window->at[i].state != AMQP_SLOT_HELD; i++)
            if (window->at[i].state == AMQP_SLOT_ACKED) {
                *ret_number = window->at[i].number;
                drop(window, &window->at[i]);
                n++;
            }
    } else {
        *ret_number = window->at[i].number;
        drop(window, &window->at[i++]);
    }
    *ret_multiple = n > 1;
    window->low = i;
    return true;
}

bool semel__amqp_window_hold(struct amqp_window *window, uint64_t tag, int64_t due_us)
{
    size_t i;

    if (!find(window, tag, &i))
        return false;
    window->at[i].state = AMQP_SLOT_HELD;
    window->at[i].due_us = due_us;
    window->held++;
    if (window->due_us == SEMEL_NONE || due_us < window->due_us)
        window->due_us = due_us;
    return true;
}

bool semel__amqp_window_next_due(struct amqp_window *window, int64_t now_us, uint64_t *ret_number)
{
    int64_t due_us = SEMEL_NONE;

    if (window->due_us == SEMEL_NONE || window->due_us > now_us)
        return false;
    for (size_t i = window->first; i < window->n; i++) {
        struct amqp_slot *slot = &window->at[i];
        if (slot->state != AMQP_SLOT_HELD)
            continue;
        if (slot->due_us <= now_us) {
            *ret_number = slot->number;
            drop(window, slot);
            return true;
        }
        due_us = due_us == SEMEL_NONE || slot->due_us < due_us ? slot->due_us : due_us;
    }
    window->due_us = due_us;
    return false;
}

bool semel__amqp_window_cut(struct amqp_window *window, uint64_t tag)
{
    size_t i;

    if (!find(window, tag, &i))
        return false;
    window->cut = window->at[i].number;
    while (window->n > i)
        if (window->at[--window->n].state != AMQP_SLOT_GONE)
            drop(window, &window->at[window->n]);
    if (window->first > window->n)
        window->first = window->n;
    return true;
}

/* ---- a value ------------------------------------------------------------------------------------------- */

/* false: it has no text. `room` bytes are enough for all but strings, which are borrowed. */
static bool number_text(const amqp_field_value_t *value, char *out, size_t room)
{
    switch (value->kind) {
    case AMQP_FIELD_KIND_I8:
        return snprintf(out, room, "%d", value->value.i8) > 0;
    case AMQP_FIELD_KIND_U8:
        return snprintf(out, room, "%u", value->value.u8) > 0;
    case AMQP_FIELD_KIND_I16:
        return snprintf(out, room, "%d", value->value.i16) > 0;
    case AMQP_FIELD_KIND_U16:
        return snprintf(out, room, "%u", value->value.u16) > 0;
    case AMQP_FIELD_KIND_I32:
        return snprintf(out, room, "%ld", (long)value->value.i32) > 0;
    case AMQP_FIELD_KIND_U32:
        return snprintf(out, room, "%lu", (unsigned long)value->value.u32) > 0;
    case AMQP_FIELD_KIND_I64:
        return snprintf(out, room, "%lld", (long long)value->value.i64) > 0;
    case AMQP_FIELD_KIND_U64:
    case AMQP_FIELD_KIND_TIMESTAMP:
        return snprintf(out, room, "%llu", (unsigned long long)value->value.u64) > 0;
    default:
        return false;
    }
}

static bool double_text(double value, char out[SEMEL_NUMBER_TEXT])
{
    struct semel_decimal decimal;

    if (!isfinite(value))
        return false;
    decimal = semel__decimal_of_double(value);
    out[semel__decimal_write(&decimal, out)] = '\0';
    return true;
}

/* A signed number with a point before its last digits. Missing digits are zeros: "0.007". */
static bool decimal_text(amqp_decimal_t decimal, char *out, size_t room)
{
    const long value = (int32_t)decimal.value;
    const int places = decimal.decimals;
    char digits[16];
    int n = snprintf(digits, sizeof digits, "%ld", labs(value)), lead = places >= n ? places - n + 1 : 0;

    if (places > 40)
        return false;
    snprintf(out, room, "%s%.*s%s", value < 0 ? "-" : "", lead, "00000000000000000000000000000000000000000000", digits);
    n = (int)strlen(out);
    if (places > 0) {
        memmove(out + n - places + 1, out + n - places, (size_t)places + 1);
        out[n - places] = '.';
    }
    return true;
}

static bool time_text(uint64_t seconds, char out[SEMEL_TIME_TEXT])
{
    if (seconds > SECONDS_MAX)
        return false;
    semel__time_format((int64_t)seconds * 1000000, out);
    return true;
}

#define TEXT 64

/* The text is in `out` or is the value's own. false: there is none. */
static bool value_text(const amqp_field_value_t *value, bool event, char out[TEXT], struct semel_str *ret)
{
    bool known;

    switch (value->kind) {
    case AMQP_FIELD_KIND_UTF8:
    case AMQP_FIELD_KIND_BYTES:
        *ret = amqp_str(value->value.bytes);
        return true;
    case AMQP_FIELD_KIND_BOOLEAN:
        *ret = value->value.boolean ? SEMEL_STR("true") : SEMEL_STR("false");
        return true;
    case AMQP_FIELD_KIND_F32:
        known = double_text((double)value->value.f32, out);
        break;
    case AMQP_FIELD_KIND_F64:
        known = double_text(value->value.f64, out);
        break;
    case AMQP_FIELD_KIND_DECIMAL:
        known = decimal_text(value->value.decimal, out, TEXT);
        break;
    default:
        known = event && value->kind == AMQP_FIELD_KIND_TIMESTAMP ? time_text(value->value.u64, out)
                                                                  : number_text(value, out, TEXT);
    }
    if (known)
        *ret = semel__str(out);
    return known;
}

/* ---- headers ------------------------------------------------------------------------------------------- */

struct flat {
    struct semel_arena *arena;
    struct semel_pair *pairs;
    size_t n, max;
    char name[NAME_MAX_BYTES]; /* of the current value */
    bool no_memory;
};

/* "cloudEvents:id" is called "ce_id". */
static bool event_name(struct semel_str name, struct semel_str *ret_rest)
{
    const struct semel_str prefix = SEMEL_STR("cloudEvents");

    if (name.n <= prefix.n + 1 || memcmp(name.p, prefix.p, prefix.n) != 0 ||
        (name.p[prefix.n] != ':' && name.p[prefix.n] != '_'))
        return false;
    *ret_rest = (struct semel_str){name.p + prefix.n + 1, name.n - prefix.n - 1};
    return true;
}

static void add(struct flat *flat, size_t n_name, const amqp_field_value_t *value)
{
    struct semel_str name = {flat->name, n_name}, rest = {0}, text;
    char out[TEXT], event[NAME_MAX_BYTES];
    const bool is_event = event_name(name, &rest);

    if (flat->no_memory || flat->n == flat->max || !value_text(value, is_event, out, &text))
        return;
    if (is_event) {
        memcpy(event, "ce_", 3);
        memcpy(event + 3, rest.p, rest.n);
        name = (struct semel_str){event, rest.n + 3};
    }
    flat->no_memory = !semel__arena_copy(flat->arena, name, &flat->pairs[flat->n].name) ||
                      !semel__arena_copy(flat->arena, text, &flat->pairs[flat->n].value);
    flat->n += !flat->no_memory;
}

/* Appends ".part", or "part" to an empty name; returns the new length. 0: too long. */
static size_t extend(struct flat *flat, size_t n, struct semel_str part)
{
    const size_t dot = n > 0 ? 1 : 0;

    if (part.n == 0 || n + dot + part.n > sizeof flat->name)
        return 0;
    if (dot > 0)
        flat->name[n] = '.';
    memcpy(flat->name + n + dot, part.p, part.n);
    return n + dot + part.n;
}

static bool is_plain(const amqp_field_value_t *value)
{
    return value->kind != AMQP_FIELD_KIND_TABLE && value->kind != AMQP_FIELD_KIND_ARRAY;
}

static void walk(struct flat *flat, size_t n, const amqp_field_value_t *value, int depth)
{
    const bool table = value->kind == AMQP_FIELD_KIND_TABLE;
    const int n_entries = table ? value->value.table.num_entries : value->value.array.num_entries;

    if (is_plain(value)) {
        add(flat, n, value);
        return;
    }
    for (int i = 0; i < n_entries && depth < DEPTH_MAX && flat->n < flat->max && !flat->no_memory; i++) {
        char index[16];
        struct semel_str part = {index, 0};
        size_t longer;
        if (table) {
            part = amqp_str(value->value.table.entries[i].key);
        } else {
            snprintf(index, sizeof index, "%d", i);
            part.n = strlen(index);
        }
        longer = extend(flat, n, part);
        if (longer > 0)
            walk(flat, longer, table ? &value->value.table.entries[i].value : &value->value.array.entries[i],
                 depth + 1);
    }
}

bool semel__amqp_headers(const amqp_table_t *table, struct semel_arena *arena, struct semel_delivery *d)
{
    const size_t plain = table->num_entries < HEADERS_MAX ? (size_t)table->num_entries : HEADERS_MAX;
    struct flat flat = {.arena = arena, .max = plain};

    flat.pairs = semel__arena_alloc(arena, plain + NESTED_MAX, sizeof *flat.pairs);
    if (flat.pairs == NULL)
        return false;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < table->num_entries && flat.n < flat.max && !flat.no_memory; i++) {
            const amqp_table_entry_t *entry = &table->entries[i];
            const size_t n = extend(&flat, 0, amqp_str(entry->key));
            if (n > 0 && is_plain(&entry->value) == (pass == 0))
                walk(&flat, n, &entry->value, 1);
        }
        flat.max = flat.n + NESTED_MAX;
    }
    d->headers = flat.pairs;
    d->n_headers = flat.n;
    return !flat.no_memory;
}

/* ---- properties ---------------------------------------------------------------------------------------- */

bool semel__amqp_properties(const amqp_basic_properties_t *properties, struct semel_str routing_key,
                            struct semel_str exchange, struct semel_arena *arena, struct semel_delivery *d)
{
    char time[SEMEL_TIME_TEXT];
    const struct {
        amqp_flags_t flag;
        struct semel_str name, value;
    } rows[] = {
        {AMQP_BASIC_MESSAGE_ID_FLAG, SEMEL_STR("message_id"), amqp_str(properties->message_id)},
        {AMQP_BASIC_TYPE_FLAG, SEMEL_STR("type"), amqp_str(properties->type)},
        {AMQP_BASIC_CORRELATION_ID_FLAG, SEMEL_STR("correlation_id"), amqp_str(properties->correlation_id)},
        {AMQP_BASIC_TIMESTAMP_FLAG, SEMEL_STR("timestamp"), {time, 0}},
        {AMQP_BASIC_CONTENT_TYPE_FLAG, SEMEL_STR("content_type"), amqp_str(properties->content_type)},
        {AMQP_BASIC_APP_ID_FLAG, SEMEL_STR("app_id"), amqp_str(properties->app_id)},
        {0, SEMEL_STR("routing_key"), routing_key},
        {0, SEMEL_STR("exchange"), exchange},
    };
    const size_t n = sizeof rows / sizeof rows[0];
    struct semel_pair *pairs = semel__arena_alloc(arena, n, sizeof *pairs);

    d->properties = pairs;
    d->n_properties = 0;
    for (size_t i = 0; pairs != NULL && i < n; i++) {
        struct semel_str value = rows[i].value;
        if (rows[i].flag != 0 && (properties->_flags & rows[i].flag) == 0)
            continue;
        if (rows[i].flag == AMQP_BASIC_TIMESTAMP_FLAG) {
            if (!time_text(properties->timestamp, time))
                continue;
            value = semel__str(time);
        }
        pairs[d->n_properties].name = rows[i].name;
        if (!semel__arena_copy(arena, value, &pairs[d->n_properties++].value))
            return false;
    }
    return pairs != NULL;
}

int semel__amqp_delivery_count(const amqp_basic_properties_t *properties)
{
    const bool has_headers = (properties->_flags & AMQP_BASIC_HEADERS_FLAG) != 0;

    for (int i = 0; has_headers && i < properties->headers.num_entries; i++) {
        const amqp_table_entry_t *entry = &properties->headers.entries[i];
        char text[TEXT];
        int64_t count;
        if (semel__str_eqz(amqp_str(entry->key), "x-delivery-count") && number_text(&entry->value, text, sizeof text) &&
            semel__str_int64(semel__str(text), &count) && count > 1)
            return count < DELIVERIES_MAX ? (int)count + 1 : DELIVERIES_MAX;
    }
    return 2;
}

/* ---- assembling a message ------------------------------------------------------------------------------ */

void semel__amqp_build_init(struct amqp_build *build)
{
    *build = (struct amqp_build){0};
    semel__arena_init(&build->arena, ARENA_MAX);
}

void semel__amqp_build_drop(struct amqp_build *build)
{
    build->stage = AMQP_STAGE_NONE;
    if (build->arena.used > KEEP_ARENA)
        semel__arena_done(&build->arena);
    else
        semel__arena_reset(&build->arena);
    if (build->cap_body > KEEP_BODY) {
        semel__free(build->body);
        build->body = NULL;
        build->cap_body = 0;
    }
}

void semel__amqp_build_done(struct amqp_build *build)
{
    semel__arena_done(&build->arena);
    semel__free(build->body);
    build->body = NULL;
    build->cap_body = 0;
}

static semel_status misplaced(struct semel_error *err)
{
    return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "amqp: the server sent a frame that does not fit");
}

semel_status semel__amqp_build_deliver(struct amqp_build *build, const amqp_basic_deliver_t *deliver,
                                       struct semel_error *err)
{
    if (build->stage != AMQP_STAGE_NONE || deliver->delivery_tag <= build->number ||
        deliver->delivery_tag > AMQP_NUMBER_MAX)
        return misplaced(err);
    build->number = deliver->delivery_tag;
    build->redelivered = deliver->redelivered != 0;
    if (!semel__arena_copy(&build->arena, amqp_str(deliver->exchange), &build->exchange) ||
        !semel__arena_copy(&build->arena, amqp_str(deliver->routing_key), &build->routing_key))
        return semel__fail_memory(err);
    build->stage = AMQP_STAGE_HEADER;
    return SEMEL_OK;
}

static bool make_body(struct amqp_build *build, size_t n)
{
    build->have = 0;
    build->n_body = n;
    if (build->body != NULL && n <= build->cap_body)
        return true;
    semel__free(build->body);
    build->cap_body = n > 4096 ? n : 4096;
    build->body = semel__alloc(build->cap_body);
    if (build->body == NULL)
        build->cap_body = 0;
    return build->body != NULL;
}

static void check_whole(struct amqp_build *build)
{
    if (build->have < build->n_body)
        return;
    build->d.payload = build->n_body > 0 ? (struct semel_str){build->body, build->n_body} : SEMEL_STR("");
    build->stage = AMQP_STAGE_WHOLE;
}

static semel_status handle_header(struct amqp_build *build, const amqp_frame_t *frame, struct semel_error *err)
{
    const amqp_basic_properties_t *properties = frame->payload.properties.decoded;
    const uint64_t size = frame->payload.properties.body_size;

    if (frame->payload.properties.class_id != AMQP_BASIC_CLASS || size > AMQP_BODY_MAX)
        return misplaced(err);
    build->d = (struct semel_delivery){.delivery = build->redelivered ? semel__amqp_delivery_count(properties) : 1};
    if (((properties->_flags & AMQP_BASIC_HEADERS_FLAG) != 0 &&
         !semel__amqp_headers(&properties->headers, &build->arena, &build->d)) ||
        !semel__amqp_properties(properties, build->routing_key, build->exchange, &build->arena, &build->d) ||
        !make_body(build, (size_t)size))
        return semel__fail_memory(err);
    build->stage = AMQP_STAGE_BODY;
    check_whole(build);
    return SEMEL_OK;
}

semel_status semel__amqp_build_content(struct amqp_build *build, const amqp_frame_t *frame, struct semel_error *err)
{
    const struct semel_str piece = frame->frame_type == AMQP_FRAME_BODY ? amqp_str(frame->payload.body_fragment)
                                                                        : (struct semel_str){NULL, 0};

    if (frame->frame_type == AMQP_FRAME_HEADER)
        return build->stage == AMQP_STAGE_HEADER ? handle_header(build, frame, err) : misplaced(err);
    if (build->stage != AMQP_STAGE_BODY || piece.n > build->n_body - build->have)
        return misplaced(err);
    if (piece.n > 0)
        memcpy(build->body + build->have, piece.p, piece.n);
    build->have += piece.n;
    check_whole(build);
    return SEMEL_OK;
}

bool semel__amqp_build_copy(const struct amqp_build *build, struct semel_arena *arena, struct semel_delivery *ret)
{
    *ret = build->d;
    return semel__arena_copy(arena, build->d.payload, &ret->payload) &&
           semel__broker_copy_pairs(arena, build->d.headers, build->d.n_headers, &ret->headers) &&
           semel__broker_copy_pairs(arena, build->d.properties, build->d.n_properties, &ret->properties);
}

static const struct semel_broker_ops unordered, ordered;

static struct amqp *self(struct semel_broker *broker)
{
    return (struct amqp *)broker;
}

/* ---- the end of a connection -------------------------------------------------------------------------- */

/* A server that allows no second channel answers the question by closing the connection, so it is not asked again at
 * once. */
static void disconnect(struct amqp *amqp, bool in_peace)
{
    semel__amqp_link_close(&amqp->reader, in_peace);
    semel__amqp_window_end(&amqp->window);
    semel__amqp_build_drop(&amqp->build);
    amqp->again_us = SEMEL_NONE;
    if (amqp->unanswered)
        amqp->ask_us = semel__steady_us() + REFUSED_US;
    amqp->asking = amqp->unanswered = false;
    amqp->ready = -1;
}

/* Sets what poll returns from now on. */
static semel_status remember(struct amqp *amqp, semel_status status, enum semel_class cls, struct semel_error *err)
{
    if (amqp->error.text[0] == '\0')
        (void)semel__fail_memory(&amqp->error);
    amqp->error.status = status;
    amqp->error.cls = cls;
    if (err != NULL)
        *err = amqp->error;
    return status;
}

/* The reader has failed with `why`. */
static semel_status die(struct amqp *amqp, const struct semel_error *why, struct semel_error *err)
{
    amqp->error = *why;
    disconnect(amqp, false);
    return remember(amqp, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, err);
}

/* ---- connecting --------------------------------------------------------------------------------------- */

static semel_status declare(struct amqp *amqp, struct semel_error *err)
{
    const char *type = amqp->conf.declare == SEMEL_AMQP_DECLARE_QUORUM ? "quorum" : "classic";
    amqp_table_entry_t entries[] = {
        {.key = amqp_cstring_bytes("x-queue-type"),
         .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = amqp_cstring_bytes(type)}},
        {.key = amqp_cstring_bytes("x-single-active-consumer"),
         .value = {.kind = AMQP_FIELD_KIND_BOOLEAN, .value.boolean = 1}},
    };
    const amqp_table_t arguments = {.num_entries = amqp->conf.single_active ? 2 : 1, .entries = entries};

    if (amqp->conf.declare == SEMEL_AMQP_DECLARE_NEVER)
        return SEMEL_OK;
    if (amqp_queue_declare(amqp->reader.conn, AMQP_CHANNEL, amqp_cstring_bytes(amqp->conf.queue), 0, 1, 0, 0,
                           arguments) == NULL)
        return semel__amqp_fail_reply(amqp_get_rpc_reply(amqp->reader.conn), "declaring the queue", err);
    return SEMEL_OK;
}

/* The channel is open; from now on there are tags. */
static semel_status consume(struct amqp *amqp, struct semel_error *err)
{
    amqp_connection_state_t conn = amqp->reader.conn;
    semel_status status = declare(amqp, err);

    if (status != SEMEL_OK)
        return status;
    if (amqp_basic_qos(conn, AMQP_CHANNEL, 0, (uint16_t)amqp->conf.prefetch, 0) == NULL ||
        amqp_basic_consume(conn, AMQP_CHANNEL, amqp_cstring_bytes(amqp->conf.queue), amqp_empty_bytes, 0, 0, 0,
                           amqp_empty_table) == NULL)
        return semel__amqp_fail_reply(amqp_get_rpc_reply(conn), "reading the queue", err);
    semel__amqp_window_begin(&amqp->window);
    semel__amqp_build_drop(&amqp->build);
    amqp->build.number = 0;
    amqp->again_us = SEMEL_NONE;
    return SEMEL_OK;
}

/* RETRY or INVALID: not connected; poll reports the reason. */
static semel_status connect_reader(struct amqp *amqp, struct semel_error *err)
{
    semel_status status = semel__amqp_link_open(&amqp->reader, &amqp->conf, amqp->conf.heartbeat_s, SEMEL_NONE,
                                                &amqp->error);

    amqp->tried = true;
    if (status == SEMEL_OK)
        status = consume(amqp, &amqp->error);
    if (status == SEMEL_OK)
        return status;
    disconnect(amqp, false);
    if (status == SEMEL_INVALID)
        return remember(amqp, status, SEMEL_CLASS_BROKEN, err);
    (void)remember(amqp, SEMEL_CLOSED, SEMEL_CLASS_ENVIRONMENT, err);
    if (err != NULL)
        err->status = SEMEL_RETRY;
    return SEMEL_RETRY;
}

static void prepare(struct amqp *amqp)
{
    amqp->window.due_us = SEMEL_NONE;
    amqp->again_us = SEMEL_NONE;
    amqp->ready = -1;
    semel__amqp_build_init(&amqp->build);
    if (amqp->conf.single_active)
        amqp->base.ops = &ordered;
}

semel_status semel__broker_amqp_open(struct semel_broker **ret, const struct semel_amqp_options *options,
                                     struct semel_error *err)
{
    struct amqp *amqp = semel__calloc(1, sizeof *amqp);
    semel_status status;

    if (amqp == NULL)
        return semel__fail_memory(err);
    amqp->base.ops = &unordered;
    status = semel__amqp_configure(&amqp->conf, options, err);
    if (status != SEMEL_OK) {
        semel__free(amqp);
        return status;
    }
    prepare(amqp);
    *ret = &amqp->base;
    return SEMEL_OK;
}

static void amqp_close(struct semel_broker *broker)
{
    struct amqp *amqp = self(broker);

    disconnect(amqp, true);
    semel__amqp_link_close(&amqp->sender, !amqp->sender.blocked);
    semel__amqp_build_done(&amqp->build);
    semel__amqp_window_done(&amqp->window);
    semel__amqp_conf_done(&amqp->conf);
}

static semel_status amqp_reopen(struct semel_broker *broker, struct semel_error *err)
{
    disconnect(self(broker), true);
    return self(broker)->conf.queue != NULL ? connect_reader(self(broker), err) : SEMEL_OK;
}

static semel_status ready(struct amqp *amqp, struct semel_error *err)
{
    if (amqp->conf.queue == NULL)
        return semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "amqp: there is no queue to read from; set queue");
    if (!amqp->tried)
        (void)connect_reader(amqp, NULL);
    if (amqp->reader.conn != NULL)
        return SEMEL_OK;
    if (err != NULL)
        *err = amqp->error;
    return amqp->error.status;
}

/* ---- giving back -------------------------------------------------------------------------------------- */

static semel_status handle_answer(struct amqp *amqp, const amqp_method_t *method, struct semel_error *err);

/* A frame of the connection or of the questions. */
static semel_status handle_aside(struct amqp *amqp, const amqp_frame_t *frame, struct semel_error *err)
{
    if (frame->frame_type != AMQP_FRAME_METHOD || frame->channel == AMQP_CHANNEL)
        return SEMEL_OK;
    return frame->channel == AMQP_ASKING ? handle_answer(amqp, &frame->payload.method, err)
                                         : semel__amqp_link_method(&amqp->reader, &frame->payload.method, err);
}

/* Frames that the library has queued of the closed channel are dropped; others are handled. */
static semel_status forget_frames(struct amqp *amqp, struct semel_error *err)
{
    semel_status status = SEMEL_OK;

    while (status == SEMEL_OK && amqp_frames_enqueued(amqp->reader.conn)) {
        amqp_frame_t frame;
        bool got;
        status = semel__amqp_receive(&amqp->reader, 0, &frame, &got, err);
        if (status == SEMEL_OK && got)
            status = handle_aside(amqp, &frame, err);
    }
    return status;
}

/* single_active: closes the channel when everything before the cut is answered. The server then has the rest again, in
 * order. */
static semel_status close_channel(struct amqp *amqp, struct semel_error *err)
{
    semel_status status;

    if (amqp->window.epoch == 0 || amqp->window.cut == 0 || amqp->window.live > 0)
        return SEMEL_OK;
    semel__amqp_window_end(&amqp->window);
    semel__amqp_build_drop(&amqp->build);
    status = semel__amqp_close_channel(&amqp->reader, err);
    return status == SEMEL_OK ? forget_frames(amqp, err) : status;
}

static semel_status open_channel(struct amqp *amqp, struct semel_error *err)
{
    semel_status status;

    if (amqp->window.epoch != 0 || amqp->again_us > semel__steady_us())
        return SEMEL_OK;
    status = semel__amqp_open_channel(&amqp->reader, err);
    return status == SEMEL_OK ? consume(amqp, err) : status;
}

static semel_status requeue_due(struct amqp *amqp, struct semel_error *err)
{
    const int64_t now_us = semel__steady_us();
    amqp_basic_nack_t nack = {.requeue = 1};
    semel_status status = SEMEL_OK;

    while (status == SEMEL_OK && semel__amqp_window_next_due(&amqp->window, now_us, &nack.delivery_tag))
        status = semel__amqp_send(&amqp->reader, AMQP_CHANNEL, AMQP_BASIC_NACK_METHOD, &nack, err);
    return status;
}

/* ---- how much the queue has --------------------------------------------------------------------------- */

static bool may_ask(struct amqp *amqp)
{
    const int channels = amqp_get_channel_max(amqp->reader.conn); /* 0: any number */

    return amqp->asks && (channels == 0 || channels >= AMQP_ASKING);
}

/* Asks for the queue; the answer comes among the frames. After a refusal it asks on a new channel. */
static semel_status ask_queue(struct amqp *amqp, struct semel_error *err)
{
    const int64_t now_us = semel__steady_us();
    amqp_channel_open_t open = {.out_of_band = amqp_empty_bytes};
    amqp_queue_declare_t question = {.queue = amqp_cstring_bytes(amqp->conf.queue),
                                     .passive = 1,
                                     .arguments = amqp_empty_table};
    semel_status status = SEMEL_OK;

    if (now_us < amqp->ask_us || !may_ask(amqp))
        return SEMEL_OK;
    amqp->ask_us = now_us + ASK_US;
    amqp->unanswered = true;
    if (!amqp->asking)
        status = semel__amqp_send(&amqp->reader, AMQP_ASKING, AMQP_CHANNEL_OPEN_METHOD, &open, err);
    amqp->asking = true;
    return status == SEMEL_OK ? semel__amqp_send(&amqp->reader, AMQP_ASKING, AMQP_QUEUE_DECLARE_METHOD, &question, err)
                              : status;
}

static semel_status handle_answer(struct amqp *amqp, const amqp_method_t *method, struct semel_error *err)
{
    amqp_channel_close_ok_t ok = {0};

    if (method->id == AMQP_QUEUE_DECLARE_OK_METHOD) {
        amqp->unanswered = false;
        amqp->ready = ((const amqp_queue_declare_ok_t *)method->decoded)->message_count;
    }
    if (method->id != AMQP_CHANNEL_CLOSE_METHOD)
        return SEMEL_OK;
    amqp->asking = amqp->unanswered = false;
    amqp->ready = -1;
    amqp->ask_us = semel__steady_us() + REFUSED_US;
    return semel__amqp_send(&amqp->reader, AMQP_ASKING, AMQP_CHANNEL_CLOSE_OK_METHOD, &ok, err);
}

/* Everything that is due, except messages. */
static semel_status serve(struct amqp *amqp, struct semel_error *err)
{
    semel_status status = requeue_due(amqp, err);

    if (status == SEMEL_OK)
        status = close_channel(amqp, err);
    if (status == SEMEL_OK)
        status = open_channel(amqp, err);
    return status == SEMEL_OK ? ask_queue(amqp, err) : status;
}

/* ---- poll --------------------------------------------------------------------------------------------- */

static semel_status handle_method(struct amqp *amqp, const amqp_method_t *method, struct semel_error *err)
{
    switch (method->id) {
    case AMQP_BASIC_DELIVER_METHOD:
        return semel__amqp_build_deliver(&amqp->build, method->decoded, err);
    case AMQP_BASIC_CANCEL_METHOD:
        return semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT,
                           "amqp: the server has cancelled our reading: the queue was deleted or is not available");
    default:
        return semel__amqp_link_method(&amqp->reader, method, err);
    }
}

/* Receives one frame, if one comes in time. */
static semel_status handle_frame(struct amqp *amqp, int64_t wait_us, bool *ret_got, struct semel_error *err)
{
    amqp_frame_t frame;
    semel_status status = semel__amqp_receive(&amqp->reader, wait_us, &frame, ret_got, err);

    if (status != SEMEL_OK || !*ret_got)
        return status;
    if (frame.channel != AMQP_CHANNEL)
        return handle_aside(amqp, &frame, err);
    if (amqp->window.epoch == 0)
        return SEMEL_OK;
    if (frame.frame_type == AMQP_FRAME_METHOD)
        return handle_method(amqp, &frame.payload.method, err);
    return semel__amqp_build_content(&amqp->build, &frame, err);
}

/* false: there is no room for it. */
static bool hand_over(struct amqp *amqp, struct semel_arena *arena, struct semel_delivery *d, size_t *n)
{
    if (amqp->window.cut == 0) { /* otherwise it is given back already */
        if (!semel__amqp_build_copy(&amqp->build, arena, d) ||
            !semel__arena_copy(arena, semel__str(amqp->conf.queue), &d->source) ||
            !semel__amqp_window_enter(&amqp->window, amqp->build.number, &d->tag))
            return false;
        ++*n;
    }
    semel__amqp_build_drop(&amqp->build);
    return true;
}

/* Takes the messages that have come. Not OK with a connection: there is no room even for one. */
static semel_status take(struct amqp *amqp, size_t max, struct semel_arena *arena, struct semel_delivery *deliveries,
                         size_t *ret_n, struct semel_error *err)
{
    const size_t used = arena->used;
    semel_status status = SEMEL_OK;
    bool got = true;

    while (status == SEMEL_OK && got && *ret_n < max && arena->used - used < POLL_BYTES) {
        if (amqp->build.stage != AMQP_STAGE_WHOLE)
            status = handle_frame(amqp, 0, &got, &amqp->error);
        else if (!hand_over(amqp, arena, &deliveries[*ret_n], ret_n))
            return *ret_n == 0 ? semel__fail_memory(err) : SEMEL_OK;
    }
    return status == SEMEL_OK ? status : die(amqp, &amqp->error, err);
}

/* How long only the connection needs attention. */
static int64_t quiet_us(const struct amqp *amqp, int64_t until_us)
{
    if (amqp->window.due_us != SEMEL_NONE && amqp->window.due_us < until_us)
        until_us = amqp->window.due_us;
    if (amqp->window.epoch == 0 && amqp->again_us < until_us)
        until_us = amqp->again_us;
    return until_us - semel__steady_us();
}

/* A message is here and not wanted, and frames behind it stay in the socket. So we do not call librabbitmq, and it is
 * librabbitmq that sends our heartbeats. */
static semel_status rest(struct amqp *amqp, int64_t wait_us, struct semel_error *err)
{
    const int64_t every_us = (int64_t)amqp_get_heartbeat(amqp->reader.conn) * 1000000 / 2;
    const int64_t now_us = semel__steady_us(), left_us = amqp->beat_us - now_us;
    const amqp_frame_t beat = {.frame_type = AMQP_FRAME_HEARTBEAT};

    if (every_us > 0 && left_us <= 0) {
        amqp->beat_us = now_us + every_us;
        return semel__amqp_send_frame(&amqp->reader, &beat, err);
    }
    if (wait_us > 0) {
        wait_us = every_us > 0 && left_us < wait_us ? left_us : wait_us;
        (void)poll(NULL, 0, (int)((wait_us + 999) / 1000));
    }
    return SEMEL_OK;
}

static semel_status amqp_poll(struct semel_broker *broker, size_t max, int wait_ms, struct semel_arena *arena,
                              struct semel_delivery **ret_deliveries, size_t *ret_n, struct semel_error *err)
{
    struct amqp *amqp = self(broker);
    semel_status status = ready(amqp, err);
    const int64_t until_us = semel__time_add(semel__steady_us(), (int64_t)wait_ms * 1000);
    struct semel_delivery *deliveries;
    size_t n = 0;
    bool got, read = max > 0; /* reads even when no message is wanted: heartbeats are among the frames */

    if (status != SEMEL_OK)
        return status;
    max = max < POLL_MAX ? max : POLL_MAX;
    deliveries = semel__arena_alloc(arena, max, sizeof *deliveries);
    if (deliveries == NULL)
        return semel__fail_memory(err);
    for (;;) {
        status = serve(amqp, &amqp->error);
        if (status != SEMEL_OK)
            return die(amqp, &amqp->error, err);
        status = take(amqp, max, arena, deliveries, &n, err);
        if (status != SEMEL_OK)
            return status;
        if (n > 0 || (read && semel__steady_us() >= until_us))
            break;
        read = true;
        status = amqp->build.stage == AMQP_STAGE_WHOLE
                     ? rest(amqp, quiet_us(amqp, until_us), &amqp->error)
                     : handle_frame(amqp, quiet_us(amqp, until_us), &got, &amqp->error);
        if (status != SEMEL_OK)
            return die(amqp, &amqp->error, err);
    }
    *ret_deliveries = deliveries;
    *ret_n = n;
    return status;
}

/* ---- answers ------------------------------------------------------------------------------------------ */

static semel_status send_acks(struct amqp *amqp, struct semel_error *err)
{
    amqp_basic_ack_t ack = {0};
    semel_status status = SEMEL_OK;
    bool multiple;

    while (status == SEMEL_OK && semel__amqp_window_next_ack(&amqp->window, &ack.delivery_tag, &multiple)) {
        ack.multiple = multiple;
        status = semel__amqp_send(&amqp->reader, AMQP_CHANNEL, AMQP_BASIC_ACK_METHOD, &ack, err);
    }
    return status;
}

/* Counts several of one call, wherever the lowest of them makes the cut. */
static size_t cut_all(struct amqp *amqp, const struct semel_reply *replies, size_t n)
{
    const int64_t now_us = semel__steady_us();
    uint64_t lowest = UINT64_MAX;
    size_t n_fenced = 0;

    for (size_t i = 0; i < n; i++) {
        const int64_t again_us = now_us + (int64_t)replies[i].delay_ms * 1000;
        if (semel__reply_acks(&replies[i]))
            continue;
        if (!semel__amqp_window_has(&amqp->window, replies[i].tag)) {
            n_fenced++;
            continue;
        }
        lowest = replies[i].tag < lowest ? replies[i].tag : lowest;
        amqp->again_us = amqp->again_us > again_us ? amqp->again_us : again_us; /* SEMEL_NONE is below all times */
    }
    if (lowest < UINT64_MAX)
        (void)semel__amqp_window_cut(&amqp->window, lowest);
    return n_fenced;
}

static size_t hold_all(struct amqp *amqp, const struct semel_reply *replies, size_t n)
{
    const int64_t now_us = semel__steady_us();
    size_t n_fenced = 0;

    for (size_t i = 0; i < n; i++) {
        const int64_t hold_ms = replies[i].delay_ms < LATER_MS ? replies[i].delay_ms : LATER_MS;
        if (!semel__reply_acks(&replies[i]))
            n_fenced += !semel__amqp_window_hold(&amqp->window, replies[i].tag, now_us + hold_ms * 1000);
    }
    return n_fenced;
}

static semel_status amqp_answer(struct semel_broker *broker, const struct semel_reply *replies, size_t n,
                                struct semel_error *err)
{
    struct amqp *amqp = self(broker);
    semel_status status;
    size_t n_fenced = 0;

    for (size_t i = 0; i < n; i++)
        if (semel__reply_acks(&replies[i]))
            n_fenced += !semel__amqp_window_ack(&amqp->window, replies[i].tag);
    status = send_acks(amqp, &amqp->error);
    if (status == SEMEL_OK) {
        n_fenced += amqp->conf.single_active ? cut_all(amqp, replies, n) : hold_all(amqp, replies, n);
        if (n_fenced == n)
            return semel__broker_fenced("amqp", n_fenced, n, err);
        status = requeue_due(amqp, &amqp->error);
    }
    if (status == SEMEL_OK)
        status = close_channel(amqp, &amqp->error);
    return status == SEMEL_OK ? semel__broker_fenced("amqp", n_fenced, n, err) : die(amqp, &amqp->error, err);
}

/* ---- views -------------------------------------------------------------------------------------------- */

void semel__amqp_view(struct semel_broker *broker, struct semel_amqp_view *ret)
{
    const struct amqp *amqp = self(broker);

    *ret = (struct semel_amqp_view){.connected = amqp->reader.conn != NULL,
                                    .in_flight = amqp->window.live,
                                    .held = amqp->window.held};
}

int64_t semel__amqp_behind(struct semel_broker *broker)
{
    struct amqp *amqp = self(broker);

    amqp->asks = true;
    return amqp->ready >= 0 ? amqp->ready + (int64_t)amqp->window.live : -1;
}

static bool look_for(struct amqp_link *link, const struct amqp_conf *conf, struct semel_amqp_answer *ret)
{
    if (conf->queue == NULL) { /* who only asks names no type that counts */
        ret->exists = amqp_exchange_declare(link->conn, AMQP_CHANNEL, amqp_cstring_bytes(conf->exchange),
                                            amqp_cstring_bytes("topic"), 1, 0, 0, 0, amqp_empty_table) != NULL;
        return ret->exists;
    }
    const amqp_queue_declare_ok_t *ok = amqp_queue_declare(link->conn, AMQP_CHANNEL, amqp_cstring_bytes(conf->queue), 1,
                                                           0, 0, 0, amqp_empty_table);
    if (ok != NULL)
        *ret = (struct semel_amqp_answer){true, ok->message_count, ok->consumer_count};
    return ok != NULL;
}

static semel_status ask(struct amqp_link *link, const struct amqp_conf *conf, struct semel_amqp_answer *ret,
                        struct semel_error *err)
{
    struct semel_error why;
    semel_status status;

    if (look_for(link, conf, ret))
        return SEMEL_OK;
    status = semel__amqp_fail_reply(amqp_get_rpc_reply(link->conn), "asking for the queue or exchange", &why);
    if (status == SEMEL_INVALID && why.code == AMQP_NOT_FOUND) {
        *ret = (struct semel_amqp_answer){0};
        return SEMEL_OK;
    }
    if (err != NULL)
        *err = why;
    return status;
}

semel_status semel__amqp_ask(const struct semel_amqp_options *options, struct semel_amqp_answer *ret,
                             struct semel_error *err)
{
    struct amqp_conf conf;
    struct amqp_link link;
    semel_status status = semel__amqp_configure(&conf, options, err);

    if (status != SEMEL_OK)
        return status;
    if (conf.queue == NULL && conf.exchange == NULL)
        status = semel__fail(err, SEMEL_INVALID, SEMEL_CLASS_BROKEN, "amqp: there is no queue to ask for; set queue");
    if (status == SEMEL_OK)
        status = semel__amqp_link_open(&link, &conf, 0, SEMEL_NONE, err);
    if (status == SEMEL_OK) {
        status = ask(&link, &conf, ret, err);
        semel__amqp_link_close(&link, true);
    }
    semel__amqp_conf_done(&conf);
    return status;
}

#define OPS(the_capabilities)                                                                           \
    {                                                                                                   \
        .name = "amqp", .capabilities = (the_capabilities), .close = amqp_close, .reopen = amqp_reopen, \
        .poll = amqp_poll, .answer = amqp_answer, .publish = semel__amqp_publish,                       \
    }

static const struct semel_broker_ops unordered = OPS(SEMEL_BROKER_SOURCE | SEMEL_BROKER_SINK);
/* The operations of a handle whose queue has a single active consumer. */
static const struct semel_broker_ops ordered = OPS(SEMEL_BROKER_SOURCE | SEMEL_BROKER_SINK | SEMEL_BROKER_ORDERED);
