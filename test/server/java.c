/* SPDX-License-Identifier: MIT
 *
 * java.c: servers on Java. See java.h.
 */
#include "server/java.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CLASSPATH 16384
#define WORDS_MAX 32
#define SUM 66 /* characters of a line of the list before the name: a SHA-256 and two blanks */

static const char *find_java(void)
{
    static const char *const places[] = {"/usr/bin/java", "/usr/local/bin/java"};
    const char *given = getenv("SEMEL_JAVA");

    if (given != NULL)
        return given;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (access(places[i], X_OK) == 0)
            return places[i];
    server_skip("Java is not installed (apt-get install openjdk-17-jre-headless; or SEMEL_JAVA=PROGRAM)");
}

static void find_folder(char *out, size_t size)
{
    const char *given = getenv("SEMEL_JARS"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

    if (given != NULL)
        snprintf(out, size, "%s", given);
    else if (cache != NULL)
        snprintf(out, size, "%s/semel/jars", cache);
    else
        snprintf(out, size, "%s/.cache/semel/jars", home != NULL ? home : "");
}

static void make_classpath(char out[CLASSPATH], const char *name, const char *list)
{
    char folder[512], line[512], path[1024];
    FILE *f;
    size_t n = 0;

    find_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/%s.list", SERVER_TOOLS, list);
    f = fopen(path, "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strlen(line) <= SUM)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, line + SUM);
        if (access(path, R_OK) != 0 || n + strlen(path) + 2 > CLASSPATH)
            server_skip("%s's archives are not here (tools/jars %s; or SEMEL_JARS=FOLDER)", name, list);
        n += (size_t)snprintf(out + n, CLASSPATH - n, "%s%s", n > 0 ? ":" : "", path);
    }
    if (f == NULL || n == 0)
        server_skip("tools/%s.list cannot be read", list);
    fclose(f);
}

void server_java_launch(struct server_process *process, const char *list, const char *const *words)
{
    static char classpath[CLASSPATH];
    const char *argv[WORDS_MAX] = {find_java(), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
                                   "-cp",       classpath};
    size_t n = 6;

    make_classpath(classpath, process->kind->name, list);
    while (*words != NULL) {
        if (n + 1 == WORDS_MAX)
            server_fail(process, "too many words");
        argv[n++] = *words++;
    }
    server_launch(process, argv);
}
