/* SPDX-License-Identifier: MIT
 *
 * demo_folder.c: the folder of the demo. Makes it, or takes one over that an earlier demo has made, and nothing else.
 *
 * A marker file says that a folder is a demo's; it is locked for as long as a demo runs in it. Only files with the
 * demo's own names are removed, and only those of the kind of run that begins. No symlink is followed, neither of the
 * folder nor of a file in it, and a folder of somebody else is left alone.
 */
#include "cli/demo.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MARKER ".semel-demo"
#define NAME_BYTES 64

bool demo_folder_here(void)
{
    struct stat st;

    return lstat(MARKER, &st) == 0 && S_ISREG(st.st_mode);
}

/* Is there anything in the working directory? What cannot be read counts as something. */
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

static int clear(const struct demo_settings *set)
{
    const struct demo_files *files = set->files;

    if (remove_database(files->store) && remove_database(files->broker) && remove_database(files->sent) &&
        remove_file(files->books, "") && remove_file(DEMO_LOG, ""))
        return CLI_OK;
    return cli_fail(CLI_FAILED, "%s: what an earlier demo left cannot be removed: %s", set->dir, cli_errno());
}

static int lock(const struct demo_settings *set, int *ret_fd)
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

static int enter(const struct demo_settings *set)
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

int demo_folder_enter(const struct demo_settings *set, int *ret_lock_fd)
{
    int code;

    if (mkdir(set->dir, 0700) != 0 && errno != EEXIST)
        return cli_fail(CLI_FAILED, "the folder %s cannot be made: %s", set->dir, cli_errno());
    code = enter(set);
    if (code != CLI_OK)
        return code;
    if (!demo_folder_here() && !is_empty())
        return cli_fail(CLI_REFUSED, "the folder %s is there already and no demo has made it; give another --dir",
                        set->dir);
    code = lock(set, ret_lock_fd);
    if (code != CLI_OK)
        return code;
    code = clear(set);
    if (code != CLI_OK)
        close(*ret_lock_fd);
    return code;
}
