/* SPDX-License-Identifier: MIT
 *
 * test_pg_backends.c: PostgreSQL goes away under a worker: its backend is terminated at every step of the code, the
 * server is shut down, crashes or is killed in the middle of transactions; and the books balance all the same.
 *
 * A worker is stopped by SIGSTOP at a labelled point, the server is hurt, and the worker goes on into the damage. It
 * must find its way back by itself: no worker may end before its work is done.
 */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>

#include "fault/world.h"
#include "support/world_pg.h"

#define MESSAGES 12
#define STORM 240
#define STORM_WORKERS 3

static struct world world;

static void plan(struct world *w, int n)
{
    size_t which[2 * WORLD_SENT];
    char id[32], account[16];

    for (int i = 0; i < n; i++) {
        snprintf(id, sizeof id, "m-%03d", i);
        snprintf(account, sizeof account, "acc-%d", i % 5);
        world_plan(w, id, booking(i % 5 == 1 ? TASK_FLAKY : TASK_OK, 1, account, 100 + i), 1);
    }
    for (size_t i = 0; i < 2 * w->n_sent; i++) /* every message comes twice */
        which[i] = i / 2;
    world_push(w, which, 2 * w->n_sent);
}

/* Those that are there now, and gone when it returns; a worker may have a new one by then. */
static void terminate_backends(void)
{
    assert_int_equal(pg_server_ask(&world_server, NULL,
                                   "WITH who AS MATERIALIZED (SELECT pid FROM pg_stat_activity WHERE datname = 'world' "
                                   "AND application_name = 'semel') "
                                   "SELECT count(*) FROM who WHERE NOT pg_terminate_backend(pid, 60000)"),
                     0);
}

enum harm { HARM_BACKEND, HARM_FAST, HARM_IMMEDIATE, HARM_KILL };

static void harm(enum harm how)
{
    if (how == HARM_BACKEND)
        terminate_backends();
    else
        pg_server_restart(&world_server, (enum pg_stop)(how - HARM_FAST));
}

struct step {
    const char *at;
    const char *args[4];
    bool outside;
};

/* Stops a worker there, does harm, and lets it go on. */
static void hurt_at(const struct step *step, enum harm how)
{
    char order[64];
    const char *args[6] = {"batch=8", "deadline_ms=35000", step->args[0], step->args[1], NULL, NULL};
    struct child *worker;

    print_message("[ %s, harm %d ]\n", step->at, (int)how);
    snprintf(order, sizeof order, "SEMEL_STOP_AT=%s:1", step->at);
    world_open(&world, 1);
    plan(&world, MESSAGES);
    worker = world_start(&world, order, args);
    world_stopped(&world, worker);
    harm(how);
    kill(worker->pid, SIGCONT);
    assert_int_equal(world_end(&world, worker), 0);
    if (step->outside)
        world_balances_outside(&world, NULL);
    else
        world_balances(&world);
    world_close(&world);
}

static const struct step steps[] = {
    {"pump.polled", {"effect=atomic"}, false},     {"batch.begun", {"effect=atomic"}, false},
    {"batch.admitted", {"effect=atomic"}, false},  {"batch.handled", {"effect=atomic"}, false},
    {"batch.settled", {"effect=atomic"}, false},   {"batch.committed", {"effect=atomic"}, false},
    {"single.failed", {"effect=atomic"}, false},   {"single.recorded", {"effect=atomic"}, false},
    {"take.settled", {"effect=atomic"}, false},    {"take.committed", {"effect=atomic"}, false},
    {"pump.before_ack", {"effect=atomic"}, false}, {"claim.admitted", {"effect=keyed"}, true},
    {"claim.committed", {"effect=keyed"}, true},   {"lease.run", {"effect=keyed"}, true},
    {"finish.begun", {"effect=keyed"}, true},      {"finish.settled", {"effect=keyed"}, true},
    {"finish.committed", {"effect=keyed"}, true},
};

/* T1, T7, P15 */
static void backend_that_is_terminated_at_any_step_loses_and_doubles_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(steps); i++)
        hurt_at(&steps[i], HARM_BACKEND);
}

/* T1, T7 */
static void server_that_restarts_in_the_middle_of_a_transaction_loses_and_doubles_nothing(void **state)
{
    static const char *const where[] = {"batch.handled", "batch.settled", "finish.settled"};

    (void)state;
    for (enum harm how = HARM_FAST; how <= HARM_KILL; how++)
        for (size_t i = 0; i < COUNT(steps); i++)
            for (size_t k = 0; k < COUNT(where); k++)
                if (strcmp(steps[i].at, where[k]) == 0)
                    hurt_at(&steps[i], how);
}

/* T1, T7, T14: several workers, and a server that comes and goes at any moment. */
static void server_that_comes_and_goes_leaves_the_books_balanced(void **state)
{
    const int n = getenv("SEMEL_LONG") != NULL ? 60 : 6;
    struct child *workers[STORM_WORKERS];
    char line[32];

    (void)state;
    world_open(&world, 7);
    plan(&world, STORM);
    for (size_t i = 0; i < STORM_WORKERS; i++)
        workers[i] = world_start(&world, NULL, ARGS("effect=atomic", "until=stop", "deadline_ms=600000", "barrier=1"));
    for (size_t i = 0; i < STORM_WORKERS; i++)
        world_hear(workers[i], line, sizeof line);
    for (size_t i = 0; i < STORM_WORKERS; i++)
        world_say(workers[i], "x");
    for (int i = 0; i < n; i++) {
        poll(NULL, 0, 20 + (int)semel__random_below(&world.rng, 150));
        if (semel__random_below(&world.rng, 3) == 0)
            terminate_backends();
        else
            pg_server_restart(&world_server, (enum pg_stop)semel__random_below(&world.rng, 3));
    }
    for (size_t i = 0; i < STORM_WORKERS; i++)
        kill(workers[i]->pid, SIGTERM);
    for (size_t i = 0; i < STORM_WORKERS; i++)
        assert_int_equal(world_end(&world, workers[i]), 0);
    world_run(&world, ARGS("effect=atomic"));
    world_balances(&world);
    assert_int_equal(world_count(&world, "SELECT count(*) FROM semel_inbox WHERE status <> 'completed'"), 0);
}

/* P64: nobody is told when the other end is gone. */
static void worker_whose_server_is_down_for_long_goes_on_when_it_is_back(void **state)
{
    struct child *worker;

    (void)state;
    world_open(&world, 3);
    plan(&world, MESSAGES);
    worker = world_start(&world, "SEMEL_STOP_AT=batch.admitted:1", ARGS("effect=atomic", "deadline_ms=35000"));
    world_stopped(&world, worker);
    pg_server_stop(&world_server, PG_STOP_IMMEDIATE);
    kill(worker->pid, SIGCONT);
    poll(NULL, 0, 1500); /* it tries in vain meanwhile */
    pg_server_again(&world_server);
    assert_int_equal(world_end(&world, worker), 0);
    world_balances(&world);
}

static int close_world(void **state)
{
    (void)state;
    world_close(&world);
    return 0;
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_teardown(name, close_world)
    const struct CMUnitTest tests[] = {
        TEST(backend_that_is_terminated_at_any_step_loses_and_doubles_nothing),
        TEST(server_that_restarts_in_the_middle_of_a_transaction_loses_and_doubles_nothing),
        TEST(server_that_comes_and_goes_leaves_the_books_balanced),
        TEST(worker_whose_server_is_down_for_long_goes_on_when_it_is_back),
    };

    return world_main(argc, argv, tests, COUNT(tests));
}
