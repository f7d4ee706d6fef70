/* SPDX-License-Identifier: MIT
 *
 * test_log.c: lines for people and machines, and that nobody outside can write one.
 */
#define _GNU_SOURCE /* memfd_create, pipe2 */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"

#define NOON_US INT64_C(1794805811123456) /* 2026-11-16T05:10:11.123456Z */
#define THREADS 4
#define LINES 500

static int64_t now_us = NOON_US;

static int64_t test_now(void *ctx)
{
    return *(int64_t *)ctx;
}

static const struct semel_clock test_clock = {.now_us = test_now, .ctx = &now_us};

struct out {
    int fd;
    struct semel_log *log;
    char text[1 << 20];
};
static struct out out;

static void out_open(enum semel_log_format format, enum semel_log_level least)
{
    out.fd = memfd_create("log", MFD_CLOEXEC);
    assert_true(out.fd >= 0);
    now_us = NOON_US;
    assert_int_equal(semel__log_new(&out.log, out.fd, format, least, &test_clock, NULL), SEMEL_OK);
}

static const char *out_text(void)
{
    ssize_t n = pread(out.fd, out.text, sizeof(out.text) - 1, 0);
    assert_true(n >= 0 && (size_t)n < sizeof(out.text) - 1);
    out.text[n] = '\0';
    return out.text;
}

static void out_close(void)
{
    semel__log_free(out.log);
    out.log = NULL;
    close(out.fd);
}

static size_t count_lines(const char *text)
{
    size_t n = 0;
    for (; *text != '\0'; text++)
        n += *text == '\n';
    return n;
}

/* The line is one JSON object; what stands at the pointer is the value. */
static void assert_member(struct semel_str line, const char *pointer, struct semel_str value)
{
    struct semel_json *json = NULL;
    struct semel_error err;
    assert_int_equal(semel__json_parse(&json, line, line.n, &err), SEMEL_OK);
    struct semel_arena arena;
    semel__arena_init(&arena, 1 << 16);
    enum semel_json_kind kind;
    struct semel_str text;
    assert_int_equal(semel__json_get(json, semel__str(pointer), &arena, &kind, &text, &err), SEMEL_OK);
    assert_true(kind == SEMEL_JSON_STRING || kind == SEMEL_JSON_INTEGER);
    assert_int_equal(text.n, value.n);
    assert_memory_equal(text.p, value.p, value.n);
    semel__arena_done(&arena);
    semel__json_free(json);
}

static void a_line_has_time_level_sentence_and_fields(void **state)
{
    (void)state;
    out_open(SEMEL_LOG_HUMAN, SEMEL_LOG_DEBUG);
    SEMEL__LOG(out.log, SEMEL_LOG_WARN, "the route pauses", SEMEL_F_Z("consumer", "billing"),
               SEMEL_F_INT("failures", 10));
    semel__log_write(out.log, SEMEL_LOG_ERROR, "nothing more to say", NULL, 0);
    assert_string_equal(out_text(), "2026-11-16T05:10:11.123Z warn  the route pauses consumer=billing failures=10\n"
                                    "2026-11-16T05:10:11.123Z error nothing more to say\n");
    out_close();
}

static void a_json_line_is_one_object(void **state)
{
    (void)state;
    out_open(SEMEL_LOG_JSON, SEMEL_LOG_DEBUG);
    SEMEL__LOG(out.log, SEMEL_LOG_INFO, "the route pauses", SEMEL_F_Z("consumer", "billing"),
               SEMEL_F_INT("failures", INT64_MAX));
    assert_string_equal(out_text(), "{\"time\":\"2026-11-16T05:10:11.123Z\",\"level\":\"info\",\"text\":\"the route "
                                    "pauses\",\"consumer\":\"billing\",\"failures\":9223372036854775807}\n");
    assert_member(semel__str(out.text), "/failures", SEMEL_STR("9223372036854775807"));
    out_close();
}

static void what_is_not_given_is_left_out(void **state)
{
    (void)state;
    out_open(SEMEL_LOG_HUMAN, SEMEL_LOG_DEBUG);
    SEMEL__LOG(out.log, SEMEL_LOG_INFO, "ready", SEMEL_F_Z("source", NULL), SEMEL_F_INT("version", SEMEL_NONE),
               SEMEL_F_Z("route", ""));
    assert_string_equal(out_text(), "2026-11-16T05:10:11.123Z info  ready route=\"\"\n");
    semel__log_write(NULL, SEMEL_LOG_ERROR, "no log at all", NULL, 0);
    semel__log_tick(NULL);
    semel__log_free(NULL);
    out_close();
}

