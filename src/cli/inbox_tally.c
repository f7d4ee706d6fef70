/* SPDX-License-Identifier: MIT
 *
 * inbox_tally.c: what came of a run through a selection: how many were done, skipped and refused, and why.
 *
 * Invariants: every answer is counted, also when its reason is one too many to be kept apart; what was not done is
 * told by name, up to TOLD_MAX of them.
 */
#include "cli/inbox.h"

#define REASONS_MAX 50
#define TOLD_MAX 100

struct reason {
    enum inbox_result result;
    char text[256], example[SEMEL_ID_MAX + 1];
    int64_t n;
};

struct inbox_tally {
    struct reason reasons[REASONS_MAX + 1]; /* the last one is for all others */
    size_t n;
    int64_t results[INBOX_REFUSED + 1], told;
};

struct inbox_tally *inbox_tally_new(void)
{
    return semel__calloc(1, sizeof(struct inbox_tally));
}

void inbox_tally_free(struct inbox_tally *tally)
{
    semel__free(tally);
}

int64_t inbox_tally_n(const struct inbox_tally *tally, enum inbox_result result)
{
    return tally->results[result];
}

static struct reason *find(struct inbox_tally *tally, const struct inbox_answer *answer)
{
    size_t i = 0;
    while (i < tally->n &&
           (tally->reasons[i].result != answer->result || strcmp(tally->reasons[i].text, answer->text) != 0))
        i++;
    if (i < tally->n)
        return &tally->reasons[i];
    struct reason *reason = &tally->reasons[i];
    if (i == REASONS_MAX) {
        snprintf(reason->text, sizeof reason->text, "other reasons");
        reason->result = answer->result;
        return reason;
    }
    tally->n++;
    reason->result = answer->result;
    snprintf(reason->text, sizeof reason->text, "%s", answer->text);
    return reason;
}

static void tell(struct inbox_tally *tally, const struct semel_selected *row, const struct inbox_answer *answer)
{
    if (answer->result == INBOX_DONE || tally->told++ > TOLD_MAX)
        return;
    if (tally->told > TOLD_MAX)
        cli_fail(0, "and more, which are only counted");
    else
        cli_fail(0, "%.*s (%.*s) %s: %s%s%s", (int)row->id.n, row->id.p, (int)row->consumer.n, row->consumer.p,
                 inbox_result_names[answer->result], answer->text, answer->figure[0] != '\0' ? "; " : "",
                 answer->figure);
}

void inbox_tally_add(struct inbox_tally *tally, const struct semel_selected *row, const struct inbox_answer *answer)
{
    struct reason *reason = find(tally, answer);
    if (reason->n++ == 0)
        semel__str_show(reason->example, sizeof reason->example, row->id);
    tally->results[answer->result]++;
    tell(tally, row, answer);
}

static size_t lines(const struct inbox_tally *tally)
{
    return tally->n + (tally->reasons[REASONS_MAX].n > 0);
}

int inbox_tally_print(const struct cli *cli, const struct inbox_tally *tally)
{
    static const struct cli_column columns[] = {
        {"result", CLI_TEXT, false},
        {"messages", CLI_NUMBER, false},
        {"example", CLI_TEXT, false},
        {"reason", CLI_TEXT, true},
    };
    struct cli_table *table = cli_table_new(cli, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < lines(tally) && table != NULL; i++) {
        const struct reason *reason = &tally->reasons[i];
        cli_table_text(table, semel__str(inbox_result_names[reason->result]));
        cli_table_number(table, reason->n);
        cli_table_text(table, semel__str(reason->example));
        cli_table_text(table, semel__str(reason->text));
    }
    return cli_table_print(table, NULL);
}

void inbox_tally_json(const struct inbox_tally *tally, struct cli_object *object, const char *name)
{
    struct semel_buf list;
    struct cli_object one;
    semel__buf_init(&list, 1 << 20);
    semel__buf_addz(&list, "[");
    for (size_t i = 0; i < lines(tally); i++) {
        const struct reason *reason = &tally->reasons[i];
        cli_object_init(&one);
        cli_object_text(&one, "result", semel__str(inbox_result_names[reason->result]));
        cli_object_text(&one, "reason", reason->text[0] != '\0' ? semel__str(reason->text) : (struct semel_str){0});
        cli_object_number(&one, "count", reason->n);
        cli_object_text(&one, "example", semel__str(reason->example));
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
