/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Steps are told by words that only grow, as in the library, but nothing here keeps a rank that is ahead from writing
 * over what another one still reads: the caller's barrier between two steps does.
 */

#include "perf_by_hand.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"
#include "oracle_cast.h"
#include "oracle_routing.h"
#include "perf_say.h"

struct perf_peer {
    perf_by_hand_t hand;                /* its memory is that of rank 0, of as many pieces as there are ranks */
    size_t counts, idx, weights, token; /* where these are in a rank's memory; counts: [R] rows for each rank */
    uint64_t *first;                    /* [R] first row of this rank in each destination */
    uint64_t *src_begin;                /* [R + 1] of xep_recv_t, as the three below */
    uint32_t *rank_rows;                /* [R][R] */
    uint64_t *expert_rows;              /* [L] */
    uint32_t *experts;                  /* [L] */
    uint32_t *local;                    /* [experts] number of an expert on its rank */
    xep_recv_t recv;
};

/* ---- memory ---- */

/* Memory of all ranks is one piece with the same layout in each, so any rank's is found by arithmetic. */
static void *memory_of(const perf_peer_t *peer, uint32_t rank, size_t at)
{
    return peer->hand.memory + rank * peer->hand.each + at;
}

/* Whole pages, so that what one rank writes shares none with what another does. */
static size_t take(perf_peer_t *peer, size_t bytes)
{
    const size_t begin = peer->hand.each;
    peer->hand.each += (bytes + 4095) / 4096 * 4096;
    return begin;
}

/* The same on every rank: as many rows as the rank has that receives most. */
static void lay_out(perf_peer_t *peer)
{
    const perf_t *perf = peer->hand.perf;
    const size_t rows = perf->recv_rows, selections = rows * perf->options.topk;

    peer->counts = take(peer, perf->info.nranks * sizeof(uint64_t));
    peer->hand.x = take(peer, rows * perf_line_up(perf->placed_bytes));
    peer->hand.scales = take(peer, rows * perf->placed_scales);
    peer->idx = take(peer, selections * sizeof(int64_t));
    peer->weights = take(peer, selections * sizeof(float));
    peer->token = take(peer, rows * sizeof(int32_t));
    peer->hand.out = take(peer, rows * perf_line_up(perf->sum_bytes));
}

/* Every page that is used is written once by every rank that uses it, so that no operation meets it for the first time:
 * the warm-up does not, where ranks take turns at being slow. */
static void touch_all(perf_peer_t *peer)
{
    const perf_t *perf = peer->hand.perf;

    for (uint32_t i = 0; i < perf->info.nranks; i++)
        for (size_t at = 0; at < peer->hand.each; at += 4096)
            atomic_fetch_add_explicit((_Atomic char *)memory_of(peer, (perf->info.rank + i) % perf->info.nranks, at), 0,
                                      memory_order_relaxed);
}

/* In the library's own struct, so that the oracle looks at both alike. */
static void open_recv(perf_peer_t *peer)
{
    const perf_t *perf = peer->hand.perf;
    const uint32_t me = perf->info.rank;
    uint32_t first, count;
    xep_recv_t *recv = &peer->recv;

    *recv = (xep_recv_t){.size = sizeof *recv, .arrangement = XEP_ROWS_BY_RANK, .topk_idx_dtype = XEP_INT64};
    recv->x = memory_of(peer, me, peer->hand.x);
    recv->x_stride = perf_line_up(perf->placed_bytes);
    recv->dtype = oracle_received_dtype(&perf->shape);
    recv->hidden = oracle_received_hidden(&perf->shape);
    recv->quant = perf->shape.quant;
    recv->topk = (uint32_t)perf->options.topk;
    recv->topk_idx = memory_of(peer, me, peer->idx);
    recv->topk_weights = memory_of(peer, me, peer->weights);
    recv->nscales = oracle_received_scales(&perf->shape);
    recv->scales = recv->nscales != 0 ? memory_of(peer, me, peer->hand.scales) : NULL;
    recv->scales_dtype = oracle_received_scales_dtype(&perf->shape);
    recv->scales_token_stride = (ptrdiff_t)perf->placed_scales;
    recv->scales_stride = 4;
    recv->src_token = memory_of(peer, me, peer->token);
    recv->src_begin = peer->src_begin;
    recv->rank_rows = peer->rank_rows;
    recv->expert_rows = peer->expert_rows;
    recv->experts = peer->experts;
    for (uint32_t rank = 0; rank < perf->info.nranks; rank++) {
        oracle_experts_of(perf->routing, rank, &first, &count);
        for (uint32_t i = 0; i < count; i++) peer->local[oracle_expert_of(perf->routing, rank, i)] = i;
    }
    oracle_experts_of(perf->routing, me, &recv->first_expert, &recv->local_experts);
    for (uint32_t i = 0; i < recv->local_experts; i++) peer->experts[i] = oracle_expert_of(perf->routing, me, i);
}

