/* SPDX-License-Identifier: MIT
 *
 * demo.c: `semel demo`: a storm of payments over workers that are killed, and the books at the end. See demo.h.
 *
 * The command sends as much as the workers can process, for the given time, and kills one of them now and then; then
 * it lets them finish, stops them, and makes the books. `demo worker ...` is a worker; it is for the command itself.
 *
 * Invariants: however run_storm ends, no worker is left. The producer never gets further ahead of the workers than
 * they can catch up with in about a second. Kills have a random generator of their own, so they follow from the seed.
 * Between fork and exec only async-signal-safe functions are called. Every started process is waited for. A worker
 * that ends by itself is a failure of the demo. The cursor always rests at the beginning of the line below the view
 * and is never hidden, so that the terminal is in order at whatever moment the program ends. No line of the view is
 * longer than the terminal is wide.
 */
#include "demo/demo.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
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
#define WORKERS_MAX 16
#define LOG_FILE "workers.log"
#define NUMBER_TEXT 32
#define MARKER ".semel-demo"
#define NAME_BYTES 64
#define STOP_MS 10000
#define LOOK_AGAIN_MS 5
#define EXEC_FAILED 127
#define REDRAW_US 200000
#define LINE_US 1000000
#define COLUMNS 80
#define LINE_BYTES 256

const struct demo_files demo_files_with = {"demo.db", "broker.db", "sent.db", "books.sql"};
const struct demo_files demo_files_without = {"without.db", "without-broker.db", "without-sent.db",
                                              "without-books.sql"};

/* ---- the folder ----------------------------------------------------------------------------------------------- */

/* A marker file identifies a folder of the demo; it is locked while a demo runs in it. Only files with the demo's own
 * names are removed, and only those of the kind of run that begins. No symlink is followed, neither of the folder nor
 * of a file in it, and a folder of another owner is left alone. */

/* Is the working directory a folder of the demo? */
static bool folder_here(void)
{
    struct stat st;

    return lstat(MARKER, &st) == 0 && S_ISREG(st.st_mode);
}

/* Is the working directory empty? An unreadable one counts as not empty. */
static bool is_empty(void)
{
    DIR *dir = opendir(".");
    const struct dirent *entry;
    bool empty = dir != NULL;

    /* cppcheck-suppress readdirCalled */
    while (empty && (entry = readdir(dir)) != NULL) /* NOLINT(concurrency-mt-unsafe): there are no threads */
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    if (dir != NULL)
        closedir(dir);
    return empty;
}

static bool remove_file(const char *name, const char *ending)
{
    char path[NAME_BYTES];

    snprintf(path, sizeof path, "%s%s", name, ending);
    return unlink(path) == 0 || errno == ENOENT;
}

static bool remove_database(const char *name)
{
    return remove_file(name, "") && remove_file(name, "-wal") && remove_file(name, "-shm") &&
           remove_file(name, "-journal");
}

static int clear_folder(const struct demo_settings *set)
{
    const struct demo_files *files = set->files;

    if (remove_database(files->store) && remove_database(files->broker) && remove_database(files->sent) &&
        remove_file(files->books, "") && remove_file(LOG_FILE, ""))
        return CLI_OK;
    return cli_fail(CLI_FAILED, "%s: what an earlier demo left cannot be removed: %s", set->dir, cli_errno());
}

static int lock_folder(const struct demo_settings *set, int *ret_fd)
{
    const int fd = open(MARKER, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);

    if (fd < 0)
        return cli_fail(CLI_FAILED, "%s: nothing can be written there: %s", set->dir, cli_errno());
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        const int code = errno == EWOULDBLOCK
                             ? cli_fail(CLI_REFUSED,
                                        "another demo is running in %s; wait for it, or give another --dir", set->dir)
                             : cli_fail(CLI_FAILED, "%s: locking: %s", set->dir, cli_errno());
        close(fd);
        return code;
    }
    *ret_fd = fd;
    return CLI_OK;
}

