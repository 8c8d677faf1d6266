/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2 4, brief: 4, limit: 120 */

/*
 * More ranks than processors, here all of them on one: while a rank computes, those who wait for it leave it the
 * processor: what they have used of it inside a call that waited is a small part of the time for which they waited.
 * Rows come out right meanwhile, and many operations follow one another.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "mp_rig.h"

enum { EXPERTS = 8, TOPK = 3, HIDDEN = 64, TOKENS = 5, MOST_RANKS = 16, ROUNDS = 9, TURNS = 101, LOOKS = 1000 };
enum { LATE_NS = 40 * 1000 * 1000, SLEEP_NS = 4 * 1000 * 1000 };

static float x[TOKENS][HIDDEN], out[TOKENS][HIDDEN];
static int64_t idx[TOKENS][TOPK];
static atomic_uint woken;
static pid_t pids[MOST_RANKS];

static void share_one_processor(void)
{
    cpu_set_t set;
    int cpu = 0;
    MP_CHECK(sched_getaffinity(0, sizeof set, &set) == 0);
    while (!CPU_ISSET(cpu, &set)) cpu++;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    MP_CHECK(sched_setaffinity(0, sizeof set, &set) == 0);
}

static uint64_t used_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The library's calls come here: a sleep that was ended by another rank returns 0. */
__attribute__((visibility("default"))) long syscall(long number, ...);
long syscall(long number, ...)
{
    static long (*next)(long, ...);
    long arg[6];
    va_list args;
    if (next == NULL) *(void **)&next = dlsym(RTLD_NEXT, "syscall");
    va_start(args, number);
    for (int i = 0; i < 6; i++) arg[i] = va_arg(args, long);
    va_end(args);
    const long ret = next(number, arg[0], arg[1], arg[2], arg[3], arg[4], arg[5]);
    if (number == SYS_futex && arg[1] == FUTEX_WAIT && ret == 0) atomic_fetch_add(&woken, 1);
    return ret;
}

static xep_buffer_t *open_buffer(xep_group_t *group, const char *mode)
{
    xep_buffer_t *buffer;
    xep_buffer_params_t p = XEP_BUFFER_PARAMS_INIT;
    p.mode = mode, p.experts = EXPERTS, p.topk = TOPK, p.hidden = HIDDEN, p.tokens = TOKENS;
    p.dtype = p.combine_dtype = XEP_FP32;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    return buffer;
}

/* Sums of small whole numbers are exact, in any order. */
static void check_sums(const char *mode)
{
    for (int t = 0; t < TOKENS; t++) {
        uint8_t seen[EXPERTS] = {0};
        float rows = 0;
        for (int k = 0; k < TOPK; k++) {
            const int place = strcmp(mode, "ll") == 0 ? k : (int)(idx[t][k] / (EXPERTS / (int)mp_nranks()));
            rows += !seen[place];
            seen[place] = 1;
        }
        for (int h = 0; h < HIDDEN; h++) MP_CHECK(out[t][h] == rows * x[t][h]);
    }
}

static xep_handle_t *dispatch(xep_buffer_t *buffer)
{
    xep_dispatch_args_t a = XEP_DISPATCH_ARGS_INIT;
    xep_handle_t *handle;
    a.tokens = TOKENS, a.x = x, a.topk_idx = idx;
    MP_OK(xep_dispatch(buffer, &a, &handle, NULL));
    return handle;
}

static void combine(xep_handle_t *handle)
{
    const xep_recv_t *recv = mp_recv(handle);
    xep_combine_args_t a = XEP_COMBINE_ARGS_INIT;
    a.x = recv->x, a.x_stride = recv->x_stride, a.out = out;
    MP_OK(xep_combine(handle, &a, NULL));
    xep_handle_release(handle);
}

/* Where the last rank needs so much time of the processor before it begins. */
static uint64_t be_late(xep_group_t *group, uint64_t ns)
{
    MP_OK(xep_group_barrier(group));
    const uint64_t begin = used_ns();
    if (mp_is_last())
        while (used_ns() - begin < ns) continue;
    return used_ns();
}

/* Those who wait use little of that time: all together a quarter of it, in the median. */
static void leave_the_processor(xep_group_t *group, xep_buffer_t *buffer, const char *mode)
{
    uint64_t all[MOST_RANKS];
    double parts[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        const double since = mp_now();
        const uint64_t begin = be_late(group, LATE_NS);
        xep_handle_t *handle = dispatch(buffer);
        const uint64_t used = used_ns() - begin;
        const double waited = mp_now() - since;
        combine(handle);
        check_sums(mode);
        MP_OK(xep_group_allgather(group, &used, all, sizeof used));
        parts[i] = 0;
        for (uint32_t r = 0; r + 1 < mp_nranks(); r++) parts[i] += (double)all[r] / (waited * 1e9);
    }
    mp_sort(parts, ROUNDS);
    if (parts[ROUNDS / 2] > 0.25)
        mp_fail(__FILE__, __LINE__, "mode %s: ranks that waited used %.2f of the time for which they did", mode,
                parts[ROUNDS / 2]);
}

static int is_asleep(pid_t pid)
{
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *stat = fopen(path, "r");
    MP_CHECK(stat != NULL && fgets(line, sizeof line, stat) != NULL);
    fclose(stat);
    return strstr(line, ") S ") != NULL;
}

/* The last rank goes on when all others sleep: if other programs have the processor, they mostly wait for that. */
static void await_sleepers(void)
{
    for (uint32_t r = 0, looks = 0; mp_is_last() && r + 1 < mp_nranks() && looks < LOOKS; looks++) {
        if (is_asleep(pids[r])) r++;
        else sched_yield();
    }
}

/* Who sleeps is woken by what it waits for: most sleeps that the last rank ends would else have lasted longer. */
static void are_woken(xep_group_t *group, xep_buffer_t *buffer, const char *mode)
{
    unsigned times = 0;
    for (int i = 0; i < TURNS; i++) {
        (void)be_late(group, SLEEP_NS);
        await_sleepers();
        const unsigned before = atomic_load(&woken);
        xep_handle_t *handle = dispatch(buffer);
        times += atomic_load(&woken) - before;
        combine(handle);
        check_sums(mode);
    }
    printf("mode %s: rank %u was woken %u times in %d turns\n", mode, mp_rank(), times, TURNS);
    if (!mp_is_last() && times < TURNS / 4)
        mp_fail(__FILE__, __LINE__, "mode %s: rank %u was woken %u times in %d turns", mode, mp_rank(), times, TURNS);
}

static void run(xep_group_t *group, const char *mode)
{
    xep_buffer_t *buffer = open_buffer(group, mode);
    leave_the_processor(group, buffer, mode);
    are_woken(group, buffer, mode);
    xep_buffer_destroy(buffer);
}

int main(void)
{
    share_one_processor();
    xep_group_t *group = mp_group();
    if (mp_nranks() > MOST_RANKS) return mp_skip("more than 16 ranks");
    const pid_t pid = getpid();
    MP_OK(xep_group_allgather(group, &pid, pids, sizeof pid));
    for (int t = 0; t < TOKENS; t++) {
        for (int h = 0; h < HIDDEN; h++) x[t][h] = (float)(1 + t + h % 7 + (int)mp_rank());
        for (int k = 0; k < TOPK; k++) idx[t][k] = (t * 3 + k * 5 + (int)mp_rank()) % EXPERTS;
    }
    run(group, "normal");
    run(group, "ll");
    return mp_end(group);
}