/* Which selections of a token are the receiver's, with their weights. */
static void store_selections(const perf_t *perf, uint64_t token, uint32_t i)
{
    const perf_peer_t *peer = perf->peer;
    const size_t topk = perf->options.topk;
    const uint32_t to = peer->hand.to[token * peer->hand.width + i];
    const uint64_t row = perf_by_hand_row(&peer->hand, token, i);
    int64_t *idx = (int64_t *)memory_of(peer, to, peer->idx) + row * topk;
    float *weights = (float *)memory_of(peer, to, peer->weights) + row * topk;

    for (size_t k = 0; k < topk; k++) {
        const int64_t expert = perf->idx[token * topk + k];
        const int is_there = expert >= 0 && peer->hand.owner[expert] == to;
        idx[k] = is_there ? (int64_t)peer->local[expert] : -1;
        weights[k] = is_there ? perf->weights[token * topk + k] : 0;
    }
    ((int32_t *)memory_of(peer, to, peer->token))[row] = (int32_t)token;
}

/* Everything is allocated and mapped here, so that what is timed later is a plan, counts, rows and flags alone. */
void perf_peer_open(perf_t *perf)
{
    const uint32_t nranks = perf->info.nranks;
    char why[256];

    perf_stop_if(perf, perf->host_ranks == nranks ? NULL : "--peer needs all ranks on one machine", PERF_EXIT_FAILED);
    perf_peer_t *peer = perf->peer = oracle_alloc(sizeof *peer);
    peer->first = oracle_alloc(nranks * sizeof *peer->first);
    peer->src_begin = oracle_alloc((nranks + 1) * sizeof *peer->src_begin);
    peer->rank_rows = oracle_alloc((size_t)nranks * nranks * sizeof *peer->rank_rows);
    peer->expert_rows = oracle_alloc(perf->options.experts * sizeof *peer->expert_rows);
    peer->experts = oracle_alloc(perf->options.experts * sizeof *peer->experts);
    peer->local = oracle_alloc(perf->options.experts * sizeof *peer->local);
    perf_by_hand_open(&peer->hand, perf);
    peer->hand.beside = store_selections;
    peer->hand.first = peer->first;
    peer->hand.by_rank = 1;
    lay_out(peer);
    const int failed = perf_by_hand_share(&peer->hand, nranks * peer->hand.each);
    snprintf(why, sizeof why, "--peer: no %.1f MiB of shared memory in /dev/shm: %s",
             (double)nranks * (double)peer->hand.each / 0x1p20, strerror(errno));
    perf_stop_if(perf, failed ? why : NULL, PERF_EXIT_FAILED);
    open_recv(peer);
    touch_all(peer);
}

void perf_peer_close(perf_peer_t *peer)
{
    if (peer == NULL) return;
    perf_by_hand_close(&peer->hand);
    free(peer->first);
    free(peer->src_begin);
    free(peer->rank_rows);
    free(peer->expert_rows);
    free(peer->experts);
    free(peer->local);
    free(peer);
}

/* ---- dispatch ---- */

/* From all counts: where this rank's rows begin in each destination, and where each source's begin here. */
static void share_counts(perf_peer_t *peer)
{
    const uint32_t nranks = peer->hand.perf->info.nranks, me = peer->hand.perf->info.rank;
    uint64_t *own = memory_of(peer, me, peer->counts);

    for (uint32_t to = 0; to < nranks; to++) own[to] = peer->hand.begin[to + 1] - peer->hand.begin[to];
    perf_by_hand_tell(&peer->hand, PERF_COUNTS);
    memset(peer->first, 0, nranks * sizeof *peer->first);
    peer->src_begin[0] = 0;
    for (uint32_t from = 0; from < nranks; from++) {
        const uint64_t *counts = memory_of(peer, from, peer->counts);
        perf_by_hand_await(&peer->hand, from, PERF_COUNTS);
        for (uint32_t to = 0; to < nranks; to++) {
            peer->rank_rows[(size_t)from * nranks + to] = (uint32_t)counts[to];
            if (from < me) peer->first[to] += counts[to];
        }
        peer->src_begin[from + 1] = peer->src_begin[from] + counts[me];
    }
    peer->recv.rows = peer->recv.capacity = peer->src_begin[nranks];
}

/* Part of a dispatch of xep as well. */
static void count_experts(perf_peer_t *peer)
{
    const int64_t *idx = peer->recv.topk_idx;
    const uint64_t selections = peer->recv.rows * peer->recv.topk;

    memset(peer->expert_rows, 0, peer->recv.local_experts * sizeof *peer->expert_rows);
    for (uint64_t i = 0; i < selections; i++)
        if (idx[i] >= 0) peer->expert_rows[idx[i]]++;
}

/* Counts first: a rank needs those of all others to know where in a receiver its own rows begin. */
void perf_peer_dispatch(perf_t *perf)
{
    perf_peer_t *peer = perf->peer;

    peer->hand.step++;
    perf_by_hand_plan(&peer->hand);
    share_counts(peer);
    perf_by_hand_store(&peer->hand, perf->streaming);
    count_experts(peer);
}

const xep_recv_t *perf_peer_recv(perf_peer_t *peer)
{
    return &peer->recv;
}

/* ---- combine ---- */

void perf_peer_experts(perf_t *perf)
{
    const perf_peer_t *peer = perf->peer;

    oracle_fill_outputs(&perf->shape, perf->info.rank, &peer->recv, memory_of(peer, perf->info.rank, peer->hand.out),
                        perf_line_up(perf->sum_bytes));
}

/* Outputs are read where perf_peer_experts() of their owner has written them, and nothing is copied. */
void perf_peer_combine(perf_t *perf)
{
    perf_by_hand_sum(&perf->peer->hand, perf->peer_sums[perf->streaming], perf->streaming);
}
