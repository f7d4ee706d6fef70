/* SPDX-License-Identifier: MIT
 *
 * test_conf_table.c: every setting of the table, wrong in every way. Nothing here is written by hand for a setting: a
 * file is made for each one, with what its neighbours require, and its value is made wrong as its type says.
 */
#include "conf/private.h"
#include "core/consumer.h"
#include "unit/conf.h"

#define CHAIN_MAX 8

static const char *const env[] = {"SECRET", "0123456789abcdefgh", "URL", "postgres://u:p@h/d?sslmode=verify-full",
                                  NULL};

/* The way from the root to a setting; of a choice, which group. */
struct chain {
    const struct semel_setting_spec *setting[CHAIN_MAX];
    const struct semel_setting_group *group[CHAIN_MAX]; /* below the setting */
    size_t n;
};

enum manner { ONCE, TWICE, NEVER, MISTYPED, BY_FILE, BOTH };

struct document {
    const struct chain *chain;
    const char *value;
    enum manner manner;
    struct semel_buf buf;
};

/* ---- writing a file ------------------------------------------------------------------------------ */

static const char *good(const struct semel_setting_spec *s)
{
    static const char *const samples[] = {
        [SEMEL_SETTING_TEXT] = "abcdefghijklmnopqrs",
        [SEMEL_SETTING_RULE] = "header:x",
        [SEMEL_SETTING_RULES] = "header:x",
        [SEMEL_SETTING_TEXTS] = "abc",
        [SEMEL_SETTING_PAIRS] = "{}",
        [SEMEL_SETTING_ADDRESS] = "\"localhost:80\"",
        [SEMEL_SETTING_FILE] = "/bin/sh",
        [SEMEL_SETTING_PROGRAM] = "[/bin/sh]",
        [SEMEL_SETTING_FLAG] = "true",
    };
    static char text[64];
    if ((s->flags & SEMEL_SETTING_SECRET) != 0 && (s->flags & SEMEL_SETTING_LITERAL) == 0)
        return "\"${SECRET}\"";
    if (s->kind == SEMEL_SETTING_WORD)
        return s->words[0];
    if (s->kind == SEMEL_SETTING_NUMBER)
        snprintf(text, sizeof(text), "%lld", (long long)s->low);
    else if (s->kind == SEMEL_SETTING_TIME)
        semel__duration_format(s->low, text, sizeof(text));
    else if (s->kind == SEMEL_SETTING_URL)
        snprintf(text, sizeof(text), "\"%s%s\"", s->words[0], strcmp(s->words[0], "sqlite") == 0 ? ":x" : "://h");
    else if (strcmp(s->name, "kafka") == 0)
        return "\"k:9092\"";
    else if (strcmp(s->name, "path") == 0)
        return "/p";
    else
        return samples[s->kind];
    return text;
}

static void put_group(struct document *d, const struct semel_setting_group *group, size_t depth);

static void put_below(struct document *d, const struct semel_setting_spec *s, const struct semel_setting_group *below,
                      size_t depth)
{
    const bool named = s->kind >= SEMEL_SETTING_ROUTES, listed = s->kind == SEMEL_SETTING_GROUPS;
    if (named || listed)
        semel__buf_addz(&d->buf, named ? "{r: " : "[");
    put_group(d, below, depth);
    if (named || listed)
        semel__buf_addz(&d->buf, named ? "}" : "]");
}

static void put_target(struct document *d, const struct semel_setting_spec *s)
{
    static const char *const ends[] = {[ONCE] = "", [TWICE] = "", [MISTYPED] = "x", [BY_FILE] = "_file", [BOTH] = ""};
    if (d->manner == NEVER)
        return;
    semel__buf_addf(&d->buf, "%s%s: %s, ", s->name, ends[d->manner], d->value);
    if (d->manner == TWICE || d->manner == BOTH)
        semel__buf_addf(&d->buf, "%s%s: %s, ", s->name, d->manner == BOTH ? "_file" : "", d->value);
}

/* What is required, and what leads to the setting. */
static void put_group(struct document *d, const struct semel_setting_group *group, size_t depth)
{
    const struct semel_setting_spec *way = depth < d->chain->n ? d->chain->setting[depth] : NULL;
    semel__buf_addz(&d->buf, "{");
    for (size_t i = 0; i < group->n; i++) {
        const struct semel_setting_spec *s = &group->settings[i];
        bool target = s == way && depth + 1 == d->chain->n;
        bool leads = s == way && !target;
        if (target)
            put_target(d, s);
        else if (leads || (s->flags & SEMEL_SETTING_REQUIRED) != 0) {
            semel__buf_addf(&d->buf, "%s: ", s->name);
            if (leads)
                put_below(d, s, d->chain->group[depth], depth + 1);
            else if (s->group != NULL || semel__conf_choice(s, 0) != NULL)
                put_below(d, s, s->group != NULL ? s->group : semel__conf_choice(s, 0), CHAIN_MAX);
            else
                semel__buf_addz(&d->buf, good(s));
            semel__buf_addz(&d->buf, ", ");
        }
    }
    semel__buf_addz(&d->buf, "}");
}

