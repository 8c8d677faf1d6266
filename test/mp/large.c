/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2, limit: 280 */

/* More than 4 GiB received by one rank in one dispatch: no size is kept in 32 bits. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mp_rig.h"

enum { EXPERTS = 2, HIDDEN = 1 << 20, TOKENS = 1100, SUMMED = 1000 }; /* rows of 2 MiB: 2 ranks send 4.3 GiB to rank 0 */

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
    for (uint64_t h = 0; h < HIDDEN; h += 4093) MP_CHECK(x[h] == value(rank, token, h));
    MP_CHECK(x[HIDDEN - 1] == value(rank, token, HIDDEN - 1));
}

static void fill(uint16_t *x)
{
    for (uint64_t t = 0; t < TOKENS; t++)
        for (uint64_t h = 0; h < HIDDEN; h++) x[t * HIDDEN + h] = value(mp_rank(), t, h);
}

/* What rank 0 received is its experts' output: out = x. A few elements of each row are enough for
 * places beyond 4 GiB and save the memory of a second set of rows. */
static void combine(xep_handle_t *handle, const uint16_t *x, uint16_t *out)
{
    xep_combine_args_t c = XEP_COMBINE_ARGS_INIT;
    const xep_recv_t *recv = xep_handle_recv(handle);
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
    double need = 4.3 /* rows of rank 0 */ + 2 * 2.15 /* x of both */ + 2;
    /* posix segments are written when they are made, all of them, on both ranks: rows, combine input, returned rows */
    if (getenv("UCX_TLS") != NULL && strstr(getenv("UCX_TLS"), "posix") != NULL) need += 4.3 + 2 * (4.3 + 2.2);
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
    uint16_t *x = malloc((size_t)TOKENS * HIDDEN * 2), *out = malloc((size_t)TOKENS * SUMMED * 2);
    int64_t *idx = calloc(TOKENS, sizeof *idx);
    MP_CHECK(x != NULL && out != NULL && idx != NULL);
    fill(x);
    xep_dispatch_args_t d = XEP_DISPATCH_ARGS_INIT;
    d.tokens = TOKENS;
    d.x = x;
    d.topk_idx = idx;
    xep_handle_t *handle;
    MP_OK(xep_dispatch(buffer, &d, &handle, NULL));
    const xep_recv_t *recv = xep_handle_recv(handle);
    MP_CHECK(recv->rows == (mp_rank() == 0 ? 2 * TOKENS : 0));
    for (uint64_t row = 0; row < recv->rows; row++) check_row(recv, row);
    combine(handle, x, out);
    xep_handle_release(handle);
    xep_buffer_destroy(buffer);
    xep_group_destroy(group);
    free(idx);
    free(out);
    free(x);
    return 0;
}
