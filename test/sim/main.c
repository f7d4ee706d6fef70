/* SPDX-License-Identifier: MIT
 *
 * main.c: seeds, processes and counters.
 *
 *   sim [--seeds N] [--from S] [--seed S] [--verbose] [--jobs N]
 *
 * Without arguments: 10,000 seeds from 1, or 1,000,000 when SEMEL_LONG=1, on as many processes as there are CPUs; under
 * a sanitizer, which makes a seed ten times as dear, 2,000 or 50,000. A broken invariant ends everything with exit code
 * 1 and the command that shows it again. A fault that never happened in 1000 seeds or more proves nothing, so that is
 * a failure too.
 */
#include "sim.h"

#include <malloc.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#define SEEDS 2000
#define SEEDS_LONG 50000
#else
#define SEEDS 10000
#define SEEDS_LONG 1000000
#endif

#define JOBS_MAX 64

struct options {
    uint64_t from, seeds;
    int jobs;
    bool verbose;
    const char *program;
};

static const char *const count_names[] = {
#define X(name, text) text,
    SIM_COUNT_MAP(X)
#undef X
};

static struct sim_world world_now;

void sim_trace(const struct sim_world *world, const char *fmt, ...)
{
    va_list args;

    if (!world->verbose)
        return;
    printf("%12.6f  ", (double)(world->now_us % (1000000 * SIM_SECOND)) / 1e6);
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    putchar('\n');
}

void sim_broken(const struct sim_world *world, const char *invariant, const char *fmt, ...)
{
    char scene[400], what[400];
    va_list args;

    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    sim_scene_describe(world, scene, sizeof scene);
    printf("BROKEN: %s: %s\n  scene: %s\n  again: %s --seed %llu --verbose\n", invariant, what, scene, world->program,
           (unsigned long long)world->seed);
    fflush(stdout);
    _exit(1);
}

/* An assertion of core failed: the seed is said before the process dies of it. */
static void on_abort(int signal_number)
{
    char text[300];
    int n = snprintf(text, sizeof text, "ABORTED: an assertion failed\n  again: %s --seed %llu --verbose\n",
                     world_now.program, (unsigned long long)world_now.seed);

    if (n > 0 && write(STDERR_FILENO, text, (size_t)n) < 0)
        _exit(2);
    signal(signal_number, SIG_DFL);
}

static void run_seeds(const struct options *options, uint64_t first, uint64_t stride, uint64_t *counts)
{
    struct fiber *fibers[SIM_ACTORS];

    signal(SIGABRT, on_abort);
    for (int i = 0; i < SIM_ACTORS; i++)
        fibers[i] = fiber_new();
    for (uint64_t i = first; i < options->seeds; i += stride) {
        memset(&world_now, 0, sizeof world_now);
        world_now.verbose = options->verbose;
        world_now.program = options->program;
        sim_run(&world_now, fibers, options->from + i);
        for (int c = 0; c < SIM_COUNTS; c++)
            counts[c] += world_now.counts[c];
    }
    for (int i = 0; i < SIM_ACTORS; i++)
        fiber_free(fibers[i]);
}

static int report(const struct options *options, const uint64_t *counts)
{
    int status = 0;

    for (int c = 0; c < SIM_COUNTS; c++)
        printf("%s%s %llu", c > 0 ? ", " : "", count_names[c], (unsigned long long)counts[c]);
    putchar('\n');
    for (int c = 0; c < SIM_COUNTS && options->seeds >= 1000; c++)
        if (counts[c] == 0) {
            printf("BROKEN: the simulator: not one of \"%s\" in %llu seeds\n", count_names[c],
                   (unsigned long long)options->seeds);
            status = 1;
        }
    return status;
}

/* ---- several processes ---- */

struct job {
    pid_t pid;
    int fd;
};

