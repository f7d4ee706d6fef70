/* SPDX-License-Identifier: MIT
 *
 * demo.c: `semel demo`: a storm of payments over workers that are killed, and the books at the end. See demo.h.
 *
 * The command sends as much as the workers can carry, for so many seconds, and kills one of them now and then; then it
 * lets them finish, stops them, and makes the books. `demo worker ...` is a worker; it is for the command itself.
 *
 * Invariants: whichever way run_storm is left, no worker is. The producer never gets further ahead of the workers than
 * they can catch up with in about a second. Kills come from a generator of their own, so they follow from the seed.
 */
#include "cli/demo.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

#define SECOND_US INT64_C(1000000)
#define PAYMENTS_PER_S 2000
#define BACKLOG_MIN 128
#define BACKLOG_MAX 2000
#define TICK_MS 10
#define LOOK_US 200000
#define SETTLE_US (40 * SECOND_US)
#define KILL_FIRST_US 200000
#define KILL_SPREAD_US 500000
#define URL_BYTES 8192 /* a path has at most 4096 */
#define SEED_MAX INT64_C(9007199254740991)

const struct demo_files demo_files_with = {"demo.db", "broker.db", "sent.db", "books.sql"};
const struct demo_files demo_files_without = {"without.db", "without-broker.db", "without-sent.db",
                                              "without-books.sql"};

struct demo {
    struct cli *cli;
    const struct demo_settings *set;
    struct demo_storm storm;
    struct demo_fleet fleet;
    struct demo_watch watch;
    struct demo_view view;
    struct demo_figures figures;
    struct semel_random kills;
    int64_t paced_us, kill_us, look_us; /* sent up to; when the next kill is due; when was the last look */
    int64_t backlog_max;
    bool late; /* not everything was settled in time */
};

static volatile sig_atomic_t interrupted;

