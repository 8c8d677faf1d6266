/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Steps are told by words that only grow, as in the library, but nothing here keeps a rank that is ahead from writing
 * over what another one still reads: the caller's barrier between two steps does.
 */
#include "perf_peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "oracle_alloc.h"
#include "oracle_routing.h"
#include "perf_limit.h"
#include "perf_plan.h"
#include "perf_say.h"

/** The words of a rank, at the begin of its memory; it alone writes them. Each tells a step. */
typedef struct words {
    _Alignas(128) _Atomic uint64_t counted; /* its counts are there */
    _Alignas(128) _Atomic uint64_t stored;  /* its rows are where they belong */
    _Alignas(128) _Atomic uint64_t written; /* its experts' outputs are there */
    _Alignas(128) uint64_t counts[];        /* [R] rows for each rank */
} words_t;

/** Where things are in the memory of a rank. */
typedef struct layout {
    size_t x, scales, idx, weights, token, outputs, bytes;
} layout_t;

struct perf_peer {
    perf_t *perf;
    perf_kernels_t kernels;
    perf_plan_t plan;
    uint64_t step; /* operations so far */
    char *memory;  /* [R] of at.bytes */
    layout_t at;
    uint64_t *first;       /* [R] first row of this rank in each destination */
    uint64_t *src_begin;   /* [R + 1] of xep_recv_t, as the three below */
    uint32_t *rank_rows;   /* [R][R] */
    uint64_t *expert_rows; /* [L] */
    xep_recv_t recv;
    const void **terms; /* [width] */
    uint32_t *of_rank;  /* [experts] number of an expert on its rank */
    uint32_t *experts;  /* [experts] those of this rank, ascending */
};

/* ---- memory ---- */

/* Memory of all ranks is one piece with the same layout in each, so any rank's is found by arithmetic. */
static char *memory_of(const perf_peer_t *peer, uint32_t rank)
{
    return peer->memory + rank * peer->at.bytes;
}

static words_t *words_of(const perf_peer_t *peer, uint32_t rank)
{
    return (words_t *)(void *)memory_of(peer, rank);
}

/* Whole pages, so that what one rank writes shares none with what another does. */
static size_t take(layout_t *at, size_t bytes)
{
    const size_t begin = at->bytes;
    at->bytes += (bytes + 4095) / 4096 * 4096;
    return begin;
}

/* The same on every rank: as many rows as the rank has that receives most. */
static void lay_out(perf_peer_t *peer)
{
    const perf_t *perf = peer->perf;
    const size_t rows = perf->recv_rows, selections = rows * perf->options.topk;
    layout_t at = {0};

    take(&at, sizeof(words_t) + perf->info.nranks * sizeof(uint64_t));
    at.x = take(&at, rows * perf_line_up(perf->placed_bytes));
    at.scales = take(&at, rows * perf->placed_scales);
    at.idx = take(&at, selections * sizeof(int64_t));
    at.weights = take(&at, selections * sizeof(float));
    at.token = take(&at, rows * sizeof(int32_t));
    at.outputs = take(&at, rows * perf_line_up(perf->sum_bytes));
    peer->at = at;
}

/* Every page that is used is written once by every rank that uses it, so that no operation meets it for the first time:
 * the warm-up does not, where ranks take turns at being slow. */
static void touch_all(perf_peer_t *peer)
{
    const uint32_t nranks = peer->perf->info.nranks;

    for (uint32_t i = 0; i < nranks; i++) {
        char *memory = memory_of(peer, (peer->perf->info.rank + i) % nranks);
        for (size_t at = 0; at < peer->at.bytes; at += 4096)
            atomic_fetch_add_explicit((_Atomic char *)(memory + at), 0, memory_order_relaxed);
    }
}

/* In the library's own struct, so that the oracle looks at both alike. */
static void open_recv(perf_peer_t *peer)
{
    const perf_t *perf = peer->perf;
    char *own = memory_of(peer, perf->info.rank);
    const uint32_t experts = (uint32_t)perf->options.experts;
    xep_recv_t *recv = &peer->recv;

    *recv = (xep_recv_t){.size = sizeof *recv, .arrangement = XEP_ROWS_BY_RANK, .topk_idx_dtype = XEP_INT64};
    recv->x = own + peer->at.x;
    recv->x_stride = perf_line_up(perf->placed_bytes);
    recv->dtype = perf->shape.dtype;
    recv->hidden = perf->shape.hidden;
    recv->topk = (uint32_t)perf->options.topk;
    recv->topk_idx = own + peer->at.idx;
    recv->topk_weights = (float *)(void *)(own + peer->at.weights);
    recv->scales = perf->shape.nscales ? own + peer->at.scales : NULL;
    recv->nscales = perf->shape.nscales;
    recv->scales_dtype = XEP_FP32;
    recv->scales_token_stride = (ptrdiff_t)perf->placed_scales;
    recv->scales_stride = 4;
    recv->src_token = (int32_t *)(void *)(own + peer->at.token);
    recv->src_begin = peer->src_begin;
    recv->rank_rows = peer->rank_rows;
    recv->expert_rows = peer->expert_rows;
    oracle_experts_of(perf->routing, perf->info.rank, &recv->first_expert, &recv->local_experts);
    uint32_t *owned = oracle_alloc(peer->plan.ndest * sizeof *owned);
    for (uint32_t e = 0; e < experts; e++) {
        peer->of_rank[e] = owned[peer->plan.owner[e]]++;
        if (peer->plan.owner[e] == perf->info.rank) peer->experts[peer->of_rank[e]] = e;
    }
    free(owned);
    recv->experts = peer->experts;
}

