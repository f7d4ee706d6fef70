/* SPDX-License-Identifier: MIT
 *
 * explain_put.c: the pieces of an explanation: times, counts, commands to paste, figures; and the facts of an order
 * key. The contract stands in explain.h. It knows nothing of the frame (cli.h), so that it can be tested by itself.
 */
#include "cli/explain.h"

#include "base/clock.h"
#include "core/consumer.h"

void cli_put_shown(struct semel_buf *buf, struct semel_str s)
{
    char text[4 * SEMEL_ERROR_TEXT_MAX];
    semel__str_show(text, sizeof text, s);
    semel__buf_addz(buf, text);
}

static bool plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("_-./:@%+=,", c) != NULL);
}

/* What a terminal would not show as it is (A11): each byte that is no plain character by its number. */
static void put_escaped(struct semel_buf *buf, struct semel_str s)
{
    semel__buf_addz(buf, "$'");
    for (size_t i = 0; i < s.n; i++)
        if (plain(s.p[i]) || s.p[i] == ' ')
            semel__buf_add(buf, &s.p[i], 1);
        else
            semel__buf_addf(buf, "\\%03o", (unsigned)(unsigned char)s.p[i]);
    semel__buf_addz(buf, "'");
}

void cli_put_word(struct semel_buf *buf, struct semel_str s)
{
    char text[4 * SEMEL_ERROR_TEXT_MAX];
    bool bare = s.n > 0;
    for (size_t i = 0; i < s.n; i++)
        bare = bare && plain(s.p[i]);
    semel__str_show(text, sizeof text, s);
    if (bare) {
        semel__buf_add(buf, s.p, s.n);
        return;
    }
    if (!semel__str_eqz(s, text)) {
        put_escaped(buf, s);
        return;
    }
    semel__buf_addz(buf, "'");
    for (const char *p = text; *p != '\0'; p++)
        if (*p == '\'')
            semel__buf_addz(buf, "'\\''");
        else
            semel__buf_add(buf, p, 1);
    semel__buf_addz(buf, "'");
}

void cli_put_count(struct semel_buf *buf, size_t n, const char *one, const char *many)
{
    semel__buf_addf(buf, "%zu %s", n, n == 1 ? one : many);
}

/* 40 s, 3 min, 2 h, 5 d */
static void put_span(struct semel_buf *buf, int64_t us)
{
    static const struct {
        int64_t seconds;
        const char *name;
    } units[] = {{86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}};
    int64_t seconds = us / 1000000;
    size_t i = 0;
    while (units[i].seconds > 1 && seconds < 2 * units[i].seconds)
        i++;
    semel__buf_addf(buf, "%lld %s", (long long)(seconds / units[i].seconds), units[i].name);
}

/* 2026-11-15T22:48:07Z (in 40 s) */
void cli_put_when(struct semel_buf *buf, int64_t us, int64_t now_us)
{
    char text[SEMEL_TIME_TEXT];
    bool ahead = us > now_us;
    int64_t away_us;
    if (us == SEMEL_NONE) {
        semel__buf_addz(buf, "a time that is not known");
        return;
    }
    semel__time_format(us, text);
    text[strcspn(text, ".")] = '\0';
    semel__buf_addf(buf, "%sZ", text);
    if (__builtin_sub_overflow(ahead ? us : now_us, ahead ? now_us : us, &away_us))
        return;
    semel__buf_addz(buf, ahead ? " (in " : " (");
    put_span(buf, away_us);
    semel__buf_addz(buf, ahead ? ")" : " ago)");
}

void cli_put_command(struct semel_buf *buf, const char *store, const char *word, const struct semel_row *row,
                     const char *more)
{
    bool dash = row->id.n > 0 && row->id.p[0] == '-';
    semel__buf_addf(buf, "semel inbox %s ", word);
    if (!dash)
        cli_put_word(buf, row->id);
    semel__buf_addz(buf, dash ? "--consumer " : " --consumer ");
    cli_put_word(buf, row->consumer);
    if (row->source.n > 0) {
        semel__buf_addz(buf, " --source ");
        cli_put_word(buf, row->source);
    }
    if (more[0] != '\0')
        semel__buf_addf(buf, " %s", more);
    if (store != NULL) {
        semel__buf_addz(buf, " --store ");
        cli_put_word(buf, semel__str(store));
    }
    if (dash) {
        semel__buf_addz(buf, " -- ");
        cli_put_word(buf, row->id);
    }
}

static int64_t age_from(const struct semel_row *row)
{
    return row->message_time_us != SEMEL_NONE ? row->message_time_us : row->received_us;
}

bool cli_facts_too_old(const struct cli_facts *f)
{
    return age_from(f->row) < semel__time_add(f->now_us, -f->policy->retention_us);
}

bool cli_facts_unfit(const struct cli_facts *f)
{
    const struct semel_live *live = &f->row->live;
    return live->error_class == SEMEL_CLASS_NO_ID ||
           (live->error_class == SEMEL_CLASS_PERMANENT && live->attempts == 0);
}

void cli_put_age(struct semel_buf *buf, const struct semel_row *row, const struct semel_policy *policy, int64_t now_us)
{
    char kept[32];
    semel__duration_format(policy->retention_us, kept, sizeof kept);
    semel__buf_addz(buf, row->message_time_us != SEMEL_NONE ? "it was made at " : "it was received at ");
    cli_put_when(buf, age_from(row), now_us);
    semel__buf_addf(buf, ", and the retention is %s", kept);
}

static void put_rival(struct semel_buf *buf, const struct semel_rival *rival)
{
    cli_put_shown(buf, rival->id);
    if (rival->source.n == 0)
        return;
    semel__buf_addz(buf, " (source ");
    cli_put_shown(buf, rival->source);
    semel__buf_addz(buf, ")");
}

size_t cli_put_waiters(const struct cli_facts *f, struct semel_buf *buf)
{
    const struct semel_history *h = f->history;
    size_t first = cli_facts_waiters(f), n = h->n_rivals - first;
    for (size_t i = 0; i < n && i < CLI_WAITERS_MAX; i++) {
        semel__buf_addz(buf, i > 0 ? ", " : "");
        put_rival(buf, &h->rivals[first + i]);
    }
    if (n > CLI_WAITERS_MAX)
        semel__buf_addf(buf, " and %s%zu more", h->more ? "at least " : "", n - CLI_WAITERS_MAX);
    return n;
}

/* ---- facts ---- */

size_t cli_facts_waiters(const struct cli_facts *facts)
{
    size_t i = 0;
    while (i < facts->history->n_rivals && facts->history->rivals[i].holds)
        i++;
    return i;
}

void cli_facts_key(struct cli_facts *facts, const struct semel_row *rows, size_t n, bool more)
{
    bool met = false;
    facts->head = n > 0 ? &rows[0] : NULL;
    facts->open = NULL;
    facts->before = facts->behind = 0;
    facts->more = more;
    for (size_t i = 0; i < n; i++) {
        enum semel_state state = rows[i].live.state;
        if (rows[i].arrival == facts->row->arrival) {
            met = true;
            continue;
        }
        facts->before += !met;
        facts->behind += met;
        if (facts->open == NULL && (state == SEMEL_STATE_PROCESSING || state == SEMEL_STATE_UNKNOWN))
            facts->open = &rows[i];
    }
}
