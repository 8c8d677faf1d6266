/* SPDX-License-Identifier: BSD-3-Clause */

#define _GNU_SOURCE /* mkstemp, ftruncate, setitimer, sched_setaffinity */
#include "mp_rig.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "oracle.h"

enum { GUARD = 256, CANARY = 0xC7, AWAIT_S = 100 };

const char *const mp_modes[2] = {"normal", "ll"};

static xep_group_t *the_group;
static xep_group_info_t the_info = XEP_GROUP_INFO_INIT;

void mp_fail(const char *file, int line, const char *format, ...)
{
    va_list args;
    fprintf(stderr, "%s:%d: rank %u: ", file, line, the_info.rank);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

void mp_check(int condition, const char *file, int line, const char *what)
{
    if (!condition) mp_fail(file, line, "not so: %s (last error: %s)", what, xep_last_error());
}

void mp_status(xep_status_t got, xep_status_t expected, const char *file, int line, const char *what)
{
    if (got != expected)
        mp_fail(file, line, "%s is %s, expected %s (%s)", what, xep_status_name(got), xep_status_name(expected),
                xep_last_error());
}

void mp_reason(const char *text, const char *file, int line)
{
    if (strstr(xep_last_error(), text) == NULL)
        mp_fail(file, line, "the reason \"%s\" does not say \"%s\"", xep_last_error(), text);
}

xep_status_t mp_try_group(xep_group_t **group_p)
{
    if (the_group == NULL) {
        xep_status_t status = xep_group_create(NULL, &the_group);
        if (status != XEP_OK) return status;
        MP_OK(xep_group_query(the_group, &the_info));
    }
    *group_p = the_group;
    return XEP_OK;
}

xep_group_t *mp_group(void)
{
    xep_group_t *group;
    MP_OK(mp_try_group(&group));
    return group;
}

xep_group_t *mp_nodes_group(void)
{
    xep_group_info_t info = XEP_GROUP_INFO_INIT;
    xep_group_t *group; /* how many ranks there are */
    MP_OK(xep_group_create(NULL, &group));
    MP_OK(xep_group_query(group, &info));
    xep_group_destroy(group);
    setenv("XEP_NODE_RANKS", info.nranks == 5 ? "2" : "3", 1);
    setenv("XEP_PART", info.rank % 2 == 0 ? "2k" : "256k", 1);
    group = mp_group();
    MP_OK(xep_group_query(group, &info));
    MP_CHECK(info.nnodes >= (info.nranks == 5 ? 3 : (info.nranks + 2) / 3));
    return info.nnodes == info.nranks ? NULL : group;
}

int mp_end(xep_group_t *group)
{
    xep_group_destroy(group);
    return 0;
}

void mp_go_on(xep_group_t *group)
{
    the_group = group;
    MP_OK(xep_group_query(group, &the_info));
}

uint32_t mp_rank(void)
{
    return the_info.rank;
}

uint32_t mp_nranks(void)
{
    return the_info.nranks;
}

int mp_is_last(void)
{
    return mp_rank() == mp_nranks() - 1;
}

xep_group_info_t mp_group_info(const xep_group_t *group)
{
    xep_group_info_t info = XEP_GROUP_INFO_INIT;
    MP_OK(xep_group_query(group, &info));
    return info;
}

xep_buffer_info_t mp_buffer_info(const xep_buffer_t *buffer)
{
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    MP_OK(xep_buffer_query(buffer, &info));
    return info;
}

int mp_is_mapped(xep_group_t *group, uint32_t rank)
{
    xep_peer_info_t peer = XEP_PEER_INFO_INIT;
    MP_OK(xep_group_peer(group, rank, &peer));
    return (int)peer.mapped;
}

static int gather(void *group, const void *send, void *recv, size_t bytes)
{
    return xep_group_allgather(group, send, recv, bytes) == XEP_OK ? 0 : -1;
}

uint32_t mp_ranks_out(xep_group_t *group)
{
    xep_mask_t masks[32];
    uint32_t count, set = 0;
    MP_OK(xep_group_mask_query(group, masks, sizeof *masks, 32, &count));
    for (uint32_t i = 0; i < count; i++) {
        MP_CHECK(masks[i].since_ns != 0 && masks[i].reason >= XEP_OUT_DIED && masks[i].reason <= XEP_OUT_ASKED);
        set |= 1u << masks[i].rank;
    }
    return set;
}

uint32_t mp_out_of(const xep_recv_t *recv)
{
    uint32_t set = 0;
    for (uint32_t r = 0; recv->out != NULL && r < mp_nranks(); r++) set |= (uint32_t)recv->out[r] << r;
    return set;
}

xep_group_t *mp_second_group(xep_group_t *group, int32_t timeout_ms)
{
    xep_group_params_t params = XEP_GROUP_PARAMS_INIT;
    xep_group_t *second;
    params.rank = mp_rank(), params.nranks = mp_nranks(), params.allgather = gather, params.allgather_ctx = group;
    params.timeout_ms = timeout_ms;
    MP_OK(xep_group_create(&params, &second));
    return second;
}

static int give_to_itself(void *ctx, const void *send, void *recv, size_t bytes)
{
    (void)ctx;
    memcpy(recv, send, bytes);
    return 0;
}

xep_group_t *mp_group_alone(void)
{
    xep_group_params_t params = XEP_GROUP_PARAMS_INIT;
    xep_group_t *alone;
    params.allgather = give_to_itself, params.nranks = 1;
    MP_OK(xep_group_create(&params, &alone));
    return alone;
}

int mp_skip(const char *why)
{
    if (the_info.rank == 0) printf("skipped: %s\n", why);
    return 77;
}

double mp_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void mp_sort(double *numbers, size_t count)
{
    qsort(numbers, count, sizeof *numbers, compare);
}

void mp_stay_on_one_cpu(void)
{
    cpu_set_t set;
    const uint32_t cpus = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    CPU_ZERO(&set);
    CPU_SET(mp_rank() % cpus, &set);
    if (mp_nranks() <= cpus) MP_CHECK(sched_setaffinity(0, sizeof set, &set) == 0);
}

void mp_sleep_us(unsigned us)
{
    struct timespec t = {us / 1000000, (long)(us % 1000000) * 1000};
    nanosleep(&t, NULL);
}

void mp_die_within(uint64_t seed, uint32_t most_us)
{
    const uint32_t us = (uint32_t)(oracle_hash_row(&seed, sizeof seed, 5) % most_us) + 1;
    const struct itimerval timer = {.it_value = {.tv_sec = us / 1000000, .tv_usec = us % 1000000}};
    signal(SIGALRM, SIG_DFL); /* which ends the process */
    MP_CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

/* Not in /dev/shm, of which each host of hosts.bash has its own. */
void *mp_shared(xep_group_t *group, size_t bytes)
{
    char mine[64] = "/tmp/xep_test.XXXXXX", *paths = malloc(mp_nranks() * sizeof mine);
    int file = mp_rank() == 0 ? mkstemp(mine) : -1;
    if (mp_rank() == 0) MP_CHECK(file >= 0 && ftruncate(file, (off_t)bytes) == 0);
    MP_OK(xep_group_allgather(group, mine, paths, sizeof mine));
    if (mp_rank() != 0) file = open(paths, O_RDWR);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    MP_CHECK(file >= 0 && memory != MAP_FAILED);
    close(file);
    MP_OK(xep_group_barrier(group));
    if (mp_rank() == 0) unlink(mine);
    free(paths);
    return memory;
}

atomic_int *mp_counter(xep_group_t *group)
{
    return mp_shared(group, sizeof(atomic_int));
}

void mp_await(const atomic_int *counter, int value)
{
    for (double end = mp_now() + AWAIT_S; atomic_load(counter) < value && mp_now() < end;) mp_sleep_us(1000);
    MP_CHECK(atomic_load(counter) >= value);
}

const xep_recv_t *mp_recv(const xep_handle_t *handle)
{
    const xep_recv_t *recv = NULL;
    return xep_handle_recv(handle, &recv) == XEP_OK ? recv : NULL;
}

void *mp_input(xep_handle_t *handle, size_t *stride_p)
{
    void *base = NULL;
    return xep_handle_combine_input(handle, &base, stride_p) == XEP_OK ? base : NULL;
}

void mp_finish(xep_request_t *req)
{
    MP_OK(xep_request_wait(req));
    MP_OK(xep_request_wait(req));
    xep_request_free(req);
}

xep_buffer_params_t mp_small_params(void)
{
    xep_buffer_params_t p = XEP_BUFFER_PARAMS_INIT;
    p.experts = 12, p.topk = 4, p.hidden = 64, p.tokens = 20, p.scales = 1;
    return p;
}

/* ---- memory: [size, shift | canary ... bytes ... canary] ---- */

typedef struct block {
    size_t bytes;
    unsigned char *base;
} block_t;

void *mp_alloc(size_t bytes, size_t shift)
{
    size_t all = bytes + 2 * GUARD + 128;
    unsigned char *base = aligned_alloc(64, (all + 63) / 64 * 64);
    MP_CHECK(base != NULL);
    unsigned char *memory = base + GUARD + shift;
    memset(base, CANARY, GUARD + shift);
    memset(memory, MP_POISON, bytes);
    memset(memory + bytes, CANARY, GUARD);
    block_t block = {bytes, base};
    memcpy(base, &block, sizeof block);
    return memory;
}

/* the block's own record is at the start of the guard, found by looking back from memory */
static block_t block_of(void *memory)
{
    block_t block;
    unsigned char *base = (unsigned char *)((uintptr_t)memory / 64 * 64) - GUARD;
    memcpy(&block, base, sizeof block);
    return block;
}

void mp_free(void *memory, const char *what)
{
    if (memory == NULL) return;
    block_t block = block_of(memory);
    unsigned char *p = memory;
    for (unsigned char *g = block.base + sizeof block; g < p; g++)
        if (*g != CANARY) mp_fail(__FILE__, __LINE__, "%s: written %td bytes before its begin", what, p - g);
    for (size_t i = 0; i < GUARD; i++)
        if (p[block.bytes + i] != CANARY) mp_fail(__FILE__, __LINE__, "%s: written %zu bytes past its end", what, i);
    free(block.base);
}