static int enter_folder(const struct demo_settings *set)
{
    struct stat st;
    const int fd = open(set->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int code = CLI_OK;

    if (fd < 0)
        return errno == ENOTDIR || errno == ELOOP
                   ? cli_fail(CLI_REFUSED, "%s is not a folder; give another --dir", set->dir)
                   : cli_fail(CLI_FAILED, "%s cannot be entered: %s", set->dir, cli_errno());
    if (fstat(fd, &st) != 0 || fchdir(fd) != 0)
        code = cli_fail(CLI_FAILED, "%s cannot be entered: %s", set->dir, cli_errno());
    else if (st.st_uid != geteuid())
        code = cli_fail(CLI_REFUSED, "the folder %s is somebody else's; give another --dir", set->dir);
    close(fd);
    return code;
}

/* Creates or reuses the folder, enters it, locks it and removes the files that this kind of run will write. An exit
 * code. */
static int folder_enter(const struct demo_settings *set, int *ret_lock_fd)
{
    int code;

    if (mkdir(set->dir, 0700) != 0 && errno != EEXIST)
        return cli_fail(CLI_FAILED, "the folder %s cannot be made: %s", set->dir, cli_errno());
    code = enter_folder(set);
    if (code != CLI_OK)
        return code;
    if (!folder_here() && !is_empty())
        return cli_fail(CLI_REFUSED, "the folder %s is there already and no demo has made it; give another --dir",
                        set->dir);
    code = lock_folder(set, ret_lock_fd);
    if (code != CLI_OK)
        return code;
    code = clear_folder(set);
    if (code != CLI_OK)
        close(*ret_lock_fd);
    return code;
}

/* ---- the workers ---------------------------------------------------------------------------------------------- */

/* A worker is a fork and an exec of /proc/self/exe with `demo worker ...`. The kernel kills it when the demo dies in
 * any way (PR_SET_PDEATHSIG), so none is left behind. It ignores the terminal's Ctrl-C: the demo ends it. Its output
 * goes to a file in the folder. */

struct fleet {
    const struct demo_settings *set;
    pid_t pids[WORKERS_MAX]; /* 0: none */
    int n, log_fd;
    int64_t started, killed;
};

static bool fleet_open(struct fleet *fleet, const struct demo_settings *set, struct semel_error *err)
{
    *fleet = (struct fleet){.set = set, .n = (int)set->workers};
    fleet->log_fd = open(LOG_FILE, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fleet->log_fd < 0)
        semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "the file " LOG_FILE " cannot be made: error %d", errno);
    return fleet->log_fd >= 0;
}

/* In the child. */
static _Noreturn void become_worker(char *const argv[], int log_fd, pid_t parent)
{
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct sigaction ignore = {.sa_handler = SIG_IGN}, usual = {.sa_handler = SIG_DFL};

    sigaction(SIGINT, &ignore, NULL);
    sigaction(SIGTERM, &usual, NULL);
    sigaction(SIGHUP, &usual, NULL);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent || nothing < 0 || dup2(nothing, 0) < 0 ||
        dup2(log_fd, 1) < 0 || dup2(log_fd, 2) < 0)
        _exit(EXEC_FAILED);
    execv("/proc/self/exe", argv);
    _exit(EXEC_FAILED);
}

static bool start_one(struct fleet *fleet, int i, struct semel_error *err)
{
    char program[] = "semel", demo[] = "demo", worker[] = "worker", with[] = "with", without[] = "without";
    char seed[24], number[24];
    char *const argv[] = {program, demo, worker, fleet->set->without ? without : with, seed, number, NULL};
    const pid_t parent = getpid();
    pid_t pid;

    snprintf(seed, sizeof seed, "%lld", (long long)fleet->set->seed);
    snprintf(number, sizeof number, "%lld", (long long)++fleet->started);
    pid = fork();
    if (pid == 0)
        become_worker(argv, fleet->log_fd, parent);
    if (pid < 0) {
        semel__fail(err, SEMEL_RETRY, SEMEL_CLASS_ENVIRONMENT, "a worker cannot be started: error %d of fork(2)",
                    errno);
        return false;
    }
    fleet->pids[i] = pid;
    return true;
}

/* Fills the free places. */
static bool fleet_start(struct fleet *fleet, struct semel_error *err)
{
    for (int i = 0; i < fleet->n; i++)
        if (fleet->pids[i] == 0 && !start_one(fleet, i, err))
            return false;
    return true;
}

static int fleet_alive(const struct fleet *fleet)
{
    int alive = 0;

    for (int i = 0; i < fleet->n; i++)
        alive += fleet->pids[i] != 0;
    return alive;
}

static bool ended_by_itself(pid_t pid, int how, struct semel_error *err)
{
    semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_BROKEN,
                WIFSIGNALED(how) ? "worker %ld died by itself, of signal %d; see " LOG_FILE
                                 : "worker %ld ended by itself, with status %d; see " LOG_FILE,
                (long)pid, WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
    return false;
}