static void on_signal(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

static int64_t now(void)
{
    return semel__now(&semel__clock_real);
}

static int64_t seconds(int64_t us)
{
    return (us + SECOND_US / 2) / SECOND_US;
}

/* ---- the storm -------------------------------------------------------------------------------------------- */

/* What the databases say now; the pace follows from it. */
static bool look(struct demo *d, struct semel_error *err)
{
    const int64_t before = d->figures.delivered, since_us = d->look_us, now_us = now();

    if (!demo_watch_look(&d->watch, &d->figures, err))
        return false;
    d->look_us = now_us;
    d->figures.sent = d->storm.n;
    d->figures.alive = demo_fleet_alive(&d->fleet);
    d->figures.killed = d->fleet.killed;
    if (since_us != 0 && now_us > since_us) {
        const int64_t per_s = (d->figures.delivered - before) * SECOND_US / (now_us - since_us);
        d->figures.per_s = (3 * d->figures.per_s + per_s) / 4;
    }
    d->backlog_max = d->figures.per_s / 2;
    if (d->backlog_max < BACKLOG_MIN)
        d->backlog_max = BACKLOG_MIN;
    if (d->backlog_max > BACKLOG_MAX)
        d->backlog_max = BACKLOG_MAX;
    return true;
}

static bool send_some(struct demo *d, struct semel_error *err)
{
    const int64_t now_us = now();
    int64_t due = (now_us - d->paced_us) * PAYMENTS_PER_S / SECOND_US, backlog;

    if (due < 0 || due > DEMO_SEND_MAX)
        due = DEMO_SEND_MAX;
    if (due == 0)
        return true;
    d->paced_us = now_us;
    if (!demo_watch_backlog(&d->watch, &backlog, err))
        return false;
    return backlog >= d->backlog_max || demo_storm_send(&d->storm, (size_t)due, err);
}

static bool kill_one(struct demo *d, struct semel_error *err)
{
    if (now() < d->kill_us)
        return true;
    if (!demo_fleet_kill(&d->fleet, (int)semel__random_below(&d->kills, (uint64_t)d->set->workers), err))
        return false;
    d->kill_us = now() + KILL_FIRST_US + (int64_t)semel__random_below(&d->kills, KILL_SPREAD_US);
    return demo_fleet_start(&d->fleet, err);
}

static bool show(struct demo *d, const char *phase, int64_t start_us, int64_t whole_s, struct semel_error *err)
{
    const int64_t now_us = now();

    if (now_us - d->look_us >= LOOK_US && !look(d, err))
        return false;
    if (demo_view_due(&d->view, now_us))
        demo_view_show(&d->view, &d->figures, phase, seconds(now_us - start_us), whole_s, now_us);
    return demo_fleet_check(&d->fleet, err);
}

static bool storm_phase(struct demo *d, struct semel_error *err)
{
    const int64_t start_us = now(), end_us = start_us + d->set->seconds * SECOND_US;

    d->paced_us = start_us;
    d->kill_us = start_us + KILL_FIRST_US + (int64_t)semel__random_below(&d->kills, KILL_SPREAD_US);
    while (interrupted == 0 && now() < end_us) {
        if (!kill_one(d, err) || !send_some(d, err) || !show(d, "storm", start_us, d->set->seconds, err))
            return false;
        poll(NULL, 0, TICK_MS);
    }
    return true;
}

static bool settled(const struct demo *d)
{
    return d->figures.in_broker == 0 && d->figures.unsettled == 0;
}

static bool settle_phase(struct demo *d, struct semel_error *err)
{
    const int64_t start_us = now();

    if (!demo_storm_flush(&d->storm, err) || !look(d, err))
        return false;
    while (interrupted == 0 && !settled(d)) {
        if (!show(d, "settling", start_us, 0, err))
            return false;
        if (now() - start_us > SETTLE_US) {
            d->late = true;
            return true;
        }
        poll(NULL, 0, TICK_MS);
    }
    demo_view_show(&d->view, &d->figures, "settled", seconds(now() - start_us), 0, now());
    return true;
}

static bool prepare(struct demo *d, struct semel_error *err)
{
    struct sigaction on = {.sa_handler = on_signal};

    sigaction(SIGINT, &on, NULL);
    sigaction(SIGTERM, &on, NULL);
    sigaction(SIGHUP, &on, NULL);
    semel__random_seed(&d->kills, ~(uint64_t)d->set->seed);
    demo_view_init(&d->view, d->cli, now());
    return (d->set->without ? demo_naive_prepare(err) : demo_worker_prepare(err)) &&
           demo_storm_open(&d->storm, d->set, err) && demo_watch_open(&d->watch, d->set, err) &&
           demo_fleet_open(&d->fleet, d->set, err) && demo_fleet_start(&d->fleet, err);
}

static bool run_storm(struct demo *d, struct semel_error *err)
{
    bool ok = prepare(d, err) && storm_phase(d, err) && (interrupted != 0 || settle_phase(d, err));

    demo_watch_close(&d->watch); /* before the workers, so that the last of them puts its database in order */
    if (ok && interrupted == 0)
        ok = demo_fleet_stop(&d->fleet, err);
    demo_fleet_close(&d->fleet);
    demo_storm_close(&d->storm);
    return ok;
}

/* ---- what is said ----------------------------------------------------------------------------------------- */

static void say_before(struct cli *cli, const struct demo_settings *set)
{
    cli_say(cli, "%lld s of payments into the ledger %s/%s, by %lld workers %s; seed %lld", (long long)set->seconds,
            set->dir, set->files->store, (long long)set->workers,
            set->without ? "with a hand-written consumer" : "with Semel", (long long)set->seed);
    cli_say(cli,
            "A third of the payments is delivered twice, all are shuffled, one in 25 meets a fault, a few are poison,");
    cli_say(cli, "and every half second a worker is killed with SIGKILL.");
    cli_say(cli, "%s", "");
}

static void say_query(struct cli *cli, const struct demo_settings *set, const char *dir)
{
    const char *at = demo_books_query(set->without);

    cli_say(cli, "%s", "");
    cli_say(cli, "The books were made with SQLite alone, from the ledger and from what the demo wrote down as sent:");
    while (*at != '\0') {
        const size_t n = strcspn(at, "\n");
        cli_say(cli, "    %.*s", (int)n, at);
        at += n + (at[n] == '\n');
    }
    cli_say(cli, "To run it yourself: cd %s && sqlite3 -line %s <%s", dir, set->files->store, set->files->books);
    cli_say(cli, "%s", "");
}

static void say_hints(struct cli *cli, const struct demo_settings *set, const struct demo_books *books, const char *dir)
{
    char url[URL_BYTES], words[URL_BYTES];

    snprintf(url, sizeof url, "sqlite:%s/%s", set->dir, demo_files_with.store);
    cli_say(cli, "The database is left for you to try things on:");
    cli_say(cli, "    %s", cli_again(cli, "status", url));
    cli_say(cli, "    %s", cli_again(cli, "inbox ls --dead", url));
    if (books->dead_id[0] != '\0') {
        snprintf(words, sizeof words, "inbox show %s", books->dead_id);
        cli_say(cli, "    %s", cli_again(cli, words, url));
    }
    cli_say(cli, "The same storm without Semel:");
    snprintf(words, sizeof words, "demo --without --seed %lld --dir %s", (long long)set->seed, dir);
    cli_say(cli, "    %s", cli_again(cli, words, NULL));
    cli_say(cli, "%s", "");
}

static void say_why(struct cli *cli, const struct demo_books *books)
{
    if (books->doubled > 0)
        cli_say(cli, "Doubled: a worker was killed after it had written the effect and before it marked the id, or two"
                     " workers had checked the same id before either marked it.");
    if (books->lost > 0)
        cli_say(cli, "Lost: the third try failed too, so the error was logged and the message acknowledged.");
    if (books->unbalanced > 0)
        cli_say(cli, "Unbalanced: a worker was killed between the line in the ledger and the change of the account.");
    cli_say(cli, "Each payment was checked against a table of processed ids before it was booked.");
    cli_say(cli, "%s", "");
}

static int make_books(struct cli *cli, const struct demo *d)
{
    const struct demo_settings *set = d->set;
    const char *dir = cli_word(cli, set->dir);
    struct demo_books books = {.killed = d->fleet.killed};
    struct semel_error err = {0};
    int code;

    if (!demo_books_make(set, &books, &err))
        return cli_fail(CLI_FAILED, "%s: %s", set->dir, err.text);
    cli_say(cli, "%s", "");
    code = demo_books_print(cli, set, &books);
    say_query(cli, set, dir);
    if (set->without)
        say_why(cli, &books);
    else
        say_hints(cli, set, &books, dir);
    cli_say(cli, "lost %lld, doubled %lld", (long long)books.lost, (long long)books.doubled);
    if (d->late)
        return cli_fail(CLI_FAILED,
                        "not everything was settled within %lld s: %lld messages are with the broker, %lld"
                        " in the inbox",
                        (long long)(SETTLE_US / SECOND_US), (long long)d->figures.in_broker,
                        (long long)d->figures.unsettled);
    return code != CLI_OK || set->without || demo_books_balance(&books) ? code : CLI_FAILED;
}

/* ---- the command ------------------------------------------------------------------------------------------ */

static int run_worker(const struct cli_args *args)
{
    const char *kind = cli_operand(args, 1);
    int64_t seed, number;

    if (cli_n(args) != 4 || strcmp(cli_operand(args, 0), "worker") != 0 ||
        (strcmp(kind, "with") != 0 && strcmp(kind, "without") != 0) ||
        !semel__str_int64(semel__str(cli_operand(args, 2)), &seed) || seed < 0 || seed > SEED_MAX ||
        !semel__str_int64(semel__str(cli_operand(args, 3)), &number))
        return cli_fail(CLI_USAGE, "semel demo: '%s' is one word too many; semel demo --help says what is right",
                        cli_operand(args, 0));
    if (!demo_folder_here())
        return cli_fail(CLI_REFUSED, "a worker of the demo is started by the demo, in its folder");
    return strcmp(kind, "with") == 0 ? demo_worker_run(seed, number) : demo_naive_run(seed, number);
}

static bool read_settings(const struct cli_args *args, struct demo_settings *set)
{
    struct semel_random rng;
    const bool random = semel__random_seed_os(&rng);

    *set = (struct demo_settings){.without = cli_flag(args, "without"), .dir = cli_value(args, "dir")};
    set->files = set->without ? &demo_files_without : &demo_files_with;
    if (set->dir == NULL)
        set->dir = "semel-demo";
    if (set->dir[0] == '\0') {
        cli_fail(CLI_USAGE, "--dir is ''; it must be a folder, new or an earlier demo's");
        return false;
    }
    return cli_int(args, "seconds", 2, 600, 12, &set->seconds) &&
           cli_int(args, "workers", 1, DEMO_WORKERS_MAX, 3, &set->workers) &&
           cli_int(args, "seed", 0, SEED_MAX, random ? (int64_t)semel__random_below(&rng, 1000000) : 1, &set->seed);
}

static int run(struct cli *cli, const struct cli_args *args)
{
    struct demo_settings set;
    struct demo *d;
    struct semel_error err = {0};
    int code, lock_fd;

    if (cli_n(args) > 0)
        return run_worker(args);
    if (!read_settings(args, &set))
        return CLI_USAGE;
    d = semel__arena_alloc(&cli->arena, 1, sizeof *d);
    if (d == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
    code = demo_folder_enter(&set, &lock_fd);
    if (code != CLI_OK)
        return code;
    *d = (struct demo){.cli = cli, .set = &set, .backlog_max = BACKLOG_MIN};
    say_before(cli, &set);
    if (!run_storm(d, &err))
        code = cli_fail(CLI_FAILED, "%s: %s", set.dir, err.text);
    else if (interrupted != 0)
        code = cli_fail(CLI_INTERRUPTED, "interrupted: the workers were killed, and there are no books");
    else
        code = make_books(cli, d);
    close(lock_fd);
    return code;
}

static const struct cli_option options[] = {
    {"seconds", 0, "N", "how long payments are sent and workers killed, 2 to 600 (default: 12)"},
    {"workers", 0, "N", "how many processes, 1 to 16 (default: 3)"},
    {"dir", 0, "PATH", "the folder for its databases (default: semel-demo)"},
    {"seed", 0, "N", "the same payments, copies and kills again (default: a random one, which is shown)"},
    {"without", 0, NULL, "the same storm against a hand-written consumer, without Semel"},
    {NULL, 0, NULL, NULL},
};

const struct cli_command cli_demo = {
    .name = "demo",
    .summary = "a storm of duplicates, crashes and poison messages, and books that balance",
    .operands = "",
    .operands_max = 4, /* how the command starts its workers; nobody else has a use for it */
    .options = options,
    .help =
        "Workers book a stream of payments into a ledger, while a third of the messages is delivered twice, all are\n"
        "shuffled, some fail for a while, a few can never be booked, and workers are killed with SIGKILL. At the end\n"
        "the ledger is compared with what was sent. Closes with `lost 0, doubled 0`, or exits 1.\n"
        "The folder is replaced if an earlier demo made it, and left for you to try `semel status` and `semel inbox` "
        "on.\n"
        "With --without the exit code says whether the demonstration ran, not whether its books balance.",
    .run = run,
};
