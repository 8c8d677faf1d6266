/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1 2 4, limit: 120 */

/*
 * Low latency through the public interface: one program that every mode runs, two batches that overlap, slots, statistics,
 * what a mode refuses, LogFMT, a rank that is away between its phases, two modes on one group from one thread and from
 * two, and a reset.
 */

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mp_rig.h"

enum { EXPERTS = 12, TOPK = 3, HIDDEN = 96, TOKENS = 10, SLOTS = 2 };

/* Small integers and weights that are eighths: every sum is exact in every order and every mode. */
typedef struct batch {
    float x[TOKENS][HIDDEN], out[TOKENS][HIDDEN], weights[TOKENS][TOPK];
    int64_t idx[TOKENS][TOPK];
} batch_t;

static void batch_fill(batch_t *b, unsigned seed)
{
    for (unsigned t = 0; t < TOKENS; t++) {
        for (unsigned h = 0; h < HIDDEN; h++) b->x[t][h] = (float)((seed + t * 5 + h * 3 + mp_rank()) % 17) - 8;
        for (unsigned k = 0; k < TOPK; k++) {
            b->idx[t][k] = (seed + t * 7 + k * 5 + mp_rank()) % EXPERTS;
            if ((seed + t + k) % 9 == 0) b->idx[t][k] = -1;
            b->weights[t][k] = (float)((t + k) % 8 + 1) / 8;
        }
    }
    memset(b->out, 0xa5, sizeof b->out);
}

static void batch_check(const batch_t *b)
{
    for (unsigned t = 0; t < TOKENS; t++) {
        float factor = 0; /* expert e multiplies by e + 1 */
        for (unsigned k = 0; k < TOPK; k++)
            if (b->idx[t][k] >= 0) factor += b->weights[t][k] * (float)(b->idx[t][k] + 1);
        for (unsigned h = 0; h < HIDDEN; h++) MP_CHECK(b->out[t][h] == factor * b->x[t][h]);
    }
}

static xep_buffer_t *make_buffer(xep_group_t *group, const char *mode)
{
    xep_buffer_params_t p = XEP_BUFFER_PARAMS_INIT;
    xep_buffer_t *buffer;
    p.mode = mode, p.experts = EXPERTS, p.topk = TOPK, p.hidden = HIDDEN, p.tokens = TOKENS, p.slots = SLOTS;
    p.dtype = XEP_FP32, p.combine_dtype = XEP_FP32;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    return buffer;
}

static xep_dispatch_args_t dispatch_args(const batch_t *b)
{
    xep_dispatch_args_t a = XEP_DISPATCH_ARGS_INIT;
    a.tokens = TOKENS, a.x = b->x, a.topk_idx = b->idx[0], a.topk_weights = b->weights[0];
    return a;
}

/* What xep.h says is right in every mode. */
static void experts(xep_handle_t *handle)
{
    const xep_recv_t *r = xep_handle_recv(handle);
    size_t stride;
    char *y = xep_handle_combine_input(handle, &stride);
    MP_CHECK(r != NULL && y != NULL);
    for (uint64_t row = 0; row < r->rows; row++) {
        const float *x = (const float *)(const void *)((const char *)r->x + row * r->x_stride);
        float factor = 0;
        for (uint32_t k = 0; k < r->topk; k++) {
            int64_t e = ((const int64_t *)r->topk_idx)[row * r->topk + k];
            if (e >= 0) factor += r->topk_weights[row * r->topk + k] * (float)(e + r->first_expert + 1);
        }
        for (uint32_t h = 0; h < HIDDEN; h++) ((float *)(void *)(y + row * stride))[h] = factor == 0 ? 0 : factor * x[h];
    }
}

static void combine(xep_handle_t *handle, batch_t *b, xep_request_t **req_p)
{
    xep_combine_args_t a = XEP_COMBINE_ARGS_INIT;
    a.out = b->out;
    MP_OK(xep_combine(handle, &a, req_p));
}

