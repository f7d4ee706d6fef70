/* SPDX-License-Identifier: MIT
 *
 * point.c: what happens at a labelled place: it is counted, then the hook is called, then the process may stop or die
 * there.
 *
 * Invariants: without a hook and without orders in the environment a visit is one addition and three comparisons; an
 * order is executed once, at exactly its visit; counting is safe from any thread, but hook and orders are set before
 * the threads start.
 */
#include "base/point.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"

/* At the visit-th visit of `point`, the process sends itself a signal; visit 0: never. */
struct order {
    enum semel_point point;
    unsigned long visit;
};

static struct {
    semel_point_hook call;
    void *ctx;
} point_hook;
static struct order stop_order, crash_order;
static atomic_ulong visits[SEMEL_POINT_COUNT];

#define X(name, text) text,
static const char *const point_names[] = {SEMEL_POINT_MAP(X)};
#undef X

void semel__point_set_hook(semel_point_hook hook, void *ctx)
{
    point_hook.call = hook;
    point_hook.ctx = ctx;
}

static void carry_out(const struct order *order, enum semel_point point, unsigned long visit, int signal_number)
{
    if (order->visit == visit && order->point == point)
        kill(getpid(), signal_number);
}

void semel__point_visit(enum semel_point point)
{
    unsigned long visit = atomic_fetch_add_explicit(&visits[point], 1, memory_order_relaxed) + 1;
    if (point_hook.call != NULL)
        point_hook.call(point_hook.ctx, point);
    carry_out(&stop_order, point, visit, SIGSTOP);
    carry_out(&crash_order, point, visit, SIGKILL);
}

const char *semel__point_name(enum semel_point point)
{
    return point < SEMEL_POINT_COUNT ? point_names[point] : "?";
}

unsigned long semel__point_visits(enum semel_point point)
{
    return point < SEMEL_POINT_COUNT ? atomic_load_explicit(&visits[point], memory_order_relaxed) : 0;
}

static bool order_parse(const char *text, struct order *ret)
{
    const char *colon = strchr(text, ':');
    int64_t visit;
    if (colon == NULL || !semel__str_int64(semel__str(colon + 1), &visit) || visit < 1)
        return false;
    struct semel_str label = {text, (size_t)(colon - text)};
    for (size_t i = 0; i < SEMEL_POINT_COUNT; i++) {
        if (semel__str_eqz(label, point_names[i])) {
            *ret = (struct order){(enum semel_point)i, (unsigned long)visit};
            return true;
        }
    }
    return false;
}

static bool order_from_env(const char *variable, struct order *ret)
{
    const char *text = getenv(variable); /* NOLINT(concurrency-mt-unsafe): before any thread starts */
    *ret = (struct order){.visit = 0};
    if (text == NULL || order_parse(text, ret))
        return true;
    char shown[64];
    semel__str_show(shown, sizeof(shown), semel__str(text));
    fprintf(stderr, "%s=%s: not a label and a visit, as in %s:1\n", variable, shown, point_names[0]);
    return false;
}

int semel__point_from_env(void)
{
    bool stop = order_from_env("SEMEL_STOP_AT", &stop_order);
    bool crash = order_from_env("SEMEL_CRASH_AT", &crash_order);
    return stop && crash;
}
