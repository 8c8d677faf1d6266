/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * UCX opens System V and POSIX shared memory side by side, with some megabytes of each for messages, and cannot do
 * without one that it has found: where /dev/shm is read-only, or System V segments are denied, it gives up; where
 * /dev/shm is full (a container has 64 MB, 16 ranks want 70), libucp 1.19 and 1.22 die of SIGSEGV. So each is looked
 * at here first, and what cannot be had is not asked for.
 *
 * Ranks may come to different answers, as each looks when others have taken some of the room. Where System V works,
 * heaps are System V segments on all of them, whatever else they have opened.
 */
#define _GNU_SOURCE
#include "ucp_shared.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "error.h"
#include "host.h"
#include "log.h"
#include "ucp_library.h"

enum {
    SEGMENT_BYTES = 64 * 1024,
    RANK_BYTES = 8 << 20, /* of /dev/shm for each rank's messages: libucp 1.13 and 1.22 take TAKEN_BYTES */
    TAKEN_BYTES = 9 << 19,
    LEFT_BYTES = 16 << 20, /* with less there libucp 1.22 takes nothing, and dies of SIGSEGV as where it is full */
    TEXT_BYTES = 384
};

/*
 * 0, or the errno with which the system calls are denied, as a container may do. No segment is made: a process that is
 * killed before it has marked one leaves it behind for good. What makes no sense is told so only where it is allowed.
 */
static int denies_calls(void)
{
    if (shmget(IPC_PRIVATE, 0, IPC_CREAT | 0600) >= 0 || errno != EINVAL) return errno;
    if (shmat(-1, NULL, 0) != (void *)-1 || (errno != EINVAL && errno != EIDRM)) return errno;
    return shmctl(-1, IPC_RMID, NULL) == 0 || errno == EINVAL || errno == EIDRM ? 0 : errno;
}

/* 0, or the errno with which it is not known what this namespace allows. That there is memory is looked at before
 * (room.c). */
static int look_at_sysv(struct shminfo *limits, struct shm_info *used)
{
    int error = denies_calls();
    if (error != 0) return error;
    if (shmctl(0, IPC_INFO, (struct shmid_ds *)(void *)limits) < 0) return errno;
    return shmctl(0, SHM_INFO, (struct shmid_ds *)(void *)used) < 0 ? errno : 0;
}

/* 0, or the errno with which a segment would be refused now; room: what this namespace has left for such. */
static int try_sysv(uint64_t bytes, xep_shared_room_t *room)
{
    struct shminfo limits;
    struct shm_info used;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), pages = bytes / page + (bytes % page != 0);
    int error = look_at_sysv(&limits, &used);
    *room = (xep_shared_room_t){0};
    if (error != 0) return error;
    const uint64_t left = limits.shmall > used.shm_tot ? limits.shmall - used.shm_tot : 0;
    const uint64_t ids = used.used_ids < 0 ? 0 : (uint64_t)used.used_ids;
    room->id = xep_host_file("/proc/self/ns/ipc");
    room->bytes = left > UINT64_MAX / page ? UINT64_MAX : left * page;
    if (bytes > limits.shmmax) return EINVAL;
    if (ids < limits.shmmni && pages != 0) room->heaps = left / pages;
    if (room->heaps > limits.shmmni - ids) room->heaps = limits.shmmni - ids;
    return room->heaps == 0 ? ENOSPC : 0;
}

const char *xep_ucp_shared_folder(void)
{
    const char *asked = getenv("UCX_POSIX_DIR");
    return asked == NULL || asked[0] == '\0' ? "/dev/shm" : asked;
}

