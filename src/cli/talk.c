/* SPDX-License-Identifier: MIT
 *
 * talk.c: what the commands say, and the values that they are given.
 *
 * Invariants: a line that is written here has no control characters but its newline.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/select.h>
#include <time.h>
#include <unistd.h>

#include "base/wait.h"
#include "cli/frame.h"
#include "core/consumer.h"
#include "ops/explain.h"

#define LINE_BYTES 8192
#define COMMAND_BYTES 65536

/* ---- lines --------------------------------------------------------------------------------------- */

/* A line that is too long is cut; payloads and lists are printed elsewhere. */
__attribute__((format(printf, 3, 0))) static void line(FILE *to, const char *before, const char *fmt, va_list list)
{
    char raw[LINE_BYTES], shown[LINE_BYTES];
    if (vsnprintf(raw, sizeof(raw), fmt, list) < 0)
        raw[0] = '\0';
    semel__str_show(shown, sizeof(shown), semel__str(raw));
    fprintf(to, "%s%s\n", before, shown);
}

int cli_fail(int code, const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    fflush(stdout); /* so that both come in the order in which they were said */
    line(stderr, "semel: ", fmt, list);
    va_end(list);
    return code;
}

void cli_say(const struct cli *cli, const char *fmt, ...)
{
    if (cli->json)
        return;
    va_list list;
    va_start(list, fmt);
    line(stdout, "", fmt, list);
    va_end(list);
}

static int exit_code(semel_status status, enum semel_class cls)
{
    switch (status) {
    case SEMEL_OK:
        return CLI_OK;
    case SEMEL_RETRY:
    case SEMEL_CLOSED:
        return CLI_STORE;
    case SEMEL_INVALID:
        return cls == SEMEL_CLASS_BROKEN || cls == SEMEL_CLASS_ENVIRONMENT ? CLI_STORE : CLI_REFUSED;
    case SEMEL_FENCED:
        return CLI_REFUSED;
    case SEMEL_UNKNOWN:
        return CLI_FAILED;
    }
    return CLI_FAILED;
}

int cli_fail_error(semel_status status, const struct semel_error *err, const char *doing)
{
    return cli_fail(exit_code(status, err->cls), "%s: %s", doing, err->text);
}

int cli_fail_name(semel_status status, const struct semel_error *err, const char *doing)
{
    if (status == SEMEL_INVALID && err->cls == SEMEL_CLASS_PERMANENT)
        return cli_fail(CLI_USAGE, "%s", err->text);
    return cli_fail_error(status, err, doing);
}

const char *cli_errno(void)
{
    return strerror(errno); /* NOLINT(concurrency-mt-unsafe): there are no threads */
}

static const char *kept(struct cli *cli, struct semel_buf *buf, const char *otherwise)
{
    struct semel_str copy = {NULL, 0};
    bool ok = !buf->failed && semel__arena_copy(&cli->arena, semel__buf_str(buf), &copy);
    semel__buf_done(buf);
    return ok ? copy.p : otherwise;
}

const char *cli_word(struct cli *cli, const char *word)
{
    struct semel_buf buf;
    semel__buf_init(&buf, COMMAND_BYTES);
    semel__put_word(&buf, semel__str(word));
    return kept(cli, &buf, word);
}

const char *cli_again(struct cli *cli, const char *words, const char *store)
{
    struct semel_buf buf;
    semel__buf_init(&buf, COMMAND_BYTES);
    semel__put_word(&buf, semel__str(cli->program));
    semel__buf_addf(&buf, " %s", words);
    if (store != NULL) {
        semel__buf_addz(&buf, " --store ");
        semel__put_word(&buf, semel__str(cli_store_shown(store)));
    }
    return kept(cli, &buf, words);
}

/* The other end of the pipe is closed: nobody misses what was not written. */
static bool nobody_reads(void)
{
    struct pollfd fd = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&fd, 1, 0) == 1 && (fd.revents & (POLLERR | POLLHUP)) != 0;
}

static int lost_errno; /* of a write to stdout that failed before the end */

int cli_finish(int code)
{
    errno = lost_errno;
    bool failed = fflush(stdout) != 0;
    const char *why = errno != 0 ? cli_errno() : "some of it was not written";
    if ((!failed && ferror(stdout) == 0) || errno == EPIPE || nobody_reads())
        return code;
    return cli_fail(CLI_FAILED, "writing to stdout: %s", why);
}

/* ---- JSON ------------------------------------------------------------------------------------------ */

int cli_json_print(struct semel_buf *json)
{
    int code = CLI_OK;
    if (json->failed)
        code = cli_fail(CLI_FAILED, json->full ? "there is too much to print" : "out of memory");
    else if (fwrite(json->p, 1, json->n, stdout) < json->n)
        lost_errno = errno;
    semel__buf_done(json);
    return code;
}

int cli_json_of(void (*put)(struct semel_buf *json, const void *ctx), const void *ctx)
{
    struct semel_buf json;
    semel__buf_init(&json, CLI_JSON_MAX);
    put(&json, ctx);
    return cli_json_print(&json);
}

