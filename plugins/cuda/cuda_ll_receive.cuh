/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The receive phase of a dispatch: from what all ranks have told, every block finds the places of all rows, and so
 * whether they fit, on its own; then each row is fetched once, from its source, and stored wherever it belongs.
 */
#ifndef XEP_CUDA_LL_RECEIVE_CUH
#define XEP_CUDA_LL_RECEIVE_CUH

#include <xep/xep.h>

#include "cuda_bulk.cuh"
#include "cuda_ll_board.cuh"
#include "cuda_ll_heaps.cuh"
#include "cuda_ll_send.cuh"
#include "cuda_words.cuh"

enum { NOWHERE = -1 };

/* ---- places ---- */

/* A warp adds up the rows of experts, 32 at a time. Returns how many there are. */
static __device__ __forceinline__ uint32_t lay_experts(const receive_t &r, const board_t &b)
{
    const uint32_t lane = threadIdx.x % 32,
                   alignment = r.rows_of_expert != 0 ? 1 : r.notice.alignment; /* padded rows are counted as they are */
    uint32_t row = 0;
    for (uint32_t begin = 0; begin < b.experts; begin += 32) {
        const uint32_t e = begin + lane, rows = e < b.experts ? (uint32_t)align_up(b.own[e], alignment) : 0;
        uint32_t sum = rows;
        for (uint32_t step = 1; step < 32; step *= 2) {
            const uint32_t left = __shfl_up_sync(UINT32_MAX, sum, step);
            if (lane >= step) sum += left;
        }
        if (e < b.experts) b.first[e] = r.rows_of_expert != 0 ? (uint32_t)(e * r.rows_of_expert) : row + sum - rows;
        row += __shfl_sync(UINT32_MAX, sum, 31);
    }
    return row;
}

/* All know where each pair begins. */
static __device__ __forceinline__ void lay_pairs(const receive_t &r, const board_t &b)
{
    for (uint32_t e = threadIdx.x; e < b.experts; e += blockDim.x)
        for (uint32_t s = 0, at = b.first[e]; s < r.at.nranks; s++) {
            b.begin[e * r.at.nranks + s] = at;
            at += b.count[e * r.at.nranks + s];
        }
    __syncthreads();
}

/* One block: what the user sees of it, and to each source where its rows begin. */
static __device__ void publish(const receive_t &r, const board_t &b, uint32_t end)
{
    const uint32_t alignment = r.notice.alignment;
    for (uint32_t e = threadIdx.x; e < b.experts; e += blockDim.x) {
        r.expert_begin[e] = b.first[e];
        r.expert_count[e] = b.own[e];
        r.expert_rows[e] = align_up(b.own[e], alignment);
        if (r.stats != nullptr) r.stats[e] += (int32_t)b.own[e];
    }
    for (uint32_t i = threadIdx.x; i < b.experts * r.at.nranks; i += blockDim.x) {
        const uint32_t e = i / r.at.nranks, s = i % r.at.nranks;
        r.pair_begin[i] = b.begin[i];
        r.pair_count[i] = b.count[i];
        /* in the heap of the source, under the slot that it chose: its combines look there */
        table_at(r.at, s, b.notice[s].slot, r.at.rank)[e] = b.begin[i];
    }
    for (uint32_t i = threadIdx.x; i < r.at.nranks; i += blockDim.x) {
        r.at.there[i] = b.notice[i].slot;
        r.came.tokens[i] = b.notice[i].tokens;
        if (leaves_out(r.at.outs)) r.out[i] = how_with(r.at.outs, i) != XEP_CUDA_WITH;
    }
    if (threadIdx.x == 0 && r.rows != nullptr) *r.rows = end;
}

/* ---- rows ---- */

static __device__ __forceinline__ void store_index(const receive_t &r, uint64_t row, int32_t expert)
{
    if (r.wide) ((int64_t *)r.topk_idx)[row] = expert;
    else ((int32_t *)r.topk_idx)[row] = expert;
}

