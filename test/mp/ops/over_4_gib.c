/* SPDX-License-Identifier: BSD-3-Clause */

/* For over_4_gib.sh: more than 4 GiB received by one rank in one dispatch: no size is kept in 32 bits. */

#define _GNU_SOURCE /* memfd_create */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mp_rig.h"

enum {
    EXPERTS = 2,
    HIDDEN = 1 << 20,
    TOKENS = 1030,
    SUMMED = 1000,
    DISTINCT = 7
}; /* rows of 2 MiB: 2 ranks send 4.02 GiB to rank 0 */

static double free_gib(void)
{
    char line[128];
    double kib = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "MemAvailable: %lf", &kib) == 1) break;
    if (f != NULL) fclose(f);
    return kib / (1 << 20);
}

static uint16_t value(uint32_t rank, uint64_t token, uint64_t h)
{
    return (uint16_t)((rank * 40503u + token * 977u + h * 31u) & 0x3fff);
}

static void check_row(const xep_recv_t *recv, uint64_t row)
{
    const uint16_t *x = (const uint16_t *)(const void *)((const char *)recv->x + row * recv->x_stride);
    uint32_t rank = row >= TOKENS;
    uint64_t token = row % TOKENS;
    MP_CHECK((uint64_t)recv->src_token[row] == token);
    for (uint64_t h = 0; h < HIDDEN; h += 4093) MP_CHECK(x[h] == value(rank, token % DISTINCT, h));
    MP_CHECK(x[HIDDEN - 1] == value(rank, token % DISTINCT, HIDDEN - 1));
}

/* The rows to send: row t is the same memory as row t + DISTINCT, because touching 2 GiB for the first time took half
 * of the test. A place that is wrong by a power of two still shows: DISTINCT divides none. */
static uint16_t *open_rows(void)
{
    const size_t row = HIDDEN * sizeof(uint16_t);
    int file = memfd_create("rows", 0);
    MP_CHECK(file >= 0 && ftruncate(file, DISTINCT * row) == 0);
    char *rows = mmap(NULL, TOKENS * row, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MP_CHECK(rows != MAP_FAILED);
    for (size_t t = 0; t < TOKENS; t += DISTINCT) {
        size_t n = TOKENS - t < DISTINCT ? TOKENS - t : DISTINCT;
        MP_CHECK(mmap(rows + t * row, n * row, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED);
    }
    close(file);
    uint16_t *x = (uint16_t *)(void *)rows;
    for (uint64_t t = 0; t < DISTINCT; t++)
        for (uint64_t h = 0; h < HIDDEN; h++) x[t * HIDDEN + h] = value(mp_rank(), t, h);
    return x;
}

/* What rank 0 received is its experts' output: out = x. A few elements of each row are enough for
 * places beyond 4 GiB and save the memory of a second set of rows. */
static void combine(xep_handle_t *handle, const uint16_t *x, uint16_t *out)
{
    xep_combine_args_t c = XEP_COMBINE_ARGS_INIT;
    const xep_recv_t *recv = mp_recv(handle);
    c.x = recv->x;
    c.x_stride = recv->x_stride;
    c.hidden = SUMMED;
    c.out = out;
    MP_OK(xep_combine(handle, &c, NULL));
    for (uint64_t t = 0; t < TOKENS; t++) MP_CHECK(memcmp(out + t * SUMMED, x + t * HIDDEN, SUMMED * 2) == 0);
}

int main(void)
{
    setenv("XEP_PREFAULT", "0", 1); /* rank 1 receives nothing and touches nothing */
    xep_group_t *group = mp_group();
    xep_buffer_params_t p = XEP_BUFFER_PARAMS_INIT;
    double need = 4.1 /* rows of rank 0 */ + 4;
    /* posix segments are written when they are made, all of them, on both ranks: rows, combine input, returned rows */
    if (getenv("UCX_TLS") != NULL && strstr(getenv("UCX_TLS"), "posix") != NULL) need += 4.1 + 2 * (4.1 + 2.1);
    int skip = free_gib() < need || mp_nranks() != 2;
    int skips[2];
    MP_OK(xep_group_allgather(group, &skip, skips, sizeof skip));
    if (skips[0] || skips[1]) {
        char why[96];
        snprintf(why, sizeof why, "needs %.0f GiB of free memory, there are %.0f", need, free_gib());
        xep_group_destroy(group);
        return mp_skip(why);
    }
    p.experts = EXPERTS;
    p.topk = 1;
    p.hidden = HIDDEN;
    p.tokens = TOKENS;
    p.slots = 1;
    xep_buffer_t *buffer;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    uint16_t *x = open_rows(), *out = malloc((size_t)TOKENS * SUMMED * 2);
    int64_t *idx = calloc(TOKENS, sizeof *idx);
    MP_CHECK(out != NULL && idx != NULL);
    xep_dispatch_args_t d = XEP_DISPATCH_ARGS_INIT;
    d.tokens = TOKENS;
    d.x = x;
    d.topk_idx = idx;
    xep_handle_t *handle;
    MP_OK(xep_dispatch(buffer, &d, &handle, NULL));
    const xep_recv_t *recv = mp_recv(handle);
    MP_CHECK(recv->rows == (mp_rank() == 0 ? 2 * TOKENS : 0));
    for (uint64_t row = 0; row < recv->rows; row++) check_row(recv, row);
    combine(handle, x, out);
    xep_handle_release(handle);
    xep_buffer_destroy(buffer);
    xep_group_destroy(group);
    free(idx);
    free(out);
    munmap(x, (size_t)TOKENS * HIDDEN * sizeof *x);
    return 0;
}