/* Waits for the worker if `wait`; *ret_gone: it is gone, and *ret_how is how. */
static void reap(struct fleet *fleet, int i, bool wait, bool *ret_gone, int *ret_how)
{
    pid_t got;

    do
        got = waitpid(fleet->pids[i], ret_how, wait ? 0 : WNOHANG);
    while (got < 0 && errno == EINTR);
    *ret_gone = got == fleet->pids[i];
    if (*ret_gone)
        fleet->pids[i] = 0;
}

/* SIGKILL; its slot is free then. false: it had ended by itself before. */
static bool fleet_kill(struct fleet *fleet, int i, struct semel_error *err)
{
    const pid_t pid = fleet->pids[i];
    bool gone;
    int how = 0;

    if (pid == 0)
        return true;
    kill(pid, SIGKILL);
    reap(fleet, i, true, &gone, &how);
    fleet->pids[i] = 0;
    if (gone && !(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL))
        return ended_by_itself(pid, how, err); /* it was faster */
    fleet->killed++;
    return true;
}

/* false: one has ended by itself. */
static bool fleet_check(struct fleet *fleet, struct semel_error *err)
{
    for (int i = 0; i < fleet->n; i++) {
        const pid_t pid = fleet->pids[i];
        bool gone = false;
        int how = 0;
        if (pid == 0)
            continue;
        reap(fleet, i, false, &gone, &how);
        if (gone)
            return ended_by_itself(pid, how, err);
    }
    return true;
}

/* Ended on SIGTERM. A worker that has just started may not have its signal handler yet. */
static bool ended_well(int how)
{
    return (WIFEXITED(how) && WEXITSTATUS(how) == 0) || (WIFSIGNALED(how) && WTERMSIG(how) == SIGTERM);
}

/* SIGTERM; false: one did not end well. */
static bool fleet_stop(struct fleet *fleet, struct semel_error *err)
{
    const int64_t until_us = semel__time_add(semel__now(&semel__clock_real), STOP_MS * 1000);
    bool well = true;

    for (int i = 0; i < fleet->n; i++)
        if (fleet->pids[i] != 0)
            kill(fleet->pids[i], SIGTERM);
    while (fleet_alive(fleet) > 0 && semel__now(&semel__clock_real) < until_us) {
        for (int i = 0; i < fleet->n; i++) {
            const pid_t pid = fleet->pids[i];
            bool gone = false;
            int how = 0;
            if (pid != 0)
                reap(fleet, i, false, &gone, &how);
            if (gone && !ended_well(how))
                well = ended_by_itself(pid, how, err);
        }
        poll(NULL, 0, LOOK_AGAIN_MS);
    }
    if (fleet_alive(fleet) == 0)
        return well;
    semel__fail(err, SEMEL_CLOSED, SEMEL_CLASS_BROKEN, "%d workers did not stop within %d s", fleet_alive(fleet),
                STOP_MS / 1000);
    return false;
}

/* Kills the remaining workers and waits for them. */
static void fleet_close(struct fleet *fleet)
{
    const int64_t killed = fleet->killed;

    for (int i = 0; i < fleet->n; i++)
        fleet_kill(fleet, i, NULL);
    fleet->killed = killed;
    if (fleet->log_fd > 0)
        close(fleet->log_fd);
    fleet->log_fd = 0;
}

/* ---- the view ------------------------------------------------------------------------------------------------- */

/* A few lines that are redrawn on a terminal, one line per second elsewhere, nothing with --json. */

struct view {
    bool silent, redraw;
    int lines; /* drawn before, to be redrawn */
    int64_t next_us;
};

/* 12,031 */
static void number_text(int64_t value, char out[NUMBER_TEXT])
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

static void view_init(struct view *view, const struct cli *cli, int64_t now_us)
{
    const char *term = getenv("TERM"); /* NOLINT(concurrency-mt-unsafe): there are no threads */

    *view = (struct view){.silent = cli->json,
                          .redraw = cli->tty && term != NULL && *term != '\0' && strcmp(term, "dumb") != 0};
    view->next_us = view->redraw ? now_us : now_us + LINE_US;
}

static bool view_due(const struct view *view, int64_t now_us)
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
    char sent[NUMBER_TEXT], delivered[NUMBER_TEXT], effects[NUMBER_TEXT], suppressed[NUMBER_TEXT], retried[NUMBER_TEXT],
        dead[NUMBER_TEXT], in_broker[NUMBER_TEXT], unsettled[NUMBER_TEXT], per_s[NUMBER_TEXT], killed[NUMBER_TEXT];
};