static void lower_levels_are_not_written(void **state)
{
    (void)state;
    for (int least = SEMEL_LOG_DEBUG; least <= SEMEL_LOG_ERROR; least++) {
        out_open(SEMEL_LOG_HUMAN, (enum semel_log_level)least);
        for (int level = SEMEL_LOG_DEBUG; level <= SEMEL_LOG_ERROR; level++)
            semel__log_write(out.log, (enum semel_log_level)level, "a sentence", NULL, 0);
        assert_int_equal(count_lines(out_text()), SEMEL_LOG_ERROR - least + 1);
        out_close();
    }
}

static const struct {
    struct semel_str raw;
    const char *human; /* as written */
    const char *json;  /* after decoding; NULL: as raw */
} hostile[] = {
    {{"a\nb", 3}, "\"a\\nb\"", NULL},
    {{"a\r\tb", 4}, "\"a\\r\\tb\"", NULL},
    {{"two words", 9}, "\"two words\"", NULL},
    {{"a=b", 3}, "\"a=b\"", NULL},
    {{"say \"hi\"", 8}, "\"say \\\"hi\\\"\"", NULL},
    {{"c:\\x", 4}, "\"c:\\\\x\"", NULL},
    {{"\x1b[2J", 4}, "\"\\u{1b}[2J\"", NULL},
    {{"\x7f", 1}, "\"\\u{7f}\"", NULL},
    {{"a\0b", 3}, "\"a\\x00b\"", "a\\x00b"},
    {{"\xff\xfe", 2}, "\"\\xff\\xfe\"", "\\xff\\xfe"},
    {{"\xc3", 1}, "\"\\xc3\"", "\\xc3"},
    {{"\xc0\xaf", 2}, "\"\\xc0\\xaf\"", "\\xc0\\xaf"},
    {{"\xe2\x80\xae", 3}, "\"\\u{202e}\"", NULL},
    {{"\xe2\x80\xa8", 3}, "\"\\u{2028}\"", NULL},
    {{"\xf3\xa0\x80\x81", 4}, "\"\\u{e0001}\"", NULL},
    {{"gr\xc3\xbc\xc3\x9f\x65", 7}, "gr\xc3\xbc\xc3\x9f\x65", NULL},
    {{"\xf0\x9f\x98\x80", 4}, "\xf0\x9f\x98\x80", NULL},
};

static void hostile_bytes_are_escaped_for_people(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(hostile); i++) {
        out_open(SEMEL_LOG_HUMAN, SEMEL_LOG_DEBUG);
        SEMEL__LOG(out.log, SEMEL_LOG_INFO, "seen", SEMEL_F_STR("id", hostile[i].raw));
        char expected[256];
        snprintf(expected, sizeof(expected), "2026-11-16T05:10:11.123Z info  seen id=%s\n", hostile[i].human);
        assert_string_equal(out_text(), expected);
        out_close();
    }
}

static void hostile_bytes_are_escaped_for_machines(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(hostile); i++) {
        out_open(SEMEL_LOG_JSON, SEMEL_LOG_DEBUG);
        SEMEL__LOG(out.log, SEMEL_LOG_INFO, "seen", SEMEL_F_STR("id", hostile[i].raw));
        struct semel_str line = semel__str(out_text());
        assert_int_equal(count_lines(line.p), 1);
        for (size_t at = 0; at + 1 < line.n; at++) /* plain for a terminal too */
            assert_false((unsigned char)line.p[at] < 0x20 || line.p[at] == 0x7f);
        assert_member(line, "/id", hostile[i].json != NULL ? semel__str(hostile[i].json) : hostile[i].raw);
        out_close();
    }
}

static void every_byte_and_pair_of_bytes_makes_one_valid_line(void **state)
{
    (void)state;
    out_open(SEMEL_LOG_JSON, SEMEL_LOG_DEBUG);
    char all[512];
    for (unsigned first = 0; first < 256; first++) {
        for (unsigned second = 0; second < 256; second++) {
            all[2 * second] = (char)first;
            all[2 * second + 1] = (char)second;
        }
        assert_int_equal(ftruncate(out.fd, 0), 0);
        assert_int_equal(lseek(out.fd, 0, SEEK_SET), 0);
        now_us += 1000000;
        SEMEL__LOG(out.log, SEMEL_LOG_INFO, "seen", SEMEL_F_STR("id", ((struct semel_str){all, sizeof(all)})));
        assert_int_equal(count_lines(out_text()), 1);
        assert_member(semel__str(out.text), "/text", SEMEL_STR("seen"));
    }
    out_close();
}

