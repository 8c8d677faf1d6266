/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Linux does not refuse shared memory that the machine does not have: it grants System V segments of less than all
 * memory, whose pages come as they are touched, and /dev/shm has half the memory or more, whatever is free. Later the
 * kernel kills a process of its choice. So memory that cannot be there is refused before anything is allocated.
 */
#include "room.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "error.h"
#include "host.h"
#include "mapping.h"
#include "text.h"

enum { PATH_BYTES = 4096, GROUP_BYTES = 1024, TEXT_BYTES = 8192 };

/* "" where there is no such file */
static void read_file(const char *root, const char *path, char text[TEXT_BYTES])
{
    char whole[PATH_BYTES];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    (void)xep_text_read(whole, text, TEXT_BYTES);
}

/* the number after a name at the beginning of a line; 0: no such line */
static uint64_t read_named(const char *root, const char *path, const char *name)
{
    char text[TEXT_BYTES];
    read_file(root, path, text);
    const char *value = xep_text_find(text, name);
    return value == NULL ? 0 : strtoull(value, NULL, 10);
}

/* reads a file of one number; UINT64_MAX for "max" or if it cannot be read */
static uint64_t read_number(const char *root, const char *folder, const char *name)
{
    char path[PATH_BYTES], text[TEXT_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    read_file(root, path, text);
    return text[0] < '0' || text[0] > '9' ? UINT64_MAX : strtoull(text, NULL, 10);
}

typedef struct cgroup_files {
    const char *line; /* of /proc/self/cgroup, up to the path */
    const char *folder, *limit, *used, *cache;
} cgroup_files_t;

static const cgroup_files_t versions[] = {
    {"0::", "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"},
    {"memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
};

/* The path of this process's group; a container sees its own group as the root, whatever it is called outside. */
static void find_group(const char *root, const cgroup_files_t *files, char *folder, size_t bytes)
{
    char text[TEXT_BYTES];
    read_file(root, "/proc/self/cgroup", text);
    const char *path = strstr(text, files->line);
    if (path != NULL) path += strlen(files->line);
    snprintf(folder, bytes, "%s%.*s", files->folder, path == NULL ? 0 : (int)strcspn(path, "\n"), path);
}

/* the page cache counts as used, but the kernel frees it when memory is needed */
static uint64_t free_of_group(const char *root, const cgroup_files_t *files, const char *folder)
{
    char stat[PATH_BYTES];
    uint64_t limit = read_number(root, folder, files->limit), used = read_number(root, folder, files->used);
    if (limit == UINT64_MAX || used == UINT64_MAX) return UINT64_MAX;
    snprintf(stat, sizeof stat, "%s/memory.stat", folder);
    uint64_t cache = read_named(root, stat, files->cache);
    used = used > cache ? used - cache : 0;
    return limit > used ? limit - used : 0;
}

static void add_group(const char *root, const cgroup_files_t *files, const char *folder, xep_room_t *room)
{
    char path[PATH_BYTES];
    xep_room_source_t *place = &room->source[XEP_ROOM_GROUPS];
    uint64_t bytes = free_of_group(root, files, folder);
    for (int i = XEP_ROOM_GROUPS; i < XEP_ROOM_SOURCES; i++)
        if (room->source[i].bytes > place->bytes) place = &room->source[i];
    if (bytes >= place->bytes) return; /* no limit, or the others are tighter */
    snprintf(path, sizeof path, "%s%s", root, folder);
    *place = (xep_room_source_t){.id = xep_host_file(path), .bytes = bytes};
}

/* Adds the group and all groups around it: each has a limit of its own, against which everything inside counts. */
static void add_groups(const char *root, const cgroup_files_t *files, xep_room_t *room)
{
    char folder[GROUP_BYTES];
    find_group(root, files, folder, sizeof folder);
    for (;;) {
        add_group(root, files, folder, room);
        if (strlen(folder) <= strlen(files->folder)) return;
        *strrchr(folder, '/') = '\0';
    }
}

/* Without overcommit all promised memory counts, used or not. */
static uint64_t free_to_promise(const char *root)
{
    if (read_number(root, "/proc/sys/vm", "overcommit_memory") != 2) return UINT64_MAX;
    uint64_t limit = read_named(root, "/proc/meminfo", "CommitLimit");
    uint64_t promised = read_named(root, "/proc/meminfo", "Committed_AS");
    return limit > promised ? (limit - promised) * 1024 : 0;
}

void xep_room_see(const char *root, xep_room_t *room)
{
    uint64_t kib = read_named(root, "/proc/meminfo", "MemAvailable"), machine = xep_host_kernel();
    for (int i = 0; i < XEP_ROOM_SOURCES; i++) room->source[i] = (xep_room_source_t){.bytes = UINT64_MAX};
    if (kib != 0) kib += read_named(root, "/proc/meminfo", "SwapFree");
    room->source[XEP_ROOM_MACHINE] = (xep_room_source_t){machine, kib == 0 ? UINT64_MAX : kib * 1024};
    room->source[XEP_ROOM_PROMISE] = (xep_room_source_t){machine, free_to_promise(root)};
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) add_groups(root, &versions[i], room);
}

static int count_mapping(const xep_mapping_t *mapping, void *count)
{
    (void)mapping;
    ++*(uint64_t *)count;
    return 1;
}

void xep_room_see_space(xep_room_space_t *space)
{
    struct rlimit limit;
    uint64_t used = read_named("", "/proc/self/status", "VmSize") * 1024, count = 0;
    uint64_t most = read_number("", "/proc/sys/vm", "max_map_count");
    *space = (xep_room_space_t){UINT64_MAX, UINT64_MAX};
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        space->bytes = limit.rlim_cur > used ? limit.rlim_cur - used : 0;
    xep_mapping_each(count_mapping, &count);
    if (most != UINT64_MAX) space->mappings = most > count ? most - count : 0;
}

uint64_t xep_room_free(const char *root)
{
    xep_room_t room;
    uint64_t least = UINT64_MAX;
    xep_room_see(root, &room);
    for (int i = 0; i < XEP_ROOM_SOURCES; i++)
        if (room.source[i].bytes < least) least = room.source[i].bytes;
    return least;
}

xep_status_t xep_room_check(uint64_t bytes)
{
    uint64_t room = xep_room_free("");
    if (bytes <= room) return XEP_OK;
    char wanted[XEP_UNITS_BYTES], left[XEP_UNITS_BYTES];
    return xep_fail(XEP_ERR_NO_MEMORY, "not enough memory for a buffer of %s (%s are free)",
                    xep_units_of(bytes, wanted), xep_units_of(room, left));
}

/* ---- /dev/shm, for the sentence of an error that it is likely to have caused ---- */

/* A container has 64 MiB of /dev/shm by default, and UCX then fails with a message that does not say so: ours does. */

#define FOLDER "/dev/shm"
#define REMEDY "or keep UCX away from it: UCX_TLS=^posix"

/* Only if room is short right now: a wrong guess would be worse than none. */
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