/* Everything is allocated and mapped here, so that what is timed later is a plan, counts, rows and flags alone. */
int perf_peer_open(perf_t *perf, perf_peer_t **peer_p)
{
    const uint32_t nranks = perf->info.nranks;

    if (perf_complained(perf, perf->host_ranks == nranks ? NULL : "--peer needs all ranks on one machine"))
        return PERF_EXIT_FAILED;
    perf_peer_t *peer = oracle_alloc(sizeof *peer);
    *peer = (perf_peer_t){.perf = perf};
    peer->kernels = perf_kernels(perf->shape.combine_dtype);
    lay_out(peer);
    peer->memory = perf_share(perf, nranks * peer->at.bytes);
    if (peer->memory == NULL) {
        perf_say(perf, "--peer: no %.1f MiB of shared memory in /dev/shm: %s",
                 (double)nranks * (double)peer->at.bytes / 0x1p20, strerror(errno));
        free(peer);
        return PERF_EXIT_FAILED;
    }
    perf_plan_open(&peer->plan, perf);
    peer->first = oracle_alloc(nranks * sizeof *peer->first);
    peer->src_begin = oracle_alloc((nranks + 1) * sizeof *peer->src_begin);
    peer->rank_rows = oracle_alloc((size_t)nranks * nranks * sizeof *peer->rank_rows);
    peer->expert_rows = oracle_alloc(perf->options.experts * sizeof *peer->expert_rows);
    peer->experts = oracle_alloc(perf->options.experts * sizeof *peer->experts);
    peer->of_rank = oracle_alloc(perf->options.experts * sizeof *peer->of_rank);
    peer->terms = oracle_alloc(peer->plan.width * sizeof *peer->terms);
    open_recv(peer);
    touch_all(peer);
    *peer_p = peer;
    return 0;
}

/* Its memory has no name any more (perf_shared.c): it is gone when the last rank has unmapped it or ended. */
void perf_peer_close(perf_peer_t *peer)
{
    if (peer == NULL) return;
    munmap(peer->memory, peer->perf->info.nranks * peer->at.bytes);
    perf_plan_close(&peer->plan);
    free(peer->first);
    free(peer->src_begin);
    free(peer->rank_rows);
    free(peer->expert_rows);
    free(peer->of_rank);
    free(peer->experts);
    free(peer->terms);
    free(peer);
}

/* ---- dispatch ---- */

/* What this rank has stored before, others see when they see the word. */
static void tell(_Atomic uint64_t *word, uint64_t step)
{
    atomic_store_explicit(word, step, memory_order_release);
}

/* From all counts: where this rank's rows begin in each destination, and where each source's begin here. */
static void share_counts(perf_peer_t *peer)
{
    const uint32_t nranks = peer->perf->info.nranks, me = peer->perf->info.rank;
    words_t *own = words_of(peer, me);

    for (uint32_t to = 0; to < nranks; to++) own->counts[to] = peer->plan.begin[to + 1] - peer->plan.begin[to];
    tell(&own->counted, peer->step);
    memset(peer->first, 0, nranks * sizeof *peer->first);
    peer->src_begin[0] = 0;
    for (uint32_t from = 0; from < nranks; from++) {
        const words_t *words = words_of(peer, from);
        perf_await(&words->counted, peer->step);
        for (uint32_t to = 0; to < nranks; to++) {
            peer->rank_rows[(size_t)from * nranks + to] = (uint32_t)words->counts[to];
            if (from < me) peer->first[to] += words->counts[to];
        }
        peer->src_begin[from + 1] = peer->src_begin[from] + words->counts[me];
    }
    peer->recv.rows = peer->recv.capacity = peer->src_begin[nranks];
}

/* Which selections of the token are the receiver's, with their weights. */
static void store_selections(const perf_peer_t *peer, uint64_t token, uint32_t to, uint64_t row)
{
    const perf_t *perf = peer->perf;
    const size_t topk = perf->options.topk;
    char *memory = memory_of(peer, to);
    int64_t *idx = (int64_t *)(void *)(memory + peer->at.idx) + row * topk;
    float *weights = (float *)(void *)(memory + peer->at.weights) + row * topk;

    for (size_t k = 0; k < topk; k++) {
        const int64_t expert = perf->idx[token * topk + k];
        const int is_there = expert >= 0 && peer->plan.owner[expert] == to;
        idx[k] = is_there ? (int64_t)peer->of_rank[expert] : -1;
        weights[k] = is_there ? perf->weights[token * topk + k] : 0;
    }
    ((int32_t *)(void *)(memory + peer->at.token))[row] = (int32_t)token;
}