static void a_value_cannot_forge_a_line_or_a_field(void **state)
{
    (void)state;
    static const char forged[] = "x failures=0\n2026-11-16T05:10:11.123Z info  all is well";
    out_open(SEMEL_LOG_HUMAN, SEMEL_LOG_DEBUG);
    SEMEL__LOG(out.log, SEMEL_LOG_WARN, "refused", SEMEL_F_Z("id", forged), SEMEL_F_INT("failures", 3));
    assert_string_equal(out_text(), "2026-11-16T05:10:11.123Z warn  refused id=\"x failures=0\\n2026-11-16T05:10:11"
                                    ".123Z info  all is well\" failures=3\n");
    out_close();
    out_open(SEMEL_LOG_JSON, SEMEL_LOG_DEBUG);
    static const char closing[] = "\",\"level\":\"info\"}\n{\"x\":\"";
    SEMEL__LOG(out.log, SEMEL_LOG_WARN, "refused", SEMEL_F_Z("id", closing));
    assert_int_equal(count_lines(out_text()), 1);
    assert_member(semel__str(out.text), "/level", SEMEL_STR("warn"));
    assert_member(semel__str(out.text), "/id", semel__str(closing));
    out_close();
}

static void a_long_value_is_cut_at_a_whole_character_and_marked(void **state)
{
    (void)state;
    static char value[SEMEL_LOG_VALUE_MAX + 2], expected[2048];
    memset(value, 'x', SEMEL_LOG_VALUE_MAX + 1);
    memcpy(value + SEMEL_LOG_VALUE_MAX - 1, "\xc3\xbc", 2); /* lies across the bound */
    out_open(SEMEL_LOG_HUMAN, SEMEL_LOG_DEBUG);
    SEMEL__LOG(out.log, SEMEL_LOG_INFO, "seen", SEMEL_F_Z("id", value));
    int n = snprintf(expected, sizeof(expected), "2026-11-16T05:10:11.123Z info  seen id=%.*s...\n",
                     SEMEL_LOG_VALUE_MAX - 1, value);
    assert_true(n > SEMEL_LOG_VALUE_MAX);
    assert_string_equal(out_text(), expected);
    out_close();
    out_open(SEMEL_LOG_HUMAN, SEMEL_LOG_DEBUG);
    SEMEL__LOG(out.log, SEMEL_LOG_INFO, "seen",
               SEMEL_F_STR("id", ((struct semel_str){value, SEMEL_LOG_VALUE_MAX - 1})));
    assert_null(strstr(out_text(), "..."));
    out_close();
}

static void the_longest_line_is_whole_and_valid(void **state)
{
    (void)state;
    static char value[2 * SEMEL_LOG_VALUE_MAX];
    static char names[SEMEL_LOG_FIELDS_MAX + 1][65];
    memset(value, 1, sizeof(value)); /* six bytes each when escaped */
    struct semel_log_field fields[SEMEL_LOG_FIELDS_MAX + 1];
    for (size_t i = 0; i < COUNT(fields); i++) {
        memset(names[i], (int)('a' + i), 64);
        fields[i] = SEMEL_F_STR(names[i], ((struct semel_str){value, sizeof(value)}));
    }
    out_open(SEMEL_LOG_JSON, SEMEL_LOG_DEBUG);
    static char text[2 * SEMEL_LOG_VALUE_MAX];
    memset(text, 1, sizeof(text) - 1);
    semel__log_write(out.log, SEMEL_LOG_DEBUG, text, fields, COUNT(fields));
    assert_int_equal(count_lines(out_text()), 1);
    assert_member(semel__str(out.text), "/level", SEMEL_STR("debug"));
    assert_non_null(strstr(out.text, names[SEMEL_LOG_FIELDS_MAX - 1]));
    assert_null(strstr(out.text, names[SEMEL_LOG_FIELDS_MAX])); /* past the bound */
    out_close();
}