static void round_trip(xep_buffer_t *buffer, unsigned seed, uint32_t flags)
{
    batch_t *b = malloc(sizeof *b);
    xep_handle_t *handle;
    batch_fill(b, seed);
    xep_dispatch_args_t a = dispatch_args(b);
    a.flags = flags;
    MP_OK(xep_dispatch(buffer, &a, &handle, NULL));
    experts(handle);
    combine(handle, b, NULL);
    batch_check(b);
    xep_handle_release(handle);
    free(b);
}

/* Send A, send B, compute on A while B travels, and so on; a third dispatch finds no slot and changes nothing. */
static void two_batches(xep_buffer_t *buffer)
{
    batch_t *b = malloc(2 * sizeof *b);
    for (unsigned round = 0; round < 50; round++) {
        xep_handle_t *handle[2], *none = NULL;
        xep_request_t *sent[2], *summed[2];
        for (unsigned i = 0; i < 2; i++) {
            batch_fill(&b[i], round * 2 + i);
            xep_dispatch_args_t a = dispatch_args(&b[i]);
            MP_OK(xep_dispatch(buffer, &a, &handle[i], &sent[i]));
        }
        xep_dispatch_args_t more = dispatch_args(&b[0]);
        MP_FAILS(XEP_ERR_BUSY, xep_dispatch(buffer, &more, &none, NULL));
        MP_CHECK(none == NULL);
        for (unsigned n = 0; n < 2; n++) {
            unsigned i = (n + round + mp_rank()) % 2; /* received in another order on every other rank */
            MP_OK(xep_request_wait(sent[i]));
            xep_request_free(sent[i]);
            experts(handle[i]);
        }
        for (unsigned i = 0; i < 2; i++) combine(handle[i], &b[i], &summed[i]);
        for (unsigned i = 0; i < 2; i++) {
            MP_OK(xep_request_wait(summed[i]));
            xep_request_free(summed[i]);
            batch_check(&b[i]);
            xep_handle_release(handle[i]);
        }
    }
    free(b);
}

static void statistics(xep_buffer_t *buffer)
{
    int32_t stats[EXPERTS + 1], before[EXPERTS + 1];
    uint64_t counted[EXPERTS] = {0};
    batch_t *b = malloc(sizeof *b);
    for (int e = 0; e <= EXPERTS; e++) stats[e] = before[e] = 100 * e;
    for (unsigned seed = 0; seed < 3; seed++) {
        xep_handle_t *handle;
        batch_fill(b, seed);
        xep_dispatch_args_t a = dispatch_args(b);
        a.expert_stats = stats;
        MP_OK(xep_dispatch(buffer, &a, &handle, NULL));
        const xep_recv_t *r = xep_handle_recv(handle);
        for (uint32_t e = 0; e < r->local_experts; e++) counted[e] += r->expert_count[e];
        xep_handle_release(handle);
    }
    for (int e = 0; e <= EXPERTS; e++) MP_CHECK(stats[e] == before[e] + (e < EXPERTS ? (int32_t)counted[e] : 0));
    free(b);
}

/* What the other mode does is refused by name, before anything is sent. */
static void refusals(xep_buffer_t *normal, xep_buffer_t *ll)
{
    batch_t *b = malloc(sizeof *b);
    xep_handle_t *handle = NULL;
    batch_fill(b, 1);
    xep_dispatch_args_t a = dispatch_args(b);
    a.quant = XEP_QUANT_E4M3;
    MP_FAILS(XEP_ERR_UNSUPPORTED, xep_dispatch(normal, &a, &handle, NULL));
    a = dispatch_args(b);
    a.arrangement = XEP_ROWS_BY_EXPERT_PADDED;
    MP_FAILS(XEP_ERR_UNSUPPORTED, xep_dispatch(normal, &a, &handle, NULL));
    a.arrangement = XEP_ROWS_BY_RANK;
    MP_FAILS(XEP_ERR_UNSUPPORTED, xep_dispatch(ll, &a, &handle, NULL));
    MP_REASON("XEP_ROWS_BY_RANK");
    a = dispatch_args(b);
    a.quant = (xep_quant_t)9;
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(ll, &a, &handle, NULL));
    MP_REASON("quant");
    a = dispatch_args(b);
    a.topk_weights = NULL, a.flags = XEP_DISPATCH_SEND_WEIGHTS;
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(ll, &a, &handle, NULL));
    MP_CHECK(handle == NULL);
    free(b);
}