static void write_texts(const struct demo_figures *figures, struct texts *t)
{
    number_text(figures->sent, t->sent);
    number_text(figures->delivered, t->delivered);
    number_text(figures->effects, t->effects);
    number_text(figures->suppressed, t->suppressed);
    number_text(figures->retried, t->retried);
    number_text(figures->dead, t->dead);
    number_text(figures->in_broker, t->in_broker);
    number_text(figures->unsettled, t->unsettled);
    number_text(figures->per_s, t->per_s);
    number_text(figures->killed, t->killed);
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

/* `phase` is the current phase, `part_s` how long of `whole_s` (0: open end). */
static void view_show(struct view *view, const struct demo_figures *figures, const char *phase, int64_t part_s,
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

/* ---- the storm ------------------------------------------------------------------------------------------ */

struct demo {
    struct cli *cli;
    const struct demo_settings *set;
    struct demo_storm storm;
    struct fleet fleet;
    struct demo_watch watch;
    struct view view;
    struct demo_figures figures;
    struct semel_random kills;
    int64_t paced_us, kill_us, look_us; /* sent up to; when the next kill is due; when the databases were read last */
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

/* Reads the databases; the pace follows from it. */
static bool look(struct demo *d, struct semel_error *err)
{
    const int64_t before = d->figures.delivered, since_us = d->look_us, now_us = now();

    if (!demo_watch_look(&d->watch, &d->figures, err))
        return false;
    d->look_us = now_us;
    d->figures.sent = d->storm.n;
    d->figures.alive = fleet_alive(&d->fleet);
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
    if (!fleet_kill(&d->fleet, (int)semel__random_below(&d->kills, (uint64_t)d->set->workers), err))
        return false;
    d->kill_us = now() + KILL_FIRST_US + (int64_t)semel__random_below(&d->kills, KILL_SPREAD_US);
    return fleet_start(&d->fleet, err);
}

static bool show(struct demo *d, const char *phase, int64_t start_us, int64_t whole_s, struct semel_error *err)
{
    const int64_t now_us = now();

    if (now_us - d->look_us >= LOOK_US && !look(d, err))
        return false;
    if (view_due(&d->view, now_us))
        view_show(&d->view, &d->figures, phase, seconds(now_us - start_us), whole_s, now_us);
    return fleet_check(&d->fleet, err);
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
    view_show(&d->view, &d->figures, "settled", seconds(now() - start_us), 0, now());
    return true;
}

static bool prepare(struct demo *d, struct semel_error *err)
{
    struct sigaction on = {.sa_handler = on_signal};

    sigaction(SIGINT, &on, NULL);
    sigaction(SIGTERM, &on, NULL);
    sigaction(SIGHUP, &on, NULL);
    semel__random_seed(&d->kills, ~(uint64_t)d->set->seed);
    view_init(&d->view, d->cli, now());
    return (d->set->without ? demo_naive_prepare(err) : demo_worker_prepare(err)) &&
           demo_storm_open(&d->storm, d->set, err) && demo_watch_open(&d->watch, d->set, err) &&
           fleet_open(&d->fleet, d->set, err) && fleet_start(&d->fleet, err);
}

static bool run_storm(struct demo *d, struct semel_error *err)
{
    bool ok = prepare(d, err) && storm_phase(d, err) && (interrupted != 0 || settle_phase(d, err));

    demo_watch_close(&d->watch); /* before the workers, so that the last of them checkpoints its database */
    if (ok && interrupted == 0)
        ok = fleet_stop(&d->fleet, err);
    fleet_close(&d->fleet);
    demo_storm_close(&d->storm);
    return ok;
}

/* ---- output ----------------------------------------------------------------------------------------------- */

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
        return cli_fail(CLI_USAGE, "semel demo: '%s' is an unexpected argument; see semel demo --help",
                        cli_operand(args, 0));
    if (!folder_here())
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
           cli_int(args, "workers", 1, WORKERS_MAX, 3, &set->workers) &&
           cli_int(args, "seed", 0, SEED_MAX, random ? (int64_t)semel__random_below(&rng, 1000000) : 1, &set->seed);
}

static int run(struct cli *cli, const struct cli_args *args)
{
    struct demo_settings set;
    struct demo *d;
    struct semel_error err = {0};
    int code, lock_fd = -1;

    if (cli_n(args) > 0)
        return run_worker(args);
    if (!read_settings(args, &set))
        return CLI_USAGE;
    d = semel__arena_alloc(&cli->arena, 1, sizeof *d);
    if (d == NULL)
        return cli_fail(CLI_FAILED, "out of memory");
    code = folder_enter(&set, &lock_fd);
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
    .operands_max = 4, /* how the command starts its workers; of no use to others */
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
