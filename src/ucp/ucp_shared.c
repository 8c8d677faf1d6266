/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * UCX opens both System V and POSIX shared memory, with some megabytes of each for messages, and fails if one that it
 * has found does not work: if /dev/shm is read-only, or System V segments are denied, it gives up; if /dev/shm is full
 * (a container has 64 MB, 16 ranks want 70), libucp 1.19 and 1.22 die of SIGSEGV. So both are tried here first, and UCX
 * is told to leave out what does not work.
 *
 * All ranks of a host try before one of them begins, and tell one another: only kinds that all of them can have are
 * opened. A POSIX segment has no name, and is found by its maker's descriptor in /proc, which the kernel shows in the
 * same user namespace alone: where ranks are in several (apptainer, rootless containers), System V segments serve. With
 * names in place of that (UCX_POSIX_USE_PROC_LINK=n) libucp 1.13 and 1.22 do not reach such ranks either.
 */
#define _GNU_SOURCE
#include "ucp_shared.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "error.h"
#include "host.h"
#include "log.h"
#include "text.h"
#include "ucp_transport.h"

enum {
    RANK_BYTES = 8 << 20, /* of each kind for a rank's messages: libucp 1.13 and 1.22 take TAKEN_BYTES */
    RANK_SEGMENTS = 6,    /* of each kind: libucp 1.13 and 1.22 take 2, and more for many messages; heaps */
    TAKEN_BYTES = 9 << 19,
    LEFT_BYTES = 16 << 20, /* with less there libucp 1.22 takes nothing, and dies of SIGSEGV as where it is full */
    TEXT_BYTES = 384
};

/*
 * 0, or the errno with which the system calls are denied, as a container may do. Makes no segment, which a process
 * killed before marking it would leave behind for good: a call with senseless arguments is told so only if it is
 * allowed.
 */
static int denies_calls(void)
{
    if (shmget(IPC_PRIVATE, 0, IPC_CREAT | 0600) >= 0 || errno != EINVAL) return errno;
    if (shmat(-1, NULL, 0) != (void *)-1 || (errno != EINVAL && errno != EIDRM)) return errno;
    return shmctl(-1, IPC_RMID, NULL) == 0 || errno == EINVAL || errno == EIDRM ? 0 : errno;
}

/* 0, or the errno with which the limits of this namespace cannot be read. Free memory is checked before (room.c). */
static int look_at_sysv(struct shminfo *limits, struct shm_info *used)
{
    int error = denies_calls();
    if (error != 0) return error;
    if (shmctl(0, IPC_INFO, (struct shmid_ds *)(void *)limits) < 0) return errno;
    return shmctl(0, SHM_INFO, (struct shmid_ds *)(void *)used) < 0 ? errno : 0;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/*
 * 0, or the errno with which a segment would be refused now; room: what this namespace has left for segments. 0 bytes:
 * asks for ranks that begin.
 */
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
    const uint64_t ids_left = ids < limits.shmmni ? limits.shmmni - ids : 0;
    room->id = xep_host_file("/proc/self/ns/ipc");
    room->bytes = left > UINT64_MAX / page ? UINT64_MAX : left * page;
    if ((bytes == 0 ? RANK_BYTES : bytes) > limits.shmmax) return EINVAL;
    room->heaps =
        bytes == 0 ? smaller(room->bytes / RANK_BYTES, ids_left / RANK_SEGMENTS) : smaller(left / pages, ids_left);
    return room->heaps == 0 ? ENOSPC : 0;
}

const char *xep_ucp_shared_folder(void)
{
    const char *asked = getenv("UCX_POSIX_DIR");
    return asked == NULL || asked[0] == '\0' ? "/dev/shm" : asked;
}

