/* SPDX-License-Identifier: MIT
 *
 * demo_view.c: the demo as it runs: a few lines that are drawn over on a terminal, one line a second elsewhere, nothing
 * with --json.
 *
 * Invariants: the cursor always rests at the beginning of the line below the view and is never hidden, so that the
 * terminal is in order at whatever moment the program ends. No line is longer than the terminal is wide.
 */
#include "cli/demo.h"

#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define REDRAW_US 200000
#define LINE_US 1000000
#define COLUMNS 80
#define LINE_BYTES 256

void demo_number(int64_t value, char out[DEMO_NUMBER_TEXT])
{
    char digits[24];
    const int n = snprintf(digits, sizeof digits, "%lld", (long long)(value < 0 ? 0 : value));
    size_t at = 0;

    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
}

void demo_view_init(struct demo_view *view, const struct cli *cli, int64_t now_us)
{
    const char *term = getenv("TERM"); /* NOLINT(concurrency-mt-unsafe): there are no threads */

    *view = (struct demo_view){.silent = cli->json,
                               .redraw = cli->tty && term != NULL && *term != '\0' && strcmp(term, "dumb") != 0};
    view->next_us = view->redraw ? now_us : now_us + LINE_US;
}

bool demo_view_due(const struct demo_view *view, int64_t now_us)
{
    return now_us >= view->next_us || view->next_us - now_us > LINE_US;
}

static int columns(void)
{
    struct winsize size;

    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : COLUMNS;
}

/* The figures as text. */
struct texts {
    char sent[DEMO_NUMBER_TEXT], delivered[DEMO_NUMBER_TEXT], effects[DEMO_NUMBER_TEXT], suppressed[DEMO_NUMBER_TEXT],
        retried[DEMO_NUMBER_TEXT], dead[DEMO_NUMBER_TEXT], in_broker[DEMO_NUMBER_TEXT], unsettled[DEMO_NUMBER_TEXT],
        per_s[DEMO_NUMBER_TEXT], killed[DEMO_NUMBER_TEXT];
};

static void write_texts(const struct demo_figures *figures, struct texts *t)
{
    demo_number(figures->sent, t->sent);
    demo_number(figures->delivered, t->delivered);
    demo_number(figures->effects, t->effects);
    demo_number(figures->suppressed, t->suppressed);
    demo_number(figures->retried, t->retried);
    demo_number(figures->dead, t->dead);
    demo_number(figures->in_broker, t->in_broker);
    demo_number(figures->unsettled, t->unsettled);
    demo_number(figures->per_s, t->per_s);
    demo_number(figures->killed, t->killed);
}

static void show_line(const struct demo_figures *figures, const struct texts *t, const char *clock)
{
    printf(
        "%s: sent %s, delivered %s (%s/s), effects %s, duplicates %s, retried %s, dead %s, workers %lld (%s killed)\n",
        clock, t->sent, t->delivered, t->per_s, t->effects, t->suppressed, t->retried, t->dead,
        (long long)figures->alive, t->killed);
}

__attribute__((format(printf, 2, 3))) static void draw(int width, const char *fmt, ...)
{
    char line[LINE_BYTES];
    va_list args;

    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    printf("\r\x1b[2K%.*s\n", width - 1, line);
}

static int draw_all(const struct demo_figures *figures, const struct texts *t, const char *clock)
{
    const int width = columns();

    draw(width, "%s", clock);
    draw(width, "  payments sent          %10s", t->sent);
    draw(width, "  deliveries             %10s   %s/s, %s waiting in the broker", t->delivered, t->per_s, t->in_broker);
    draw(width, "  effects in the ledger  %10s", t->effects);
    draw(width, "  duplicates suppressed  %10s", t->suppressed);
    draw(width, "  retried after failure  %10s   %s of them not through yet", t->retried, t->unsettled);
    draw(width, "  dead-lettered          %10s", t->dead);
    draw(width, "  workers                %10lld   %s killed with SIGKILL", (long long)figures->alive, t->killed);
    return 8;
}

void demo_view_show(struct demo_view *view, const struct demo_figures *figures, const char *phase, int64_t part_s,
                    int64_t whole_s, int64_t now_us)
{
    struct texts t;
    char clock[64];

    view->next_us = now_us + (view->redraw ? REDRAW_US : LINE_US);
    if (view->silent)
        return;
    if (whole_s > 0)
        snprintf(clock, sizeof clock, "%s, %lld of %lld s", phase, (long long)part_s, (long long)whole_s);
    else
        snprintf(clock, sizeof clock, "%s, %lld s", phase, (long long)part_s);
    write_texts(figures, &t);
    if (view->redraw) {
        if (view->lines > 0)
            printf("\x1b[%dA", view->lines);
        view->lines = draw_all(figures, &t, clock);
    } else {
        show_line(figures, &t, clock);
    }
    fflush(stdout);
}