static void write_document(struct document *d)
{
    semel__buf_init(&d->buf, 1 << 20);
    put_group(d, &semel__conf_root, 0);
    semel__buf_add(&d->buf, "", 1);
}

/* ---- reading it ---------------------------------------------------------------------------------- */

static const struct semel_setting_spec *last(const struct chain *chain)
{
    return chain->setting[chain->n - 1];
}

/* There is a mistake with this in its text, and what it points at is on this setting's line (there is only one). */
static void must_say(const struct chain *chain, enum manner manner, const char *value, const char *why)
{
    struct document d = {.chain = chain, .value = value, .manner = manner};
    struct reading reading = {.env = env};
    write_document(&d);
    reading_text(&reading, d.buf.p);
    if (reading.status != SEMEL_INVALID || strstr(reading.text.p, why) == NULL)
        fail_msg("%.2000s\nmust say \"%s\", and says:\n%s", d.buf.p, why, reading.text.p);
    for (size_t i = 0; i < reading.mistakes.n; i++)
        assert_int_equal(reading.mistakes.at[i].line, 1);
    reading_done(&reading);
    semel__buf_done(&d.buf);
}

static void must_refuse(const struct chain *chain, const char *value)
{
    char why[64];
    snprintf(why, sizeof(why), "%s", last(chain)->name);
    must_say(chain, ONCE, value, why);
}

/* The value itself is not what is wrong: nothing is told of its type. */
static void must_take(const struct chain *chain, const char *value)
{
    struct document d = {.chain = chain, .value = value};
    struct reading reading = {.env = env};
    char type[256];
    write_document(&d);
    reading_text(&reading, d.buf.p);
    semel__conf_type(last(chain), type, sizeof(type));
    if (strstr(reading.text.p, type) != NULL)
        fail_msg("%s\nmust be right, and is called:\n%s", d.buf.p, reading.text.p);
    reading_done(&reading);
    semel__buf_done(&d.buf);
}

/* ---- wrong values by type ------------------------------------------------------------------------ */

static void wrong_number(const struct chain *chain)
{
    const struct semel_setting_spec *s = last(chain);
    char text[64];
    snprintf(text, sizeof(text), "%lld", (long long)s->low - 1);
    must_refuse(chain, text);
    snprintf(text, sizeof(text), "%lld", (long long)s->high + 1);
    must_refuse(chain, text);
    snprintf(text, sizeof(text), "%lld", (long long)s->high);
    must_take(chain, text);
    snprintf(text, sizeof(text), "%lld", (long long)s->low);
    must_take(chain, text);
    snprintf(text, sizeof(text), "\"%lld\"", (long long)s->low);
    must_refuse(chain, text);
    static const char *const none[] = {"x", "1.5", "1e3", "0x10", "99999999999999999999", "true", "1_000", "+5"};
    for (size_t i = 0; i < COUNT(none); i++)
        must_refuse(chain, none[i]);
}

static void wrong_time(const struct chain *chain)
{
    const struct semel_setting_spec *s = last(chain);
    char text[64];
    if (s->low > 0) {
        snprintf(text, sizeof(text), "%lldus", (long long)s->low - 1);
        must_refuse(chain, text);
    }
    snprintf(text, sizeof(text), "%lldus", (long long)s->high + 1);
    must_refuse(chain, text);
    snprintf(text, sizeof(text), "%lldus", (long long)s->high);
    must_take(chain, text);
    static const char *const none[] = {"5", "5 s", "1w", "-1s", "1.5h", "s", "99999999999999d", "1m30s"};
    for (size_t i = 0; i < COUNT(none); i++)
        must_refuse(chain, none[i]);
    if ((s->flags & SEMEL_SETTING_FOREVER) != 0)
        must_take(chain, "forever");
    else
        must_refuse(chain, "forever");
}