/* Rows that alignment leaves unused, and those behind the last one, have no expert. */
static __device__ void fill_unused(const receive_t &r, const board_t &b, uint32_t end)
{
    const uint32_t me = blockIdx.x * blockDim.x + threadIdx.x, all = gridDim.x * blockDim.x;
    if (r.rows_of_expert != 0) return;
    for (uint64_t row = end + me; row < r.capacity; row += all) store_index(r, row, NOWHERE);
    for (uint32_t e = me; e < b.experts && r.notice.alignment > 1; e += all) {
        const uint64_t last = e + 1 < b.experts ? b.first[e + 1] : end;
        for (uint64_t row = b.first[e] + b.own[e]; row < last; row++) store_index(r, row, NOWHERE);
    }
}

/* A piece of an item that a warp fetches: a part of the row, of its scales, or of both. */
typedef struct piece {
    uint32_t source, token, part;
    char *stage;
    uint64_t *barrier;
    uint32_t bytes;     /* of the item */
    uint32_t row_bytes; /* of which so many belong to the row; may be 0 */
} piece_t;

static __device__ __forceinline__ char *scales_of(const receive_t &r, uint64_t row)
{
    if (r.scales_expert_stride == 0) return r.scales + row * r.scales_token_stride;
    return r.scales + row / r.rows_of_expert * r.scales_expert_stride + row % r.rows_of_expert * r.scales_token_stride;
}

/* The scales in a piece, to one row. All lanes. */
static __device__ __forceinline__ void store_scales(const receive_t &r, const piece_t &p, uint64_t row)
{
    const uint64_t piece = (uint64_t)p.part * r.chunk;
    const uint32_t first = piece > r.item.scales ? (uint32_t)((piece - r.item.scales) / 4) : 0;
    const uint64_t end = (piece + p.bytes - r.item.scales) / 4; /* the piece has some */
    char *to = scales_of(r, row);
    for (uint32_t i = first + threadIdx.x % 32; i < end && i < r.item.scale_words; i += 32)
        *(uint32_t *)(to + i * r.scales_stride) = *(const uint32_t *)(p.stage + (r.item.scales + i * 4 - piece));
}

/* A selection of the token that is here: its row, or nowhere. What a source wrote is compared with what it counted. */
static __device__ __forceinline__ int64_t place_pick(const receive_t &r, const board_t &b, uint32_t source,
                                                     xep_cuda_pick_t pick, uint32_t *local_p)
{
    const uint32_t local = (uint32_t)pick.expert - b.first_expert, pair = local * r.at.nranks + source;
    *local_p = local;
    return local < b.experts && pick.ordinal < b.count[pair] ? (int64_t)b.begin[pair] + pick.ordinal : NOWHERE;
}

/* Once for each row: with part 0 of its item. Weights that do not travel are 1. */
static __device__ __forceinline__ void store_metadata(const receive_t &r, const char *head, const piece_t &p,
                                                      uint32_t k, int64_t row, uint32_t local)
{
    const float *weights = (const float *)(head + r.at.head_weights);
    r.src_token[row] = (int32_t)p.token;
    r.weights[row] = r.notice.sends_weights ? weights[(uint64_t)p.token * r.notice.topk + k] : 1.0f;
    store_index(r, row, (int32_t)local);
}

/* Where a selection of a token that came has its row, for combines that sum here, or push. */
static __device__ __forceinline__ void note_row(const receive_t &r, const piece_t &p, uint32_t k, int64_t row)
{
    r.came.rows[(p.source * r.at.tokens + p.token) * r.notice.topk + k] =
        row == NOWHERE ? (uint32_t)XEP_CUDA_LL_NO_ROW : (uint32_t)row;
}

static __device__ __forceinline__ const xep_cuda_pick_t *picks_of(const receive_t &r, const board_t &b, uint64_t turn,
                                                                  const piece_t &p)
{
    return (const xep_cuda_pick_t *)head_in(r.at, b.heap, turn, p.source) + (uint64_t)p.token * r.notice.topk;
}

/* In the ring of its source. */
static __device__ __forceinline__ const char *piece_at(const receive_t &r, uint64_t turn, const piece_t &p)
{
    return items_at(r.at, turn, p.source) + p.token * r.item.stride + (uint64_t)p.part * r.chunk;
}

/* One lane. */
static __device__ __forceinline__ void fetch_piece(const piece_t &p, const char *from)
{
    expect_bytes(p.barrier, p.bytes);
    begin_load(p.stage, from, p.bytes, p.barrier);
}

/*
 * Fetches a piece once, if it is not on its way, and stores it to the rows of all of the token's selections. A warp.
 * Returns whether it is on its way still: nobody here wants it.
 */
