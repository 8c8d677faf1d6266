/* SPDX-License-Identifier: BSD-3-Clause */

/* Free memory is the least of what the kernel and the control group allow: in a container the latter is what kills. */
#include "perf_machine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "oracle_hash.h"

/* The begin of a file as text; "": it cannot be read. */
static size_t read_file(const char *path, char *text, size_t bytes)
{
    FILE *file = fopen(path, "r");
    const size_t used = file == NULL ? 0 : fread(text, 1, bytes - 1, file);

    if (file != NULL) fclose(file);
    text[used] = '\0';
    return used;
}

/* The number a file holds after a key, or alone with key ""; UINT64_MAX where there is none. */
static uint64_t number_in(const char *path, const char *key)
{
    char text[4096];
    uint64_t value;

    read_file(path, text, sizeof text);
    const char *at = strstr(text, key);
    return at != NULL && sscanf(at + strlen(key), "%" SCNu64, &value) == 1 ? value : UINT64_MAX;
}

/* The control group's files are those of the second version, at the root that a container sees as its own. */
uint64_t perf_free_memory(void)
{
    const uint64_t system_kib = number_in("/proc/meminfo", "MemAvailable:");
    const uint64_t limit = number_in("/sys/fs/cgroup/memory.max", "");
    const uint64_t used = number_in("/sys/fs/cgroup/memory.current", "");
    const uint64_t system = system_kib == UINT64_MAX ? UINT64_MAX : system_kib * 1024;

    if (limit == UINT64_MAX || used == UINT64_MAX) return system;
    const uint64_t left = limit > used ? limit - used : 0;
    return left < system ? left : system;
}

/*
 * The kernel's boot and the time namespace: two containers of one machine have one clock, unless somebody has given one
 * of them an offset.
 */
uint64_t perf_machine_id(void)
{
    char text[256] = "";
    size_t used = read_file("/proc/sys/kernel/random/boot_id", text, 65);

    if (used == 0) {
        gethostname(text, 64);
        used = strlen(text);
    }
    if (readlink("/proc/self/ns/time", text + used, sizeof text - used - 1) < 0) text[used] = '\0';
    return oracle_hash_row(text, sizeof text, 0);
}

void perf_machine_name(char *text, size_t bytes)
{
    char cpus[8192];

    read_file("/proc/cpuinfo", cpus, sizeof cpus);
    const char *name = strstr(cpus, "model name"), *colon = name != NULL ? strchr(name, ':') : NULL;
    if (colon == NULL || strlen(colon) < 2) colon = ": processors";
    snprintf(text, bytes, "%ld x %.*s", sysconf(_SC_NPROCESSORS_ONLN), (int)strcspn(colon + 2, "\n"), colon + 2);
}

/* The program without its folder; arguments end with a zero byte each. */
void perf_command_line(char *text, size_t bytes)
{
    size_t used = read_file("/proc/self/cmdline", text, bytes);
    const char *name;

    name = strrchr(text, '/');
    if (name != NULL) {
        used -= (size_t)(name + 1 - text);
        memmove(text, name + 1, used + 1);
    }
    if (used > 0) used--;
    for (size_t i = 0; i < used; i++)
        if (text[i] == '\0') text[i] = ' ';
}

uint64_t perf_clock_ns(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
