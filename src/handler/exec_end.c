/* SPDX-License-Identifier: MIT
 *
 * exec_end.c: what a program printed, and what its end means.
 *
 *     exit 0     done; what it printed is the outcome where it is JSON and was kept whole
 *     exit 75    transient: nothing was done, try again         (EX_TEMPFAIL of sysexits.h)
 *     exit 65    permanent: it will never be done               (EX_DATAERR)
 *     exit 77    rejected by the business: a final outcome      (EX_NOPERM)
 *     exit 69    unknown: it may have been done                 (EX_UNAVAILABLE)
 *     any other exit, a signal, the time-out: unknown as well
 * Where the program honours the key, unknown is transient. Of a reconcile: 0 it has happened, 75 it certainly has not,
 * 77 it was refused for good, any other unknown.
 *
 * Invariants: after it was told to stop no exit is believed, for a program that tidies up on SIGTERM and exits with 0
 * is usual; the reason is stderr's last line, cut and without control characters.
 */
#include <stdio.h>
#include <string.h>
#include <sysexits.h>

#include "handler/exec_private.h"

void semel__exec_take_said(struct exec_call *c, const char *p, size_t n)
{
    if (!c->over)
        c->over = !semel__buf_add(&c->said, p, n);
}

void semel__exec_take_tail(struct exec_call *c, const char *p, size_t n)
{
    if (n >= EXEC_TAIL) {
        memcpy(c->tail, p + n - EXEC_TAIL, EXEC_TAIL);
        c->n_tail = EXEC_TAIL;
        return;
    }
    size_t keep = c->n_tail + n > EXEC_TAIL ? EXEC_TAIL - n : c->n_tail;
    memmove(c->tail, c->tail + c->n_tail - keep, keep);
    memcpy(c->tail + keep, p, n);
    c->n_tail = keep + n;
}

static struct semel_str last_line(const struct exec_call *c)
{
    size_t end = c->n_tail;
    while (end > 0 && strchr("\r\n \t", c->tail[end - 1]) != NULL && c->tail[end - 1] != '\0')
        end--;
    size_t begin = end;
    while (begin > 0 && c->tail[begin - 1] != '\n' && c->tail[begin - 1] != '\r')
        begin--;
    return (struct semel_str){c->tail + begin, end - begin};
}

static enum semel_result by_exit(const struct exec_caller *exec, const struct exec_call *c, int status)
{
    switch (status) {
    case EX_OK:
        return SEMEL_DONE;
    case EX_TEMPFAIL:
        return SEMEL_TRANSIENT;
    case EX_NOPERM:
        return SEMEL_REJECTED;
    case EX_DATAERR:
        return c->call.ask ? SEMEL_MAYBE : SEMEL_PERMANENT;
    default:
        return semel__call_unknown(&c->call, exec->idempotent);
    }
}

void semel__exec_judge(const struct exec_caller *exec, struct exec_call *c, const siginfo_t *info)
{
    enum semel_result result = semel__call_unknown(&c->call, exec->idempotent);
    char what[64];
    if (c->stage != EXEC_RUNS)
        snprintf(what, sizeof what, c->cancelled ? "given up before it ended" : "stopped, for its time was over");
    else if (info == NULL)
        snprintf(what, sizeof what, "ended, and nobody knows how");
    else if (info->si_code == CLD_EXITED) {
        result = by_exit(exec, c, info->si_status);
        c->end.heard = c->call.ask && (result != SEMEL_MAYBE || info->si_status == EX_UNAVAILABLE);
        snprintf(what, sizeof what, "exit %d", info->si_status);
    } else
        snprintf(what, sizeof what, "killed by signal %d", info->si_status);
    semel__call_says(&c->end, c->reason, result, what, last_line(c));
    struct semel_str said = semel__buf_str(&c->said);
    if (result == SEMEL_DONE && !c->over && semel__call_outcome(said))
        c->end.outcome = said;
}