static void a_sentence_in_a_burst_is_counted_and_said_once(void **state)
{
    (void)state;
    out_open(SEMEL_LOG_HUMAN, SEMEL_LOG_DEBUG);
    for (int i = 0; i < SEMEL_LOG_BURST + 7; i++)
        SEMEL__LOG(out.log, SEMEL_LOG_WARN, "the store is away", SEMEL_F_INT("try", i));
    SEMEL__LOG(out.log, SEMEL_LOG_INFO, "another sentence", SEMEL_F_INT("n", 1));
    assert_int_equal(count_lines(out_text()), SEMEL_LOG_BURST + 1);
    now_us += 1000000;
    semel__log_tick(out.log);
    assert_int_equal(count_lines(out_text()), SEMEL_LOG_BURST + 2);
    assert_non_null(strstr(out.text,
                           "2026-11-16T05:10:12.123Z warn  lines were left out sentence=\"the store is away\" "
                           "lines=7\n"));
    semel__log_tick(out.log);
    SEMEL__LOG(out.log, SEMEL_LOG_WARN, "the store is away", SEMEL_F_INT("try", 99));
    assert_int_equal(count_lines(out_text()), SEMEL_LOG_BURST + 3);
    assert_non_null(strstr(out.text, "try=99"));
    out_close();
}

static void what_was_counted_is_said_before_the_next_line_and_at_the_end(void **state)
{
    (void)state;
    out_open(SEMEL_LOG_HUMAN, SEMEL_LOG_DEBUG);
    for (int i = 0; i < SEMEL_LOG_BURST + 1; i++)
        semel__log_write(out.log, SEMEL_LOG_WARN, "first", NULL, 0);
    now_us -= 5000000; /* the clock was set back: no line may wait for it to come round */
    for (int i = 0; i < SEMEL_LOG_BURST + 2; i++)
        semel__log_write(out.log, SEMEL_LOG_WARN, "second", NULL, 0);
    assert_non_null(strstr(out_text(), "lines were left out sentence=first lines=1\n"));
    assert_null(strstr(out.text, "sentence=second"));
    semel__log_free(out.log);
    out.log = NULL;
    assert_non_null(strstr(out_text(), "lines were left out sentence=second lines=2\n"));
    out_close();
}

static void more_sentences_than_slots_lose_no_count(void **state)
{
    (void)state;
    static char sentences[200][16];
    out_open(SEMEL_LOG_HUMAN, SEMEL_LOG_DEBUG);
    for (size_t i = 0; i < COUNT(sentences); i++) {
        snprintf(sentences[i], sizeof(sentences[i]), "sentence_%zu", i);
        now_us++;
        for (int j = 0; j < SEMEL_LOG_BURST + 1; j++)
            semel__log_write(out.log, SEMEL_LOG_WARN, sentences[i], NULL, 0);
    }
    semel__log_free(out.log);
    out.log = NULL;
    assert_int_equal(count_lines(out_text()), COUNT(sentences) * (SEMEL_LOG_BURST + 1));
    for (size_t i = 0; i < COUNT(sentences); i++) {
        char expected[64];
        snprintf(expected, sizeof(expected), "left out sentence=sentence_%zu lines=1\n", i);
        assert_non_null(strstr(out.text, expected));
    }
    out_close();
}

/* A descriptor that takes nothing, then a part of a line, then everything: no line is glued to a half one. */
static void a_descriptor_that_refuses_costs_lines_but_never_mixes_them(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
    struct semel_log *log = NULL;
    assert_int_equal(semel__log_new(&log, ends[1], SEMEL_LOG_JSON, SEMEL_LOG_DEBUG, NULL, NULL), SEMEL_OK);
    static char filler[1 << 16], value[SEMEL_LOG_VALUE_MAX];
    memset(value, 1, sizeof(value)); /* a line longer than PIPE_BUF, so that a part of it may fit */
    memset(filler, '\n', sizeof(filler));
    ssize_t size = write(ends[1], filler, sizeof(filler));
    assert_true(size > 0);
    errno = EDOM;
    semel__log_write(log, SEMEL_LOG_INFO, "not taken", NULL, 0);
    assert_int_equal(errno, EDOM);
    assert_true(read(ends[0], out.text, 4096) == 4096);
    SEMEL__LOG(log, SEMEL_LOG_INFO, "torn", SEMEL_F_STR("id", ((struct semel_str){value, sizeof(value)})));
    while (read(ends[0], out.text, sizeof(out.text)) > 0)
        continue;
    semel__log_write(log, SEMEL_LOG_INFO, "taken", NULL, 0);
    ssize_t n = read(ends[0], out.text, sizeof(out.text) - 1);
    assert_true(n > 0);
    out.text[n] = '\0';
    assert_int_equal(out.text[0], '\n');
    const char *second = strchr(out.text + 1, '\n') + 1;
    assert_member((struct semel_str){out.text + 1, (size_t)(second - out.text - 1)}, "/text", SEMEL_STR("taken"));
    assert_member(semel__str(second), "/lines", SEMEL_STR("2"));
    assert_int_equal(count_lines(second), 1);
    semel__log_free(log);
    close(ends[0]);
    close(ends[1]);
}

