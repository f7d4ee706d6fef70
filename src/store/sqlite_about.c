/* SPDX-License-Identifier: MIT
 *
 * sqlite_about.c: what a person should be told about the SQLite in use: its version with what follows from it, and
 * the size of the write-ahead log, which grows while a long reader holds up the checkpoints (P25).
 */
#include <stdio.h>
#include <sys/stat.h>

#include "store/sqlite.h"

#define WAL_RESET_FIXED 3051003

void semel__sqlite_about(int version, char *out, size_t size)
{
    int n = snprintf(out, size, "SQLite %d.%d.%d", version / 1000000, version / 1000 % 1000, version % 1000);
    if (version >= WAL_RESET_FIXED || n < 0 || (size_t)n >= size)
        return;
    snprintf(out + n, size - (size_t)n,
             ": before 3.51.3 several connections that reset the write-ahead log at once may, rarely, damage the "
             "database; keep other writers few, or upgrade");
}

int semel__sqlite_version(void)
{
    return sqlite3_libversion_number();
}

int64_t semel__sqlite_wal_bytes(struct semel_store *store)
{
    const struct sqlite_store *d = (const struct sqlite_store *)store;
    char path[4200];
    struct stat st;
    if (d->path == NULL || snprintf(path, sizeof(path), "%s-wal", d->path) >= (int)sizeof(path))
        return SEMEL_NONE;
    return stat(path, &st) == 0 ? (int64_t)st.st_size : SEMEL_NONE;
}
