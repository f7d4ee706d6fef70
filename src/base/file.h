/* SPDX-License-Identifier: MIT
 *
 * file.h: files that only their owner may read.
 */
#ifndef SEMEL_BASE_FILE_H
#define SEMEL_BASE_FILE_H

/* Creates an empty file that only its owner may read and write, unless the name exists, be it as a symlink. SQLite
 * gives its -wal, -shm and -journal the mode of the database. Failures are not reported here: the next open fails. */
void semel__file_make_private(const char *path);

#endif
