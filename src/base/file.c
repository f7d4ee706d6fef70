/* SPDX-License-Identifier: MIT
 *
 * file.c: files that only their owner may read.
 */
#include "base/file.h"

#include <fcntl.h>
#include <unistd.h>

void semel__file_make_private(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd); /* the file is new: nobody has a lock on it that close would release */
}