static void a_reader_that_is_gone_does_not_stop_the_log(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    close(ends[0]);
    struct semel_log *log = NULL;
    assert_int_equal(semel__log_new(&log, ends[1], SEMEL_LOG_HUMAN, SEMEL_LOG_DEBUG, NULL, NULL), SEMEL_OK);
    void (*before)(int) = signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < 100; i++)
        semel__log_write(log, SEMEL_LOG_INFO, "into the void", NULL, 0);
    semel__log_free(log);
    signal(SIGPIPE, before);
    close(ends[1]);
}

static void *write_lines(void *arg)
{
    char value[900];
    memset(value, 'v', sizeof(value));
    for (int i = 0; i < LINES; i++)
        SEMEL__LOG(out.log, SEMEL_LOG_INFO, i % 2 == 0 ? "even" : "odd", SEMEL_F_Z("thread", arg), SEMEL_F_INT("n", i),
                   SEMEL_F_STR("value", ((struct semel_str){value, sizeof(value)})));
    return NULL;
}

static void threads_write_whole_lines_and_no_line_goes_uncounted(void **state)
{
    (void)state;
    out_open(SEMEL_LOG_JSON, SEMEL_LOG_DEBUG);
    static char names[THREADS][2] = {"a", "b", "c", "d"};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_lines, names[i]), 0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    semel__log_free(out.log);
    out.log = NULL;
    size_t lines = 0, counted = 0;
    for (const char *line = out_text(), *end; *line != '\0'; line = end + 1, lines++) {
        end = strchr(line, '\n');
        assert_non_null(end);
        assert_member((struct semel_str){line, (size_t)(end - line)}, "/time", SEMEL_STR("2026-11-16T05:10:11.123Z"));
        const char *left_out = strstr(line, "\"lines\":");
        if (left_out != NULL && left_out < end)
            counted += strtoul(left_out + sizeof("\"lines\":") - 1, NULL, 10);
    }
    assert_int_equal(lines, 2 * SEMEL_LOG_BURST + 2); /* the clock stands still: one window for each sentence */
    assert_int_equal(counted, THREADS * LINES - 2 * SEMEL_LOG_BURST);
    out_close();
}

static void without_memory_there_is_no_log_but_a_status(void **state)
{
    (void)state;
    struct fail_nth fail;
    fail_nth_begin(&fail, 1);
    struct semel_log *log = NULL;
    struct semel_error err;
    assert_int_equal(semel__log_new(&log, 2, SEMEL_LOG_HUMAN, SEMEL_LOG_DEBUG, NULL, &err), SEMEL_RETRY);
    assert_true(fail_nth_end(&fail));
    assert_null(log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_has_time_level_sentence_and_fields),
        cmocka_unit_test(a_json_line_is_one_object),
        cmocka_unit_test(what_is_not_given_is_left_out),
        cmocka_unit_test(lower_levels_are_not_written),
        cmocka_unit_test(hostile_bytes_are_escaped_for_people),
        cmocka_unit_test(hostile_bytes_are_escaped_for_machines),
        cmocka_unit_test(every_byte_and_pair_of_bytes_makes_one_valid_line),
        cmocka_unit_test(a_value_cannot_forge_a_line_or_a_field),
        cmocka_unit_test(a_long_value_is_cut_at_a_whole_character_and_marked),
        cmocka_unit_test(the_longest_line_is_whole_and_valid),
        cmocka_unit_test(a_sentence_in_a_burst_is_counted_and_said_once),
        cmocka_unit_test(what_was_counted_is_said_before_the_next_line_and_at_the_end),
        cmocka_unit_test(more_sentences_than_slots_lose_no_count),
        cmocka_unit_test(a_descriptor_that_refuses_costs_lines_but_never_mixes_them),
        cmocka_unit_test(a_reader_that_is_gone_does_not_stop_the_log),
        cmocka_unit_test(threads_write_whole_lines_and_no_line_goes_uncounted),
        cmocka_unit_test(without_memory_there_is_no_log_but_a_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
