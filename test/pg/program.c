/* SPDX-License-Identifier: MIT
 *
 * program.c: running PostgreSQL's programs. See program.h.
 */
#include "pg/program.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/process.h"

#define NEWEST 30
#define OLDEST 13

static char folder[256]; /* of the programs */

static bool has_server(const char *dir)
{
    char path[300];

    snprintf(path, sizeof path, "%s/postgres", dir);
    if (access(path, X_OK) != 0)
        return false;
    snprintf(folder, sizeof folder, "%s", dir);
    return true;
}

static bool find_server(void)
{
    const char *given = getenv("SEMEL_PG_BIN");
    char dir[64];

    if (given != NULL)
        return has_server(given);
    for (int version = NEWEST; version >= OLDEST; version--) {
        snprintf(dir, sizeof dir, "/usr/lib/postgresql/%d/bin", version);
        if (has_server(dir))
            return true;
    }
    return has_server("/usr/bin");
}

void pg_program_need(void)
{
    if (folder[0] == '\0' && !find_server())
        server_skip("there is no PostgreSQL server here (apt-get install postgresql; or SEMEL_PG_BIN=FOLDER)");
}

const char *pg_program(const char *name, char out[PG_PROGRAM_TEXT])
{
    snprintf(out, PG_PROGRAM_TEXT, "%s/%s", folder, name);
    return out;
}

void pg_program_template(char *out, size_t size)
{
    int n = snprintf(out, size, "%s/pg-template", PG_TEMPLATES);

    snprintf(out + n, size - (size_t)n, "%s", folder);
    for (char *p = out + n; *p != '\0'; p++)
        if (*p == '/')
            *p = '-';
}

static pid_t parent_of(long pid)
{
    char path[64], text[512];
    const char *after;
    long parent = 0;
    FILE *f;
    size_t n;

    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    f = fopen(path, "re");
    if (f == NULL)
        return 0;
    n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    after = strrchr(text, ')'); /* the name may hold anything */
    if (after != NULL && strlen(after) > 4)
        parent = strtol(after + 4, NULL, 10);
    return (pid_t)parent;
}

void pg_program_kill_children(pid_t pid)
{
    DIR *d;

    kill(pid, SIGSTOP); /* it must not see them die */
    d = opendir("/proc");
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        const long child = strtol(e->d_name, NULL, 10);
        if (child > 0 && parent_of(child) == pid)
            kill((pid_t)child, SIGKILL);
    }
    if (d != NULL)
        closedir(d);
}