int cli_object_print(struct semel_object *object)
{
    (void)semel__object_end(object);
    semel__buf_addz(&object->buf, "\n");
    return cli_json_print(&object->buf);
}

/* ---- times for people ---------------------------------------------------------------------------- */

void cli_time(int64_t us, char *out, size_t size)
{
    char text[SEMEL_TIME_TEXT];
    if (us == SEMEL_NONE) {
        snprintf(out, size, "%s", "");
        return;
    }
    semel__time_format(us, text);
    text[strcspn(text, ".")] = '\0';
    snprintf(out, size, "%sZ", text);
}

void cli_ago(int64_t us, int64_t now_us, char *out, size_t size)
{
    int64_t away_us = 0;
    struct semel_buf buf;
    snprintf(out, size, "%s", "");
    if (us == SEMEL_NONE)
        return;
    if (__builtin_sub_overflow(us, now_us, &away_us) || away_us == INT64_MIN)
        away_us = us > now_us ? INT64_MAX : -INT64_MAX;
    semel__buf_init(&buf, 64);
    semel__put_span(&buf, away_us < 0 ? -away_us : away_us);
    if (away_us > -1000000 && away_us < 1000000)
        snprintf(out, size, "now");
    else if (!buf.failed)
        snprintf(out, size, away_us < 0 ? "%.*s ago" : "in %.*s", (int)buf.n, buf.p);
    semel__buf_done(&buf);
}

/* ---- who acts, and why -------------------------------------------------------------------------- */

int cli_who(struct cli *cli, struct semel_str *ret)
{
    struct semel_error err = {0};
    struct passwd entry, *user = NULL;
    const char *given = getenv("SEMEL_USER"); /* NOLINT(concurrency-mt-unsafe): there are no threads */
    char host[128] = "", buf[4096], text[SEMEL_ID_MAX + 1];
    if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0')
        snprintf(host, sizeof host, "localhost");
    if (getpwuid_r(geteuid(), &entry, buf, sizeof buf, &user) == 0 && user != NULL)
        snprintf(text, sizeof text, "%s@%s", user->pw_name, host);
    else
        snprintf(text, sizeof text, "uid-%lu@%s", (unsigned long)geteuid(), host);
    struct semel_str who = semel__str(given != NULL && given[0] != '\0' ? given : text);
    if (semel__id_check("SEMEL_USER", who, 1, &err) != SEMEL_OK)
        return cli_fail(CLI_USAGE, "%s", err.text);
    return semel__arena_copy(&cli->arena, who, ret) ? CLI_OK : cli_fail(CLI_FAILED, "out of memory");
}

int cli_confirm(const struct cli_args *args, const char *fmt, ...)
{
    char answer[16] = "";
    va_list list;
    if (cli_flag(args, "yes"))
        return CLI_OK;
    if (isatty(STDIN_FILENO) != 1 || isatty(STDERR_FILENO) != 1)
        return cli_fail(CLI_USAGE, "stdin is not a terminal: pass --yes");
    va_start(list, fmt);
    vfprintf(stderr, fmt, list);
    va_end(list);
    fprintf(stderr, " [y/N] ");
    fflush(stderr);
    if (fgets(answer, sizeof answer, stdin) != NULL && (answer[0] == 'y' || answer[0] == 'Y'))
        return CLI_OK;
    return cli_fail(CLI_FAILED, "nothing was done");
}

int cli_reason(const struct cli_args *args, bool required, struct semel_str *ret)
{
    *ret = semel__str(cli_value(args, "reason"));
    if (required && !semel__str_given(*ret))
        return cli_fail(CLI_REFUSED, "--reason is required (goes to the audit log)");
    return CLI_OK;
}

/* ---- values -------------------------------------------------------------------------------------- */

bool cli_int(const struct cli_args *args, const char *name, int64_t low, int64_t high, int64_t other, int64_t *ret)
{
    const char *text = cli_value(args, name);
    int64_t value = other;
    if (text != NULL && (!semel__str_int64(semel__str(text), &value) || value < low || value > high)) {
        cli_fail(CLI_USAGE, "--%s is '%s'; it must be a whole number from %lld to %lld", name, text, (long long)low,
                 (long long)high);
        return false;
    }
    *ret = value;
    return true;
}

bool cli_duration(const struct cli_args *args, const char *name, int64_t other_us, int64_t *ret_us)
{
    const char *text = cli_value(args, name);
    int64_t value = other_us;
    if (text != NULL && !semel__duration_parse(semel__str(text), &value)) {
        cli_fail(CLI_USAGE, "--%s is '%s'; it must be a duration such as 90s, 15m, 12h or 45d", name, text);
        return false;
    }
    *ret_us = value;
    return true;
}

