/* SPDX-License-Identifier: BSD-3-Clause */

/* Free memory is the least of what the kernel and the control group allow: in a container the latter is what kills. */
#include "perf_machine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "oracle_hash.h"

/* The number a file holds after a key, or alone with key ""; UINT64_MAX where there is none. */
static uint64_t number_in(const char *path, const char *key)
{
    FILE *file = fopen(path, "r");
    uint64_t value = UINT64_MAX;
    char line[256];

    if (file == NULL) return value;
    while (value == UINT64_MAX && fgets(line, sizeof line, file) != NULL)
        if (!strncmp(line, key, strlen(key)) && sscanf(line + strlen(key), "%" SCNu64, &value) != 1) value = UINT64_MAX;
    fclose(file);
    return value;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The control group's files are those of the second version, at the root that a container sees as its own. */
uint64_t perf_free_memory(void)
{
    const uint64_t system_kib = number_in("/proc/meminfo", "MemAvailable:");
    const uint64_t limit = number_in("/sys/fs/cgroup/memory.max", "");
    const uint64_t used = number_in("/sys/fs/cgroup/memory.current", "");
    const uint64_t system = system_kib == UINT64_MAX ? UINT64_MAX : system_kib * 1024;

    if (limit == UINT64_MAX || used == UINT64_MAX) return system;
    return smaller(system, limit > used ? limit - used : 0);
}

/*
 * The kernel's boot and the time namespace: two containers of one machine have one clock, unless somebody has given one
 * of them an offset.
 */
uint64_t perf_machine_id(void)
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    char text[256] = "";
    size_t used = 0;

    if (file != NULL) {
        used = fread(text, 1, 64, file);
        fclose(file);
    } else {
        gethostname(text, 64);
        used = strlen(text);
    }
    if (readlink("/proc/self/ns/time", text + used, sizeof text - used - 1) < 0) text[used] = '\0';
    return oracle_hash_row(text, sizeof text, 0);
}

/* ---- time, in nanoseconds ---- */

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t perf_clock_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

/* Of all threads of the process: with XEP_THREADS or a progress thread more than the time that has passed. */
uint64_t perf_clock_cpu_ns(void)
{
    return clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}
