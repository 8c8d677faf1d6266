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
#include <sys/mman.h>

#include "oracle_alloc.h"
#include "oracle_cast.h"
#include "oracle_routing.h"
#include "perf_say.h"

/* ---- the peer ---- */

/** The words of a rank, at the begin of its memory; it alone writes them. Each tells a step. */
typedef struct words {
    _Alignas(128) _Atomic uint64_t counted; /* its counts are there */
    _Alignas(128) _Atomic uint64_t stored;  /* its rows are where they belong */
    _Alignas(128) _Atomic uint64_t written; /* its experts' outputs are there */
    _Alignas(128) uint64_t counts[];        /* [R] rows for each rank */
} words_t;

struct perf_peer {
    perf_t *perf;
    perf_by_hand_t hand;        /* its memory is that of rank 0, the first of as many pieces as there are ranks */
    size_t idx, weights, token; /* where these are in a rank's memory */
    uint64_t step;              /* operations so far */
    uint64_t *first;            /* [R] first row of this rank in each destination */
    uint64_t *src_begin;        /* [R + 1] of xep_recv_t, as the three below */
    uint32_t *rank_rows;        /* [R][R] */
    uint64_t *expert_rows;      /* [L] */
    xep_recv_t recv;
    uint32_t *of_rank; /* [experts] number of an expert on its rank */
    uint32_t *experts; /* [experts] those of this rank, ascending */
};

/* ---- memory ---- */

/* Memory of all ranks is one piece with the same layout in each, so any rank's is found by arithmetic. */
static char *memory_of(const perf_peer_t *peer, uint32_t rank)
{
    return peer->hand.memory + rank * peer->hand.each;
}

static words_t *words_of(const perf_peer_t *peer, uint32_t rank)
{
    return (words_t *)(void *)memory_of(peer, rank);
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
    const perf_t *perf = peer->perf;
    const size_t rows = perf->recv_rows, selections = rows * perf->options.topk;

    take(peer, sizeof(words_t) + perf->info.nranks * sizeof(uint64_t));
    peer->hand.x = take(peer, rows * perf_line_up(perf->placed_bytes));
    peer->hand.scales = take(peer, rows * perf->placed_scales);
    peer->idx = take(peer, selections * sizeof(int64_t));
    peer->weights = take(peer, selections * sizeof(float));
    peer->token = take(peer, rows * sizeof(int32_t));
    peer->hand.out = take(peer, rows * perf_line_up(perf->sum_bytes));
    peer->hand.first = peer->first;
    peer->hand.by_rank = 1;
}

/* Every page that is used is written once by every rank that uses it, so that no operation meets it for the first time:
 * the warm-up does not, where ranks take turns at being slow. */
