/* SPDX-License-Identifier: BSD-3-Clause */

/** Unit test of src/util/cpu.c: kernel choice by CPU, CPUs of the process, the clock. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backoff.h"
#include "cpu.h"
#include "unit.h"

TEST(simd_names)
{
    assert_string_equal(xep_cpu_simd_name(XEP_SIMD_SCALAR), "scalar");
#if defined(__aarch64__)
    assert_string_equal(xep_cpu_simd_name(XEP_SIMD_NEON), "neon");
#else
    assert_string_equal(xep_cpu_simd_name(XEP_SIMD_AVX2), "avx2");
    assert_string_equal(xep_cpu_simd_name(XEP_SIMD_AVX512), "avx512");
    assert_string_equal(xep_cpu_simd_name(XEP_SIMD_AVX512VBMI), "avx512vbmi");
#endif
}

#if defined(__x86_64__)
/* the flags the kernel lists: another source than the one under test */
static int cpu_has(const char *flag)
{
    char line[8192], padded[32];
    int found = 0;
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (file == NULL) skip();
    snprintf(padded, sizeof padded, " %s ", flag);
    while (!found && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "flags", 5) == 0) {
            line[strcspn(line, "\n")] = ' ';
            found = strstr(line, padded) != NULL;
        }
    fclose(file);
    return found;
}

TEST(simd_is_what_the_cpu_has)
{
    int avx2 = cpu_has("avx2") && cpu_has("fma") && cpu_has("f16c");
    int avx512 = avx2 && cpu_has("avx512f") && cpu_has("avx512bw") && cpu_has("avx512vl") && cpu_has("avx512dq");
    int vbmi = avx512 && cpu_has("avx512_vbmi");
    if (!vbmi) vbmi = avx512 && cpu_has("avx512vbmi"); /* as newer kernels call it */
    assert_int_equal(xep_cpu_simd(), vbmi     ? XEP_SIMD_AVX512VBMI
                                     : avx512 ? XEP_SIMD_AVX512
                                     : avx2   ? XEP_SIMD_AVX2
                                              : XEP_SIMD_SCALAR);
}
#else
TEST(simd_is_what_the_cpu_has)
{
#if defined(__aarch64__)
    assert_int_equal(xep_cpu_simd(), XEP_SIMD_NEON);
#else
    assert_int_equal(xep_cpu_simd(), XEP_SIMD_SCALAR);
#endif
}
#endif

/* A process that may run on one CPU, until it is told to end. */
static pid_t bound_child(const cpu_set_t *one)
{
    pid_t pid = fork();
    if (pid == 0) pause();
    assert_true(pid > 0);
    assert_int_equal(sched_setaffinity(pid, sizeof *one, one), 0);
    return pid;
}

TEST(count_follows_affinity)
{
    const int32_t self = 0;
    cpu_set_t all, one;
    int cpu = 0;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    assert_int_equal(xep_cpu_count(&self, 1), CPU_COUNT(&all));
    while (!CPU_ISSET(cpu, &all)) cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(xep_cpu_count(&self, 1), 1);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

/* Processes that are bound to one CPU each have as many as they are bound to together; what has ended has none. */
TEST(cpus_of_several_processes_count_once)
{
    cpu_set_t all, one;
    int32_t pids[3] = {0};
    uint32_t n = 0;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE && n < 2; cpu++) {
        if (!CPU_ISSET(cpu, &all)) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        pids[n++] = bound_child(&one);
    }
    pids[n] = pids[0];
    assert_int_equal(xep_cpu_count(pids, n + 1), n);
    assert_int_equal(kill(pids[0], SIGKILL), 0);
    assert_int_equal(waitpid(pids[0], NULL, 0), pids[0]);
    if (n > 1) assert_int_equal(xep_cpu_count(pids, n), n - 1);
    for (uint32_t i = 1; i < n; i++) {
        assert_int_equal(kill(pids[i], SIGKILL), 0);
        assert_int_equal(waitpid(pids[i], NULL, 0), pids[i]);
    }
}

TEST(clock_goes_on)
{
    const struct timespec pause = {0, 2000000};
    struct timespec before, after;
    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &before), 0);
    uint64_t begin = xep_clock_ns();
    nanosleep(&pause, NULL);
    uint64_t took = xep_clock_ns() - begin;
    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &after), 0);
    assert_true(took >= 2000000);
    assert_true((int64_t)took <= (after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec);
}