/* 0, or the errno with which a file is refused there */
static int try_posix(uint64_t *room_p)
{
    struct statvfs fs;
    int error = 0, fd = open(xep_ucp_shared_folder(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    *room_p = 0;
    if (fd < 0) return errno;
    if (fstatvfs(fd, &fs) != 0) error = errno;
    else *room_p = (uint64_t)fs.f_bavail * fs.f_frsize;
    close(fd);
    return error;
}

/* "System V segments: Operation not permitted; /dev/shm: 65536 bytes free" */
static void explain(int sysv, int posix, uint64_t room, char *text)
{
    int used = snprintf(text, TEXT_BYTES, "System V segments: %.100s; %.100s: ", sysv == 0 ? "ok" : strerror(sysv),
                        xep_ucp_shared_folder());
    if (posix == 0) snprintf(text + used, (size_t)(TEXT_BYTES - used), "%" PRIu64 " bytes free", room);
    else snprintf(text + used, (size_t)(TEXT_BYTES - used), "%.100s", strerror(posix));
}

/* Others may have taken theirs when the last rank of a host begins. */
static bool is_cramped(uint64_t room, uint32_t nranks)
{
    if (room / RANK_BYTES < nranks) return true;
    return xep_ucp_version_number() >= XEP_UCP_SECOND_PROTOCOLS && room < LEFT_BYTES + (uint64_t)nranks * TAKEN_BYTES;
}

static const char *leave_out(uint32_t nranks)
{
    char why[TEXT_BYTES];
    uint64_t room;
    xep_shared_room_t segments;
    int sysv = try_sysv(SEGMENT_BYTES, &segments), posix = try_posix(&room);
    bool cramped = posix != 0 || is_cramped(room, nranks);
    if (sysv == 0 && !cramped) return NULL;
    explain(sysv, posix, room, why);
    if (sysv == 0) xep_log(XEP_LOG_INFO, "POSIX shared memory is not used: %s (%d for each rank)", why, RANK_BYTES);
    else if (!cramped) xep_log(XEP_LOG_INFO, "System V shared memory is not used: %s", why);
    else
        xep_log(XEP_LOG_WARN, "no shared memory, all bytes go through sockets: %s (%d for each of %u ranks)", why,
                RANK_BYTES, nranks);
    if (sysv == 0) return "posix";
    return cramped ? "posix,sysv" : "sysv";
}

xep_ucp_shared_t xep_ucp_shared_find(uint32_t nranks)
{
    xep_ucp_shared_t shared = {0};
    shared.transports = leave_out(nranks);
    shared.expected = nranks > 1 && (shared.transports == NULL || strchr(shared.transports, ',') == NULL);
    return shared;
}

xep_status_t xep_ucp_shared_refuse(uint64_t bytes)
{
    char why[TEXT_BYTES];
    uint64_t room;
    xep_shared_room_t segments;
    int posix = try_posix(&room);
    explain(try_sysv(bytes, &segments), posix, room, why);
    return xep_fail(XEP_ERR_NO_MEMORY, "not enough shared memory for a buffer of %" PRIu64 " bytes (%s)", bytes, why);
}

xep_status_t xep_ucp_shared_check(uint64_t bytes)
{
    uint64_t room;
    xep_shared_room_t segments;
    if (try_sysv(bytes, &segments) == 0) return XEP_OK;
    return try_posix(&room) == 0 && room >= bytes ? XEP_OK : xep_ucp_shared_refuse(bytes);
}

/* Every heap of a POSIX segment takes whole pages, and all of them at once. */
void xep_ucp_shared_room(uint64_t bytes, xep_shared_room_t rooms[XEP_SHARED_KINDS])
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), whole = bytes / page + (bytes % page != 0);
    xep_shared_room_t *posix = &rooms[XEP_SHARED_POSIX];
    (void)try_sysv(bytes, &rooms[XEP_SHARED_SYSV]);
    *posix = (xep_shared_room_t){0};
    if (try_posix(&posix->bytes) != 0) return;
    posix->id = xep_host_file(xep_ucp_shared_folder());
    posix->heaps = whole == 0 ? 0 : posix->bytes / page / whole;
}