static void wrong_text(const struct chain *chain)
{
    static char longer[70000];
    const struct semel_setting_spec *s = last(chain);
    size_t high = s->high > 0 ? (size_t)s->high : CONF_TEXT_MAX;
    must_refuse(chain, "\"\"");
    if ((s->flags & SEMEL_SETTING_SECRET) != 0)
        return;
    memset(longer, 'x', high + 1);
    longer[high + 1] = '\0';
    must_refuse(chain, longer);
    must_refuse(chain, "\"a\\x07b\"");
    if ((s->flags & SEMEL_SETTING_LINES) == 0)
        must_refuse(chain, "\"a\\nb\"");
}

static void wrong_flag(const struct chain *chain)
{
    static const char *const flags[] = {"yes", "on", "1", "\"true\"", "True", "maybe"};
    for (size_t i = 0; i < COUNT(flags); i++)
        must_refuse(chain, flags[i]);
    must_take(chain, "false");
}

static void wrong_word(const struct chain *chain)
{
    must_say(chain, ONCE, "zzzzzz", "it must be one of ");
    for (size_t i = 0; last(chain)->words[i] != NULL; i++)
        must_take(chain, last(chain)->words[i]);
}

static void wrong_program(const struct chain *chain)
{
    must_say(chain, ONCE, "[/nonexistent]", "which cannot be run: No such file or directory");
    must_say(chain, ONCE, "[/etc/passwd]", "which cannot be run: Permission denied");
    must_refuse(chain, "[no-such-program-anywhere]");
}

static void wrong_by_type(const struct chain *chain)
{
    switch (last(chain)->kind) {
    case SEMEL_SETTING_NUMBER:
        wrong_number(chain);
        break;
    case SEMEL_SETTING_TIME:
        wrong_time(chain);
        break;
    case SEMEL_SETTING_FLAG:
        wrong_flag(chain);
        break;
    case SEMEL_SETTING_WORD:
        wrong_word(chain);
        break;
    case SEMEL_SETTING_TEXT:
    case SEMEL_SETTING_TEXTS:
        wrong_text(chain);
        break;
    case SEMEL_SETTING_RULE:
    case SEMEL_SETTING_RULES:
        must_say(chain, ONCE, "zzz", "is no rule; there are header:NAME");
        must_refuse(chain, "json:x");
        must_refuse(chain, "\"header:\"");
        break;
    case SEMEL_SETTING_PAIRS:
        must_refuse(chain, "{\"a b\": c}");
        must_refuse(chain, "{client.id: c, client.id: d}");
        must_refuse(chain, "text");
        break;
    case SEMEL_SETTING_ADDRESS:
        must_refuse(chain, "\"localhost:99999\"");
        must_refuse(chain, "\"db.example:80\"");
        must_refuse(chain, "\"unix:relative\"");
        break;
    case SEMEL_SETTING_URL:
        must_refuse(chain, "\"gopher://x\"");
        must_refuse(chain, "\"http:\"");
        must_say(chain, ONCE, "\"http://u:p@h/\"", "has a password in it");
        break;
    case SEMEL_SETTING_FILE:
        must_say(chain, ONCE, "/nonexistent", "which cannot be read: No such file or directory");
        must_say(chain, ONCE, "/tmp", "it is not a file");
        break;
    case SEMEL_SETTING_PROGRAM:
        wrong_program(chain);
        break;
    case SEMEL_SETTING_MEMBER:
    case SEMEL_SETTING_GROUP:
    case SEMEL_SETTING_ONE_OF:
    case SEMEL_SETTING_SOURCE:
    case SEMEL_SETTING_SINK:
    case SEMEL_SETTING_ROUTES:
    case SEMEL_SETTING_OUTBOXES:
    case SEMEL_SETTING_GATEWAYS:
    case SEMEL_SETTING_GROUPS:
        must_refuse(chain, "zzz");
        break;
    }
}

/* ---- every setting ------------------------------------------------------------------------------- */

static size_t settings_seen;

static void wrong_secret(const struct chain *chain)
{
    const struct semel_setting_spec *s = last(chain);
    bool literal = (s->flags & SEMEL_SETTING_LITERAL) != 0;
    must_say(chain, ONCE, literal ? "\"postgres://u:hunter2secret@h/\"" : "hunter2hunter2hunter2",
             "must not stand in the file");
    must_say(chain, BY_FILE, "/nonexistent", "cannot be read: No such file or directory");
    if (s->kind == SEMEL_SETTING_TEXTS)
        must_say(chain, BY_FILE, "[/etc/passwd, []]", "_file is an empty list; it must be the name of a file");
    else
        must_say(chain, BY_FILE, "[a]", "_file is a list; it must be the name of a file");
    must_say(chain, BOTH, "\"${SECRET}\"", "are both said; one of them is right");
}

