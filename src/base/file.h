/* SPDX-License-Identifier: MIT
 *
 * file.h: files that hold what is nobody else's business.
 */
#ifndef SEMEL_BASE_FILE_H
#define SEMEL_BASE_FILE_H

/* Makes an empty file that its owner alone may read and write, where nothing has that name yet; a symlink is something.
 * SQLite gives its -wal, -shm and -journal the mode of the database. What goes wrong is told by whoever opens it next.
 */
void semel__file_make_private(const char *path);

#endif