/* Newer libucp does not use the last LEFT_BYTES. */
static uint64_t count_posix_ranks(uint64_t bytes, uint64_t files)
{
    uint64_t ranks = smaller(bytes / RANK_BYTES, files / RANK_SEGMENTS);
    if (xep_ucp_version_number() < XEP_UCP_SECOND_PROTOCOLS) return ranks;
    return smaller(ranks, bytes < LEFT_BYTES ? 0 : (bytes - LEFT_BYTES) / TAKEN_BYTES);
}

/*
 * 0, or the errno with which a file is refused there; room: what is left. Every heap takes whole pages, all at once. A
 * file system without a limit of files reports 0 files.
 */
static int try_posix(uint64_t bytes, xep_shared_room_t *room)
{
    struct statvfs fs;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), pages = bytes / page + (bytes % page != 0);
    int error = 0, fd = open(xep_ucp_shared_folder(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    *room = (xep_shared_room_t){0};
    if (fd < 0) return errno;
    if (fstatvfs(fd, &fs) != 0) error = errno;
    close(fd);
    if (error != 0) return error;
    const uint64_t files = fs.f_files == 0 ? UINT64_MAX : (uint64_t)fs.f_favail;
    room->id = xep_host_file(xep_ucp_shared_folder());
    room->bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    room->heaps = bytes == 0 ? count_posix_ranks(room->bytes, files) : smaller(room->bytes / page / pages, files);
    return 0;
}

static const char *name_error(int error)
{
    if (error == 0) return "ok";
    if (error == EINVAL) return "too large for one (kernel.shmmax)";
    return error == ENOTSUP ? "not used" : strerror(error);
}

/* "System V segments: Operation not permitted; /dev/shm: 64 KiB free" */
static void explain(int sysv, int posix, uint64_t room, char *text)
{
    int used =
        snprintf(text, TEXT_BYTES, "System V segments: %.100s; %.100s: ", name_error(sysv), xep_ucp_shared_folder());
    if (posix == 0)
        snprintf(text + used, (size_t)(TEXT_BYTES - used), "%s free", xep_units_of(room, (char[XEP_UNITS_BYTES]){0}));
    else snprintf(text + used, (size_t)(TEXT_BYTES - used), "%.100s", name_error(posix));
}

static bool has_room(const xep_neighbours_t *neighbours, int kind)
{
    return !neighbours->has_stranger && neighbours->shared[kind].ranks >= neighbours->count;
}

/* why the ranks of this host cannot have a kind that this rank could */
static void explain_least(const xep_neighbours_t *neighbours, char *text)
{
    const int kind = has_room(neighbours, XEP_SHARED_SYSV) ? XEP_SHARED_POSIX : XEP_SHARED_SYSV;
    const xep_shared_least_t *least = &neighbours->shared[kind];
    if (neighbours->is_split) snprintf(text, TEXT_BYTES, "ranks are in different user namespaces");
    else
        snprintf(text, TEXT_BYTES, "rank %u has room for %" PRIu64 " of %u ranks", least->seen_by, least->ranks,
                 neighbours->count);
}

static void say_left_out(const xep_neighbours_t *neighbours, bool sysv, bool posix)
{
    static const char no_memory[] = "no shared memory, all bytes go through sockets";
    char own[TEXT_BYTES], all[TEXT_BYTES];
    xep_shared_room_t segments, files;
    const int sysv_error = try_sysv(0, &segments), posix_error = try_posix(0, &files);
    explain(sysv_error, posix_error, files.bytes, own);
    explain_least(neighbours, all);
    if (neighbours->has_stranger)
        xep_log(XEP_LOG_WARN, "%s: rank %u runs as another user (ranks that share memory have one)", no_memory,
                neighbours->stranger);
    else if (sysv)
        xep_log(XEP_LOG_INFO, "POSIX shared memory is not used: %s (%d for each rank); %s", own, RANK_BYTES, all);
    else if (posix) xep_log(XEP_LOG_INFO, "System V shared memory is not used: %s; %s", own, all);
    else xep_log(XEP_LOG_WARN, "%s: %s (%d for each rank); %s", no_memory, own, RANK_BYTES, all);
}

xep_ucp_shared_t xep_ucp_shared_agree(const xep_neighbours_t *neighbours)
{
    const bool sysv = has_room(neighbours, XEP_SHARED_SYSV);
    const bool posix = has_room(neighbours, XEP_SHARED_POSIX) && !neighbours->is_split;
    xep_ucp_shared_t shared = {.opened = {[XEP_SHARED_SYSV] = sysv, [XEP_SHARED_POSIX] = posix}};
    if (!sysv || !posix) say_left_out(neighbours, sysv, posix);
    shared.expected = neighbours->count > 1 && (sysv || posix);
    if (!sysv) shared.transports = posix ? "sysv" : "posix,sysv";
    else if (!posix) shared.transports = "posix";
    return shared;
}

xep_status_t xep_ucp_shared_refuse(const xep_ucp_shared_t *shared, uint64_t bytes)
{
    char why[TEXT_BYTES];
    xep_shared_room_t segments, files;
    int sysv = try_sysv(bytes, &segments), posix = try_posix(bytes, &files);
    if (sysv == 0 && !shared->opened[XEP_SHARED_SYSV]) sysv = ENOTSUP;
    if (posix == 0 && !shared->opened[XEP_SHARED_POSIX]) posix = ENOTSUP;
    explain(sysv, posix, files.bytes, why);
    return xep_fail(XEP_ERR_NO_MEMORY, "not enough shared memory for a buffer of %s (%s)",
                    xep_units_of(bytes, (char[XEP_UNITS_BYTES]){0}), why);
}

xep_status_t xep_ucp_shared_check(const xep_ucp_shared_t *shared, uint64_t bytes)
{
    xep_shared_room_t rooms[XEP_SHARED_KINDS];
    xep_ucp_shared_room(shared, bytes, rooms);
    for (int kind = 0; kind < XEP_SHARED_KINDS; kind++)
        if (rooms[kind].heaps != 0) return XEP_OK;
    return xep_ucp_shared_refuse(shared, bytes);
}

void xep_ucp_shared_room(const xep_ucp_shared_t *shared, uint64_t bytes, xep_shared_room_t rooms[XEP_SHARED_KINDS])
{
    (void)try_sysv(bytes, &rooms[XEP_SHARED_SYSV]);
    (void)try_posix(bytes, &rooms[XEP_SHARED_POSIX]);
    for (int kind = 0; kind < XEP_SHARED_KINDS; kind++)
        if (!shared->opened[kind]) rooms[kind] = (xep_shared_room_t){0};
}

void xep_ucp_shared_look(uint64_t ranks[XEP_SHARED_KINDS])
{
    xep_shared_room_t segments, files;
    (void)try_sysv(0, &segments);
    (void)try_posix(0, &files);
    ranks[XEP_SHARED_SYSV] = segments.heaps;
    ranks[XEP_SHARED_POSIX] = files.heaps;
}

/* ---- of processes that were killed while UCX made it ---- */

/*
 * UCX writes all pages of a POSIX segment and then unlinks it: peers find it by its maker's descriptor. A rank that is
 * killed in between leaves the file behind, perhaps with gigabytes, and its name does not tell whose it was. But every
 * process that uses such a file has it open for writing, or mapped for writing, the maker from the first moment on. The
 * kernel knows if nobody does, even in other namespaces: only then does it grant a read lease.
 */

#define PREFIX "ucx_shm_posix_"

/*
 * If a lease is broken, the kernel sends SIGIO, which ends a process; SIGURG does not. No living process knows this
 * name, so none breaks the lease.
 */
static int is_unused(int fd)
{
    return fcntl(fd, F_SETSIG, SIGURG) == 0 && fcntl(fd, F_SETLEASE, F_RDLCK) == 0;
}

/* O_NONBLOCK: does not wait for the lease of another rank that looks, too. */
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