static void wrong_in_every_way(const struct chain *chain)
{
    const struct semel_setting_spec *s = last(chain);
    bool group = s->kind >= SEMEL_SETTING_GROUP;
    const char *value = group ? "{}" : s->kind == SEMEL_SETTING_MEMBER ? "1" : good(s);
    char why[160];
    settings_seen++;
    must_refuse(chain, "[[x]]");
    must_refuse(chain, "");
    if (s->kind != SEMEL_SETTING_PAIRS)
        must_say(chain, ONCE, "{zzz: 1}", s->name);
    must_say(chain, TWICE, value, "is given twice; it is in line 1 already");
    if (strlen(s->name) > 1) {
        snprintf(why, sizeof(why), "has no setting \"%sx\"; did you mean ", s->name);
        must_say(chain, MISTYPED, value, why);
    }
    if ((s->flags & SEMEL_SETTING_REQUIRED) != 0) {
        bool chooses = chain->n > 1 && semel__conf_choice(chain->setting[chain->n - 2], 0) != NULL &&
                       s == chain->group[chain->n - 2]->settings;
        snprintf(why, sizeof(why), "lacks %s: ", s->name);
        if (chooses)
            snprintf(why, sizeof(why), "does not say which kind it is; it must have one of ");
        must_say(chain, NEVER, "", why);
    }
    if ((s->flags & SEMEL_SETTING_SECRET) != 0)
        wrong_secret(chain);
    wrong_by_type(chain);
}

static void walk(struct chain *chain, const struct semel_setting_group *group)
{
    for (size_t i = 0; i < group->n; i++) {
        const struct semel_setting_spec *s = &group->settings[i];
        chain->setting[chain->n++] = s;
        wrong_in_every_way(chain);
        if (s->group != NULL) {
            chain->group[chain->n - 1] = s->group;
            walk(chain, s->group);
        }
        for (size_t k = 0; semel__conf_choice(s, k) != NULL; k++) {
            chain->group[chain->n - 1] = semel__conf_choice(s, k);
            walk(chain, semel__conf_choice(s, k));
        }
        chain->n--;
    }
}

static void every_setting_is_refused_in_every_way_that_it_can_be_wrong(void **state)
{
    struct chain chain = {.n = 0};
    (void)state;
    walk(&chain, &semel__conf_root);
    assert_true(settings_seen > 100);
}

static void a_choice_begins_with_its_own_key(void **state)
{
    (void)state;
    for (size_t i = 0; semel__broker_kinds[i] != NULL; i++) {
        assert_string_equal(semel__broker_kinds[i]->from->name, semel__broker_kinds[i]->name);
        assert_string_equal(semel__broker_kinds[i]->from->settings[0].name, semel__broker_kinds[i]->name);
    }
    for (size_t i = 0; semel__conf_handlers[i] != NULL; i++)
        assert_string_equal(semel__conf_handlers[i]->settings[0].name, semel__conf_handlers[i]->name);
}

/* What `semel init` prints can be read, and a setting that it only mentions can be said as it is mentioned. */
static void the_example_of_every_kind_is_read(void **state)
{
    const char *const more[] = {"SEMEL_TOKEN", "0123456789abcdefgh",    "AWS_ACCESS_KEY_ID",
                                "a",           "AWS_SECRET_ACCESS_KEY", "b",
                                NULL};
    (void)state;
    for (size_t source = 0; semel__broker_kinds[source] != NULL; source++)
        for (int handler = 0; semel__conf_handlers[handler] != NULL; handler++)
            for (int full = 0; full < 2; full++) {
                struct reading reading = {.env = more};
                struct semel_buf buf;
                semel__buf_init(&buf, 1 << 20);
                semel__conf_example(semel__broker_kinds[source], (enum semel_do_kind)handler, full == 1, &buf);
                semel__buf_add(&buf, "", 1);
                struct semel_conf *conf = reading_ok(&reading, buf.p);
                assert_ptr_equal(conf->routes[0].from.kind, semel__broker_kinds[source]);
                assert_int_equal(conf->routes[0].handler.kind, handler);
                assert_int_equal(conf->routes[0].rules.id.kind,
                                 SEMEL_RULE_DEFAULT); /* ordinary messages have no ce_id */
                reading_done(&reading);
                semel__buf_done(&buf);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_setting_is_refused_in_every_way_that_it_can_be_wrong),
        cmocka_unit_test(a_choice_begins_with_its_own_key),
        cmocka_unit_test(the_example_of_every_kind_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
