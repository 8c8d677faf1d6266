/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * To be preloaded: all namespaces have the same names, as those of machines that were resumed from one snapshot have.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

__attribute__((visibility("default"))) int stat(const char *path, struct stat *info);

int stat(const char *path, struct stat *info)
{
    int (*real)(const char *, struct stat *) =
        (int (*)(const char *, struct stat *))(uintptr_t)dlsym(RTLD_NEXT, "stat");
    int ret = real(path, info);
    if (ret == 0 && strncmp(path, "/proc/self/ns/", strlen("/proc/self/ns/")) == 0) info->st_ino = 1;
    return ret;
}