static __device__ __forceinline__ int move_piece(const receive_t &r, const board_t &b, uint64_t turn, const piece_t &p,
                                                 int on_its_way, uint32_t *phase)
{
    int fetched = 0;
    const uint32_t lane = threadIdx.x % 32, topk = r.notice.topk;
    const char *head = head_in(r.at, b.heap, turn, p.source);
    const xep_cuda_pick_t *picks = picks_of(r, b, turn, p);
    for (uint32_t begin = 0; begin < topk; begin += 32) {
        const uint32_t k = begin + lane;
        uint32_t local = 0;
        const int64_t row = k < topk ? place_pick(r, b, p.source, picks[k], &local) : NOWHERE;
        uint32_t here = __ballot_sync(UINT32_MAX, row != NOWHERE);
        if (p.part == 0 && k < topk) note_row(r, p, k, row);
        if (here == 0) continue;
        if (!fetched && !on_its_way && lane == 0) fetch_piece(p, piece_at(r, turn, p));
        /* metadata is stored while the piece is on its way */
        if (p.part == 0 && row != NOWHERE) store_metadata(r, head, p, k, row, local);
        if (!fetched) wait_load(p.barrier, (*phase)++ & 1);
        fetched = 1;
        for (; here != 0; here &= here - 1) {
            const int64_t to = __shfl_sync(UINT32_MAX, row, __ffs((int)here) - 1);
            if (lane == 0 && p.row_bytes != 0)
                begin_store(r.x + to * r.x_stride + (uint64_t)p.part * r.chunk, p.stage, p.row_bytes);
            if ((uint64_t)p.part * r.chunk + p.bytes > r.item.scales && r.item.scale_words != 0)
                store_scales(r, p, (uint64_t)to);
        }
    }
    /* the stage may be used again when the stores have read it; move_rows() waits until they are done */
    if (fetched && lane == 0) {
        end_group();
        wait_read();
    }
    __syncwarp();
    return on_its_way && !fetched;
}

/* The pieces of a warp: the first one, and how far it is to the next. */
typedef struct pieces {
    uint32_t row, item, parts; /* bytes of both, pieces of an item */
    uint64_t first, step, end;
    char *stage;
    uint64_t *barrier;
} pieces_t;

/* Rows and items are multiples of 64 bytes apart, so that a copy of a multiple of 16 bytes stays within them. */
static __device__ __forceinline__ pieces_t lay_pieces(const receive_t &r, char *stages)
{
    const uint32_t warps = blockDim.x / 32, warp = threadIdx.x / 32;
    pieces_t all;
    all.row = (uint32_t)((r.item.row_bytes + 15) & ~UINT64_C(15));
    all.item = (uint32_t)((r.item.scales + r.item.scale_words * 4 + 15) & ~UINT64_C(15));
    all.parts = (all.item + r.chunk - 1) / r.chunk;
    all.first = warp * gridDim.x + blockIdx.x;
    all.step = gridDim.x * warps;
    all.end = r.at.tokens * r.at.nranks * all.parts;
    all.stage = stages + (uint64_t)warp * r.chunk;
    all.barrier = (uint64_t *)(stages + (uint64_t)warps * r.chunk) + warp;
    return all;
}

/* Sources take turns, so that no rank is everyone's first. */
static __device__ __forceinline__ piece_t find_piece(const receive_t &r, const pieces_t &all, uint64_t u)
{
    piece_t p = {(uint32_t)((r.at.rank + u) % r.at.nranks),
                 (uint32_t)(u / r.at.nranks / all.parts),
                 (uint32_t)(u / r.at.nranks % all.parts),
                 all.stage,
                 all.barrier,
                 0,
                 0};
    const uint32_t before = p.part * r.chunk;
    p.bytes = all.item - before < r.chunk ? all.item - before : r.chunk;
    p.row_bytes = all.row <= before ? 0 : all.row - before < r.chunk ? all.row - before : r.chunk;
    return p;
}

/*
 * The first piece of a warp is on its way while all blocks find out whether rows may move, and where to. If they may
 * not, or the source has fewer tokens, nobody looks at what came. 1: it is to be waited for, as the barrier's phase 0.
 */
