/* SPDX-License-Identifier: MIT
 *
 * replay.c: runs a fuzz target on files, without libFuzzer.
 *
 *     replay_json FILE|DIRECTORY...
 *
 * Every file is given to LLVMFuzzerTestOneInput once; of a directory, every file in it and below it that
 * is not hidden, in the order of their names. Exits 0 when all were run, 1 when one could not be read or
 * there was none.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static int complain(const char *path)
{
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
    return -1;
}

/* The file's bytes in a block of exactly their size, so that a sanitizer sees a read past them. NULL: errno. */
static unsigned char *read_all(const char *path, size_t size)
{
    unsigned char *data = malloc(size > 0 ? size : 1);
    FILE *file = data != NULL ? fopen(path, "rbe") : NULL;
    size_t n = file != NULL ? fread(data, 1, size, file) : 0;
    if (file != NULL)
        fclose(file);
    if (file != NULL && n == size)
        return data;
    free(data);
    return NULL;
}

static int run_file(const char *path, size_t size)
{
    errno = EIO;
    unsigned char *data = read_all(path, size);
    if (data == NULL)
        return complain(path);
    fprintf(stderr, "%s: %zu bytes\n", path, size); /* before the run: the last line names the culprit */
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    return 1;
}

static int run_path(const char *path);

static int run_directory(const char *path)
{
    struct dirent **entries;
    int n = scandir(path, &entries, NULL, alphasort);
    if (n < 0)
        return complain(path);
    int count = 0;
    for (int i = 0; i < n; i++) {
        if (entries[i]->d_name[0] != '.' && count >= 0) {
            char child[4096];
            snprintf(child, sizeof(child), "%s/%s", path, entries[i]->d_name);
            int runs = run_path(child);
            count = runs < 0 ? -1 : count + runs;
        }
        free(entries[i]);
    }
    free(entries);
    return count;
}

/* How many inputs were run; -1: one could not be. */
static int run_path(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return complain(path);
    if (S_ISDIR(st.st_mode))
        return run_directory(path);
    return run_file(path, (size_t)st.st_size);
}

int main(int argc, char **argv)
{
    int count = 0;
    for (int i = 1; i < argc; i++) {
        int runs = run_path(argv[i]);
        if (runs < 0)
            return EXIT_FAILURE;
        count += runs;
    }
    fprintf(stderr, "%d inputs\n", count);
    return count > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