/* ---- a rank that is away ---- */

/* A counter that all ranks of one machine share, and that is not xep's. */
static atomic_int *shared_counter(xep_group_t *group)
{
    char mine[64] = "/dev/shm/xep_ll_ops.XXXXXX", *paths = malloc(mp_nranks() * sizeof mine);
    int file = mp_rank() == 0 ? mkstemp(mine) : -1;
    if (mp_rank() == 0) MP_CHECK(file >= 0 && ftruncate(file, sizeof(atomic_int)) == 0);
    MP_OK(xep_group_allgather(group, mine, paths, sizeof mine));
    if (mp_rank() != 0) file = open(paths, O_RDWR);
    void *counter = mmap(NULL, sizeof(atomic_int), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    MP_CHECK(file >= 0 && counter != MAP_FAILED);
    close(file);
    MP_OK(xep_group_barrier(group));
    if (mp_rank() == 0) unlink(mine);
    free(paths);
    return counter;
}

/* Rank 0 is away, not in xep, until all others have received; they only count. */
static void receive_without(atomic_int *received, int before, xep_request_t *req)
{
    int all = before + (int)mp_nranks() - 1;
    for (int i = 0; mp_rank() == 0 && i < 60000 && *received < all; i++) usleep(1000);
    if (mp_rank() == 0) MP_CHECK(*received == all);
    MP_OK(xep_request_wait(req));
    xep_request_free(req);
    if (mp_rank() != 0) (*received)++;
}

/* After the send phase nothing needs a rank's processor: the others receive from it while it is away. */
static void away(xep_group_t *group, xep_buffer_t *ll)
{
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    xep_handle_t *handle;
    xep_request_t *req;
    MP_OK(xep_buffer_query(ll, &info));
    if (info.mapped_peers < mp_nranks()) return;
    atomic_int *received = shared_counter(group);
    batch_t *b = malloc(sizeof *b);
    for (int round = 0; round < 5; round++) {
        int before = 2 * round * ((int)mp_nranks() - 1);
        batch_fill(b, (unsigned)round);
        xep_dispatch_args_t a = dispatch_args(b);
        MP_OK(xep_group_barrier(group));
        MP_OK(xep_dispatch(ll, &a, &handle, &req));
        receive_without(received, before, req);
        experts(handle);
        MP_OK(xep_group_barrier(group));
        combine(handle, b, &req);
        receive_without(received, before + (int)mp_nranks() - 1, req);
        batch_check(b);
        xep_handle_release(handle);
    }
    munmap(received, sizeof *received);
    free(b);
}

/* ---- LogFMT ---- */

static float bf16_value(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Numbers from 2^-9 to 1, of both signs, so that all rows can be coded. */
static void output_bf16(xep_handle_t *handle)
{
    const xep_recv_t *r = xep_handle_recv(handle);
    size_t stride;
    char *y = xep_handle_combine_input(handle, &stride);
    MP_CHECK(r != NULL && y != NULL);
    for (uint64_t row = 0; row < r->rows; row++)
        for (uint32_t h = 0; h < HIDDEN; h++)
            ((uint16_t *)(void *)(y + row * stride))[h] = (uint16_t)((row * 31 + h * 389) % 0x480 + 0x3b00 + (h % 2) * 0x8000);
}

static int comes_from_afar(xep_group_t *group, const int64_t *idx)
{
    for (uint32_t r = 0; r < mp_nranks(); r++) {
        xep_peer_info_t peer = XEP_PEER_INFO_INIT;
        uint32_t first, count;
        MP_OK(xep_group_peer(group, r, &peer));
        xep_expert_range(EXPERTS, mp_nranks(), r, &first, &count);
        for (unsigned k = 0; k < TOPK && !peer.mapped; k++)
            if (idx[k] >= (int64_t)first && idx[k] < (int64_t)(first + count)) return 1;
    }
    return 0;
}

/* Rows of mapped ranks stay as they are, to the bit; a sum with rows of others is near, and some of it not the same. */
static void logfmt(xep_group_t *group)
{
    static uint16_t x[TOKENS][HIDDEN], out[2][TOKENS][HIDDEN];
    xep_buffer_params_t p = XEP_BUFFER_PARAMS_INIT;
    batch_t *b = malloc(sizeof *b);
    xep_buffer_t *buffer;
    xep_handle_t *handle;
    p.mode = "ll", p.experts = EXPERTS, p.topk = TOPK, p.hidden = HIDDEN, p.tokens = TOKENS;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    batch_fill(b, 3);
    xep_dispatch_args_t a = dispatch_args(b);
    a.x = x;
    MP_OK(xep_dispatch(buffer, &a, &handle, NULL));
    for (uint32_t flags = 0; flags <= XEP_COMBINE_LOGFMT; flags += XEP_COMBINE_LOGFMT) {
        xep_combine_args_t c = XEP_COMBINE_ARGS_INIT;
        c.out = out[flags != 0], c.flags = flags;
        output_bf16(handle);
        MP_OK(xep_combine(handle, &c, NULL));
    }
    for (unsigned t = 0; t < TOKENS; t++) {
        MP_CHECK((memcmp(out[0][t], out[1][t], sizeof out[0][t]) != 0) == comes_from_afar(group, b->idx[t]));
        for (unsigned h = 0; h < HIDDEN; h++) MP_CHECK(fabsf(bf16_value(out[0][t][h]) - bf16_value(out[1][t][h])) < 0.03f);
    }
    xep_handle_release(handle);
    xep_buffer_destroy(buffer);
    free(b);
}

/* ---- two modes ---- */

static void *many_rounds(void *buffer)
{
    for (unsigned i = 0; i < 100; i++) round_trip(buffer, i, 0);
    return NULL;
}

static void two_threads(xep_buffer_t *normal, xep_buffer_t *ll)
{
    pthread_t thread;
    MP_CHECK(pthread_create(&thread, NULL, many_rounds, normal) == 0);
    many_rounds(ll);
    pthread_join(thread, NULL);
}

/* An operation that not all ranks begin ends at its deadline, says for whom it waited, and a reset makes all well. */
static void reset(xep_buffer_t *ll)
{
    if (mp_rank() == 0 && mp_nranks() > 1) {
        batch_t *b = malloc(sizeof *b);
        xep_handle_t *handle = NULL;
        batch_fill(b, 1);
        xep_dispatch_args_t a = dispatch_args(b);
        a.timeout_ms = 200;
        MP_FAILS(XEP_ERR_TIMEOUT, xep_dispatch(ll, &a, &handle, NULL));
        MP_REASON("rank 1");
        MP_FAILS(XEP_ERR_BROKEN, xep_dispatch(ll, &a, &handle, NULL));
        free(b);
    }
    MP_OK(xep_buffer_reset(ll));
    for (unsigned i = 0; i < 10; i++) round_trip(ll, i, 0);
}

int main(void)
{
    xep_group_t *group = mp_group();
    xep_buffer_t *normal = make_buffer(group, "normal"), *ll = make_buffer(group, "ll");
    for (unsigned i = 0; i < 40; i++) round_trip(i % 2 ? ll : normal, i, 0);
    for (unsigned i = 0; i < 5; i++) round_trip(ll, i, XEP_DISPATCH_SEND_WEIGHTS);
    two_batches(ll);
    statistics(ll);
    refusals(normal, ll);
    away(group, ll);
    logfmt(group);
    two_threads(normal, ll);
    reset(ll);
    xep_buffer_destroy(normal);
    xep_buffer_destroy(ll);
    xep_group_destroy(group);
    return 0;
}