static __device__ __forceinline__ int fetch_first(const receive_t &r, const board_t &b, const pieces_t &all,
                                                  uint64_t turn, const piece_t &p, const char *from)
{
    if (all.first >= all.end) return 0;
    int mine = 0;
    for (uint32_t k = threadIdx.x % 32; k < r.notice.topk; k += 32)
        mine |= (uint32_t)picks_of(r, b, turn, p)[k].expert - b.first_expert < b.experts;
    const int begun = __any_sync(UINT32_MAX, mine);
    if (begun && threadIdx.x % 32 == 0) fetch_piece(p, from);
    return begun;
}

/* Each wait turns the phase of the warp's barrier. No copy outlives its block. */
static __device__ void move_rows(const receive_t &r, const board_t &b, uint64_t turn, const pieces_t &all,
                                 int on_its_way)
{
    uint32_t phase = 0;
    for (uint64_t u = all.first; u < all.end; u += all.step) {
        const piece_t p = find_piece(r, all, u);
        if (p.token < b.notice[p.source].tokens) on_its_way = move_piece(r, b, turn, p, on_its_way, &phase);
        if (on_its_way) wait_load(p.barrier, phase++ & 1);
        on_its_way = 0;
    }
    wait_stored();
}

/* ---- the phase ---- */

/* Whether the packets of all ranks have come that are not out. All blocks. */
static __device__ __forceinline__ int await_packets(const receive_t &r, uint64_t epoch)
{
    const uint64_t value = epoch * XEP_CUDA_WHOLE;
    const auto at = [&](uint32_t s) { return (const char *)&words_at(r.at, r.at.rank, 0, s)->sent; };
    if (!leaves_out(r.at.outs)) return wait_words(r.at.nranks, at, value, r.deadline);
    const waiter_t w = {r.at.outs, r.at.peer, r.at.rank, r.at.nranks};
    return decide(w, 1, at, value, epoch, r.deadline, [](uint32_t, uint32_t) {});
}

/* What a block has in shared memory: a stage for each warp, their barriers, the board. Before it waits for anything. */
typedef struct receiving {
    pieces_t pieces;
    board_t board;
} receiving_t;

static __device__ __forceinline__ receiving_t open_receive(const receive_t &r, char *shared)
{
    const uint32_t warps = blockDim.x / 32;
    uint64_t *barriers = (uint64_t *)(shared + (uint64_t)warps * r.chunk);
    const receiving_t in = {lay_pieces(r, shared), lay_board(r, (char *)(barriers + warps))};
    if (threadIdx.x < warps) open_barrier(&barriers[threadIdx.x]);
    share_barriers();
    return in;
}

/* All threads of all blocks. */
static __device__ __forceinline__ void receive_packets(const receive_t &r, const receiving_t &in, uint64_t epoch,
                                                       uint64_t turn)
{
    __shared__ uint32_t end;
    const board_t &b = in.board;
    /* found while nothing is there yet */
    const piece_t first = find_piece(r, in.pieces, in.pieces.first);
    const char *from = piece_at(r, turn, first);
    int verdict = XEP_CUDA_LL_LOST, on_its_way = 0;
    const int here = await_packets(r, epoch);
    if (here) {
        /* the words were read by ordinary loads, rows are fetched by bulk copies, which must come after */
        fence_for_bulk();
        on_its_way = fetch_first(r, b, in.pieces, turn, first, from);
    }
    if (here)
        verdict = judge(r, epoch, turn, b, [&] {
            const uint32_t rows = lay_experts(r, b);
            if (threadIdx.x == 0) end = rows;
        });
    if (verdict == XEP_CUDA_LL_HERE) {
        lay_pairs(r, b);
        if (blockIdx.x == 0) publish(r, b, end);
        move_rows(r, b, turn, in.pieces, on_its_way);
        fill_unused(r, b, end);
        /* who has left this rank out may have written over what it has read, but only after telling it */
        if (leaves_out(r.at.outs) && threadIdx.x == 0)
            is_left_by_others(waiter_t{r.at.outs, r.at.peer, r.at.rank, r.at.nranks});
    } else if (on_its_way) {
        wait_load(in.pieces.barrier, 0);
    }
    if (verdict == XEP_CUDA_LL_LOST) lose_step(&r.at.now->lost, epoch);
    /* combines of the handle look at it: they sum nothing unless the rows are here */
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    if (r.sends) count_dispatch(r, epoch, turn);
    r.at.slot->verdict = verdict;
    r.at.slot->area = 0;
}

#endif
