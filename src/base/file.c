/* SPDX-License-Identifier: MIT
 *
 * file.c: files that hold what is nobody else's business.
 */
#include "base/file.h"

#include <fcntl.h>
#include <unistd.h>

void semel__file_make_private(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd); /* it is new: nobody has a lock on it that this would let go of */
}