static void start_job(const struct options *options, struct job *jobs, int number)
{
    int ends[2];

    fflush(stdout);
    if (pipe(ends) != 0 || (jobs[number].pid = fork()) < 0) {
        perror("sim");
        exit(2);
    }
    if (jobs[number].pid == 0) {
        uint64_t counts[SIM_COUNTS] = {0};
        run_seeds(options, (uint64_t)number, (uint64_t)options->jobs, counts);
        exit(write(ends[1], counts, sizeof counts) == (ssize_t)sizeof counts ? 0 : 2);
    }
    close(ends[1]);
    jobs[number].fd = ends[0];
}

/* The worst exit code; when one job fails the others are ended. */
static int wait_for_jobs(const struct options *options, struct job *jobs)
{
    int status = 0;

    for (int left = options->jobs; left > 0; left--) {
        int how;
        pid_t pid = wait(&how);
        int code = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
        for (int i = 0; i < options->jobs; i++) {
            if (jobs[i].pid == pid)
                jobs[i].pid = 0;
            else if (code != 0 && status == 0 && jobs[i].pid > 0)
                kill(jobs[i].pid, SIGTERM);
        }
        if (status == 0)
            status = code;
    }
    return status;
}

static int run_jobs(const struct options *options, uint64_t *counts)
{
    struct job jobs[JOBS_MAX] = {0};

    for (int i = 0; i < options->jobs; i++)
        start_job(options, jobs, i);
    int status = wait_for_jobs(options, jobs);
    for (int i = 0; i < options->jobs; i++) {
        uint64_t more[SIM_COUNTS];
        if (status == 0 && read(jobs[i].fd, more, sizeof more) != (ssize_t)sizeof more)
            status = 2;
        for (int c = 0; status == 0 && c < SIM_COUNTS; c++)
            counts[c] += more[c];
        close(jobs[i].fd);
    }
    return status;
}

/* ---- the command line ---- */

static int usage(void)
{
    fputs("usage: sim [--seeds N] [--from S] [--seed S] [--verbose] [--jobs N]\n", stderr);
    return 2;
}

static bool take_number(char **argv, int *at, uint64_t *ret)
{
    char *end;

    if (argv[*at + 1] == NULL)
        return false;
    *ret = strtoull(argv[++*at], &end, 10);
    return end != argv[*at] && *end == '\0';
}

static bool parse(int argc, char **argv, struct options *options)
{
    const char *wide = getenv("SEMEL_LONG");
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t jobs = cpus < 1 ? 1 : cpus > JOBS_MAX ? JOBS_MAX : (uint64_t)cpus;

    *options = (struct options){.from = 1, .seeds = SEEDS, .program = argv[0]};
    if (wide != NULL && strcmp(wide, "1") == 0)
        options->seeds = SEEDS_LONG;
    for (int i = 1; i < argc; i++) {
        bool good = true;
        if (strcmp(argv[i], "--verbose") == 0) {
            options->verbose = true;
        } else if (strcmp(argv[i], "--seeds") == 0) {
            good = take_number(argv, &i, &options->seeds);
        } else if (strcmp(argv[i], "--from") == 0) {
            good = take_number(argv, &i, &options->from);
        } else if (strcmp(argv[i], "--jobs") == 0) {
            good = take_number(argv, &i, &jobs);
        } else if (strcmp(argv[i], "--seed") == 0) {
            good = take_number(argv, &i, &options->from);
            options->seeds = 1;
        } else {
            good = false;
        }
        if (!good)
            return false;
    }
    options->jobs = jobs < 1 || jobs > JOBS_MAX ? 1 : (int)jobs;
    if (options->seeds < 100)
        options->jobs = 1;
    return true;
}

int main(int argc, char **argv)
{
    struct options options;
    uint64_t counts[SIM_COUNTS] = {0};

    mallopt(M_TRIM_THRESHOLD, 256 << 20); /* each seed takes the same memory again */
    mallopt(M_MMAP_THRESHOLD, 256 << 20);
    if (!parse(argc, argv, &options))
        return usage();
    if (options.jobs == 1)
        run_seeds(&options, 0, 1, counts);
    else {
        int status = run_jobs(&options, counts);
        if (status != 0)
            return status;
    }
    return report(&options, counts);
}