static void touch_all(perf_peer_t *peer)
{
    const uint32_t nranks = peer->perf->info.nranks;

    for (uint32_t i = 0; i < nranks; i++) {
        char *memory = memory_of(peer, (peer->perf->info.rank + i) % nranks);
        for (size_t at = 0; at < peer->hand.each; at += 4096)
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
    recv->x = own + peer->hand.x;
    recv->x_stride = perf_line_up(perf->placed_bytes);
    recv->dtype = oracle_received_dtype(&perf->shape);
    recv->hidden = oracle_received_hidden(&perf->shape);
    recv->quant = perf->shape.quant;
    recv->topk = (uint32_t)perf->options.topk;
    recv->topk_idx = own + peer->idx;
    recv->topk_weights = (float *)(void *)(own + peer->weights);
    recv->nscales = oracle_received_scales(&perf->shape);
    recv->scales = recv->nscales != 0 ? own + peer->hand.scales : NULL;
    recv->scales_dtype = oracle_received_scales_dtype(&perf->shape);
    recv->scales_token_stride = (ptrdiff_t)perf->placed_scales;
    recv->scales_stride = 4;
    recv->src_token = (int32_t *)(void *)(own + peer->token);
    recv->src_begin = peer->src_begin;
    recv->rank_rows = peer->rank_rows;
    recv->expert_rows = peer->expert_rows;
    oracle_experts_of(perf->routing, perf->info.rank, &recv->first_expert, &recv->local_experts);
    uint32_t *owned = oracle_alloc(peer->hand.ndest * sizeof *owned);
    for (uint32_t e = 0; e < experts; e++) {
        peer->of_rank[e] = owned[peer->hand.owner[e]]++;
        if (peer->hand.owner[e] == perf->info.rank) peer->experts[peer->of_rank[e]] = e;
    }
    free(owned);
    recv->experts = peer->experts;
}

/* Which selections of a token are the receiver's, with their weights. */
static void store_selections(const perf_t *perf, uint64_t token, uint32_t i)
{
    const perf_peer_t *peer = perf->peer;
    const size_t topk = perf->options.topk;
    const uint32_t to = peer->hand.to[token * peer->hand.width + i];
    const uint64_t row = perf_by_hand_row(&peer->hand, token, i);
    char *memory = memory_of(peer, to);
    int64_t *idx = (int64_t *)(void *)(memory + peer->idx) + row * topk;
    float *weights = (float *)(void *)(memory + peer->weights) + row * topk;

    for (size_t k = 0; k < topk; k++) {
        const int64_t expert = perf->idx[token * topk + k];
        const int is_there = expert >= 0 && peer->hand.owner[expert] == to;
        idx[k] = is_there ? (int64_t)peer->of_rank[expert] : -1;
        weights[k] = is_there ? perf->weights[token * topk + k] : 0;
    }
    ((int32_t *)(void *)(memory + peer->token))[row] = (int32_t)token;
}

/* Everything is allocated and mapped here, so that what is timed later is a plan, counts, rows and flags alone. */
void perf_peer_open(perf_t *perf)
{
    const uint32_t nranks = perf->info.nranks;
    char why[256];

    perf_stop_if(perf, perf->host_ranks == nranks ? NULL : "--peer needs all ranks on one machine", PERF_EXIT_FAILED);
    perf_peer_t *peer = perf->peer = oracle_alloc(sizeof *peer);
    peer->perf = perf;
    peer->first = oracle_alloc(nranks * sizeof *peer->first);
    peer->src_begin = oracle_alloc((nranks + 1) * sizeof *peer->src_begin);
    peer->rank_rows = oracle_alloc((size_t)nranks * nranks * sizeof *peer->rank_rows);
    peer->expert_rows = oracle_alloc(perf->options.experts * sizeof *peer->expert_rows);
    peer->experts = oracle_alloc(perf->options.experts * sizeof *peer->experts);
    peer->of_rank = oracle_alloc(perf->options.experts * sizeof *peer->of_rank);
    perf_by_hand_open(&peer->hand, perf);
    peer->hand.beside = store_selections;
    peer->hand.memory = NULL; /* until all share it: perf_peer_close() unmaps what is here */
    lay_out(peer);
    peer->hand.memory = perf_share(perf, nranks * peer->hand.each);
    snprintf(why, sizeof why, "--peer: no %.1f MiB of shared memory in /dev/shm: %s",
             (double)nranks * (double)peer->hand.each / 0x1p20, strerror(errno));
    perf_stop_if(perf, peer->hand.memory == NULL ? why : NULL, PERF_EXIT_FAILED);
    open_recv(peer);
    touch_all(peer);
}

/* Its memory has no name any more: it is gone when the last rank has unmapped it or ended. */
void perf_peer_close(perf_peer_t *peer)
{
    if (peer == NULL) return;
    if (peer->hand.memory != NULL) munmap(peer->hand.memory, peer->perf->info.nranks * peer->hand.each);
    perf_by_hand_close(&peer->hand);
    free(peer->first);
    free(peer->src_begin);
    free(peer->rank_rows);
    free(peer->expert_rows);
    free(peer->of_rank);
    free(peer->experts);
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

    for (uint32_t to = 0; to < nranks; to++) own->counts[to] = peer->hand.begin[to + 1] - peer->hand.begin[to];
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
void perf_peer_dispatch(perf_t *perf)
{
    perf_peer_t *peer = perf->peer;

    peer->step++;
    perf_by_hand_plan(&peer->hand);
    share_counts(peer);
    perf_by_hand_store(&peer->hand, perf->streaming);
    tell(&words_of(peer, perf->info.rank)->stored, peer->step);
    for (uint32_t rank = 0; rank < perf->info.nranks; rank++) perf_await(&words_of(peer, rank)->stored, peer->step);
    count_experts(peer);
}

const xep_recv_t *perf_peer_recv(perf_peer_t *peer)
{
    return &peer->recv;
}

/* ---- combine ---- */

void perf_peer_experts(perf_t *perf)
{
    perf_peer_t *peer = perf->peer;

    oracle_fill_outputs(&perf->shape, perf->info.rank, &peer->recv, memory_of(peer, perf->info.rank) + peer->hand.out,
                        perf_line_up(perf->sum_bytes));
}

/*
 * The step is that of the dispatch: a combine comes once behind each. Outputs are read where perf_peer_experts() of
 * their owner has written them, and nothing is copied.
 */
void perf_peer_combine(perf_t *perf)
{
    perf_peer_t *peer = perf->peer;

    tell(&words_of(peer, perf->info.rank)->written, peer->step);
    for (uint32_t rank = 0; rank < perf->info.nranks; rank++) perf_await(&words_of(peer, rank)->written, peer->step);
    perf_by_hand_sum(&peer->hand, perf->peer_sums[perf->streaming], perf->streaming);
}