/* A row is read once for each copy, from the caches after the first. */
static void store_token(const perf_peer_t *peer, uint64_t token, int streaming)
{
    const perf_t *perf = peer->perf;
    const char *x = (const char *)perf->x + token * perf->row_bytes;
    const size_t stride = perf_line_up(perf->placed_bytes);

    for (uint32_t i = 0; i < peer->plan.copies[token]; i++) {
        const uint64_t at = token * peer->plan.width + i;
        const uint32_t to = peer->plan.to[at];
        const uint64_t row = peer->first[to] + peer->plan.place[at];
        char *memory = memory_of(peer, to);
        char *placed = memory + peer->at.x + row * stride;
        if (streaming) peer->kernels.copy_streaming(placed, x, perf->placed_bytes, x + perf->row_bytes);
        else memcpy(placed, x, perf->placed_bytes);
        if (perf->placed_scales)
            memcpy(memory + peer->at.scales + row * perf->placed_scales,
                   (const char *)perf->scales + token * perf->scale_bytes, perf->placed_scales);
        store_selections(peer, token, to, row);
    }
}

/* Part of a dispatch of xep as well. */
static void count_experts(perf_peer_t *peer)
{
    const int64_t *idx = peer->recv.topk_idx;
    const uint64_t selections = peer->recv.rows * peer->perf->options.topk;

    memset(peer->expert_rows, 0, peer->recv.local_experts * sizeof *peer->expert_rows);
    for (uint64_t i = 0; i < selections; i++)
        if (idx[i] >= 0) peer->expert_rows[idx[i]]++;
}

/*
 * Counts first: a rank needs those of all others to know where in a receiver its own rows begin. Streaming stores are
 * fenced before the word that tells of them, as its release does not order them.
 */
void perf_peer_dispatch(perf_peer_t *peer, int streaming)
{
    const perf_t *perf = peer->perf;

    peer->step++;
    perf_plan_make(&peer->plan, perf);
    share_counts(peer);
    for (uint64_t token = 0; token < perf->tokens; token++) store_token(peer, token, streaming);
    xep_stores_fence();
    tell(&words_of(peer, perf->info.rank)->stored, peer->step);
    for (uint32_t rank = 0; rank < perf->info.nranks; rank++) perf_await(&words_of(peer, rank)->stored, peer->step);
    count_experts(peer);
}

const xep_recv_t *perf_peer_recv(perf_peer_t *peer)
{
    return &peer->recv;
}

/* ---- combine ---- */

void perf_peer_experts(perf_peer_t *peer)
{
    const perf_t *perf = peer->perf;

    oracle_fill_outputs(&perf->shape, perf->info.rank, &peer->recv, memory_of(peer, perf->info.rank) + peer->at.outputs,
                        perf_line_up(perf->sum_bytes));
}

/* The outputs for a token, by rank, as sums are defined; returns how many. */
/* Destinations are in the order of selection, sums in that of ranks: a rank has one row of a token at most. */
static uint32_t list_terms(perf_peer_t *peer, uint64_t token, size_t stride)
{
    const uint64_t at = token * peer->plan.width;
    const uint32_t n = peer->plan.copies[token];

    for (uint32_t i = 0; i < n; i++) {
        const uint32_t to = peer->plan.to[at + i];
        const uint64_t row = peer->first[to] + peer->plan.place[at + i];
        uint32_t before = 0;
        for (uint32_t j = 0; j < n; j++) before += peer->plan.to[at + j] < to;
        peer->terms[before] = memory_of(peer, to) + peer->at.outputs + row * stride;
    }
    return n;
}

/*
 * The step is that of the dispatch: a combine comes once behind each. Outputs are read where perf_peer_experts() of
 * their owner has written them, and nothing is copied.
 */
void perf_peer_combine(perf_peer_t *peer, int streaming)
{
    const perf_t *perf = peer->perf;
    const xep_weigh_fn sum = peer->kernels.sum[streaming != 0];
    char *out = perf->peer_sums[streaming != 0];
    const size_t stride = perf_line_up(perf->sum_bytes);

    tell(&words_of(peer, perf->info.rank)->written, peer->step);
    for (uint32_t rank = 0; rank < perf->info.nranks; rank++) perf_await(&words_of(peer, rank)->written, peer->step);
    for (uint64_t token = 0; token < perf->tokens; token++) {
        const uint32_t n = list_terms(peer, token, stride);
        sum(out + token * perf->sum_bytes, peer->terms, NULL, n, 0, perf->shape.hidden);
    }
    xep_stores_fence();
}
