/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A container has 64 MiB of /dev/shm unless told otherwise, and UCX then fails with words that do not say so: the
 * sentence of our error does.
 */
#include "shm.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define FOLDER "/dev/shm"
#define REMEDY "or keep UCX away from it: UCX_TLS=^posix"

/* Only said where the room is short now: a guess at another cause would be worse than none. */
void xep_shm_hint(uint64_t bytes, char text[XEP_SHM_HINT_BYTES])
{
    struct statvfs room;
    text[0] = '\0';
    if (access(FOLDER, W_OK) != 0 || statvfs(FOLDER, &room) != 0) {
        snprintf(text, XEP_SHM_HINT_BYTES, " (there is no " FOLDER " to write to: mount one, " REMEDY ")");
        return;
    }
    uint64_t left = (uint64_t)room.f_bavail * room.f_frsize;
    if (left < bytes)
        snprintf(text, XEP_SHM_HINT_BYTES,
                 " (" FOLDER " has %" PRIu64 " KiB left: give it more, as by --shm-size of docker, " REMEDY ")",
                 left >> 10);
}
