/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * UCX writes all pages of a POSIX segment, and takes its name away then: peers find it by its maker's descriptor. A
 * rank that is killed in between leaves the file behind, with gigabytes perhaps, and nothing in its name says whose it
 * was. But whoever uses such a file has it open for writing or mapped so, its maker from its first moment on. That
 * nobody does is told by the kernel, of processes in other namespaces as well: it gives a lease for reading only then.
 */
#define _GNU_SOURCE
#include "ucp_leftovers.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"

#define PREFIX "ucx_shm_posix_"

/* Where a lease is broken the kernel sends SIGIO, which ends a process: SIGURG does not. Nobody who knows this name
 * lives, so nobody breaks it. */
static int is_unused(int fd)
{
    return fcntl(fd, F_SETSIG, SIGURG) == 0 && fcntl(fd, F_SETLEASE, F_RDLCK) == 0;
}

/* O_NONBLOCK: the lease of another rank, that looks as well, is not waited for. */
static void remove_if_unused(int folder, const char *name)
{
    struct stat file;
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    if (fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && file.st_uid == geteuid() && is_unused(fd) &&
        unlinkat(folder, name, 0) == 0)
        xep_log(XEP_LOG_INFO, "removed %s, %" PRId64 " bytes: a process was killed while UCX made it", name,
                (int64_t)file.st_size);
    close(fd);
}

void xep_ucp_leftovers_remove(const char *folder)
{
    DIR *files = opendir(folder);
    if (files == NULL) return;
    for (const struct dirent *entry = readdir(files); entry != NULL; entry = readdir(files))
        if (strncmp(entry->d_name, PREFIX, strlen(PREFIX)) == 0) remove_if_unused(dirfd(files), entry->d_name);
    closedir(files);
}