/* Reads to the end. 0, or an exit code. */
static int drain(int fd, const char *name, const char *what, size_t max, struct semel_buf *buf)
{
    char chunk[65536];
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof(chunk));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return cli_fail(CLI_FAILED, "reading %s: %s", name, cli_errno());
        if (n == 0)
            return CLI_OK;
        if (!semel__buf_add(buf, chunk, (size_t)n))
            return buf->full
                       ? cli_fail(CLI_USAGE, "%s in %s is too large; at most %zu bytes are allowed", what, name, max)
                       : cli_fail(CLI_FAILED, "out of memory");
    }
}

int cli_input(struct cli *cli, const char *operand, const char *what, size_t max, struct semel_str *ret)
{
    struct semel_str text = semel__str(operand);
    struct semel_buf buf;
    bool is_stdin = strcmp(operand, "-") == 0;
    int code = CLI_OK;
    semel__buf_init(&buf, max);
    if (is_stdin || operand[0] == '@') {
        const char *name = is_stdin ? "stdin" : operand + 1;
        int fd = is_stdin ? STDIN_FILENO : open(name, O_RDONLY | O_CLOEXEC);
        if (name[0] == '\0')
            code = cli_fail(CLI_USAGE, "@ names no file; it must be @FILE, such as @payment.json");
        else if (fd < 0)
            code = cli_fail(CLI_FAILED, "opening %s: %s", name, cli_errno());
        else
            code = drain(fd, name, what, max, &buf);
        if (fd > STDERR_FILENO)
            close(fd);
        text = semel__buf_str(&buf);
    } else if (text.n > max) {
        code = cli_fail(CLI_USAGE, "%s is too large; at most %zu bytes are allowed", what, max);
    }
    if (code == CLI_OK && !semel__arena_copy(&cli->arena, text, ret))
        code = cli_fail(CLI_FAILED, "out of memory");
    semel__buf_done(&buf);
    return code;
}

/* ---- long work ----------------------------------------------------------------------------------- */

#define SHOW_EVERY_US 200000
#define LINE_EVERY_US 1000000

static volatile sig_atomic_t interrupted;

static void signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
}

void cli_signals_catch(void)
{
    sigset_t set;
    signals(&set);
    sigprocmask(SIG_BLOCK, &set, NULL); /* NOLINT(concurrency-mt-unsafe): there are no threads */
}

bool cli_interrupted(int64_t wait_us)
{
    sigset_t set;
    struct timespec span = {.tv_sec = (time_t)(wait_us / 1000000), .tv_nsec = (long)(wait_us % 1000000) * 1000};
    signals(&set);
    if (interrupted == 0)
        interrupted = sigtimedwait(&set, NULL, &span) > 0;
    return interrupted != 0;
}

/* A signal that was kept interrupts the wait, and is taken then. */
static void note_signal(int number)
{
    (void)number;
    interrupted = 1;
}

bool cli_stdin_ready(int64_t wait_us)
{
    fd_set in;
    struct timespec span = {.tv_sec = (time_t)(wait_us / 1000000), .tv_nsec = (long)(wait_us % 1000000) * 1000};
    struct sigaction note = {.sa_handler = note_signal};
    sigset_t none;
    if (interrupted != 0)
        return false;
    FD_ZERO(&in);
    FD_SET(STDIN_FILENO, &in);
    sigemptyset(&none);
    sigaction(SIGINT, &note, NULL);
    sigaction(SIGTERM, &note, NULL);
    bool ready = pselect(STDIN_FILENO + 1, &in, NULL, NULL, &span, &none) > 0;
    return ready && !cli_interrupted(0); /* where stdin is ready at once, as a file is, no signal is delivered */
}

void cli_progress_begin(struct cli_progress *progress, const struct cli_args *args)
{
    progress->always = cli_flag(args, "progress");
    progress->began_us = progress->shown_us = semel__steady_us();
}

void cli_progress_show(struct cli_progress *progress, int64_t done, const char *what, double part)
{
    const bool tty = isatty(STDERR_FILENO) == 1;
    int64_t now_us = semel__steady_us();
    char left[64] = "";
    if ((!tty && !progress->always) || now_us - progress->shown_us < (tty ? SHOW_EVERY_US : LINE_EVERY_US))
        return;
    double seconds = (double)(now_us - progress->began_us) / 1e6;
    if (part > 0)
        snprintf(left, sizeof left, ", %.0f%%, %.0fs left", part * 100, seconds * (1 - part) / part);
    fprintf(stderr, "%s%lld %s, %.0f/s%s%s", tty ? "\r" : "", (long long)done, what, (double)done / seconds, left,
            tty ? "\033[K" : "\n");
    progress->shown_us = now_us;
}

void cli_progress_end(const struct cli_progress *progress, int64_t done, const char *what)
{
    const bool tty = isatty(STDERR_FILENO) == 1;
    const double seconds = (double)(semel__steady_us() - progress->began_us + 1) / 1e6;
    if (progress->always || (tty && progress->shown_us > progress->began_us))
        fprintf(stderr, "%s%lld %s in %.1fs, %.0f/s%s\n", tty ? "\r" : "", (long long)done, what, seconds,
                (double)done / seconds, tty ? "\033[K" : "");
}
