/* SPDX-License-Identifier: BSD-3-Clause */

/** How a block moves rows, and what belongs to them, once it knows where they go. */
#ifndef XEP_CUDA_MOVE_CUH
#define XEP_CUDA_MOVE_CUH

#include "cuda_bulk.cuh"
#include "cuda_copy.cuh"
#include "cuda_counts.cuh"
#include "cuda_plan.cuh"

/* What a block knows of a dispatch, once all ranks have told. */
typedef struct moving {
    const dispatch_t &d;
    const xep_cuda_plan_t &plan; /* in shared memory, if this block has made it */
    board_t board;
} moving_t;

/* ---- where a row goes ---- */

static __device__ __forceinline__ char *row_at(const moving_t &m, xep_cuda_dest_t dest)
{
    return m.board.ranks[dest.rank].at.area[XEP_CUDA_X] + dest.row * m.d.row_stride;
}

static __device__ __forceinline__ const xep_cuda_dest_t *dests_of(const moving_t &m, uint32_t token)
{
    return m.plan.dest + (uint64_t)token * m.plan.max_dests;
}

/* The tokens whose rows this launch moves. */
static __device__ __forceinline__ uint32_t first_token(const dispatch_t &d)
{
    return d.part == XEP_CUDA_REST ? d.counts.header.first : 0;
}

static __device__ __forceinline__ uint32_t end_token(const dispatch_t &d)
{
    return d.part == XEP_CUDA_FIRST ? d.counts.header.first : d.plan.tokens;
}

/* ---- rows that bulk copies can move: one thread of a warp keeps some chunks on their way ---- */

/* What one warp moves: of the chunks of these tokens those numbered lane, lane + lanes and so on, count of them. */
typedef struct chunks {
    char *stage;       /* [stages][XEP_CUDA_CHUNK] */
    uint64_t *barrier; /* [stages] */
    uint32_t of_row;   /* chunks of a row */
    uint32_t lane, lanes, count;
} chunks_t;

static __device__ __forceinline__ uint32_t chunk_bytes(const dispatch_t &d, uint32_t part)
{
    uint64_t left = d.row_bytes - (uint64_t)part * XEP_CUDA_CHUNK;
    return left < XEP_CUDA_CHUNK ? (uint32_t)left : XEP_CUDA_CHUNK;
}

static __device__ __forceinline__ void load_chunk(const dispatch_t &d, const chunks_t &c, uint32_t i,
                                                  uint32_t stage_bytes)
{
    uint32_t unit = c.lane + i * c.lanes, token = unit / c.of_row, part = unit % c.of_row, stage = i % d.stages;
    expect_bytes(&c.barrier[stage], chunk_bytes(d, part));
    begin_load(c.stage + stage * stage_bytes, d.x + token * d.x_stride + (uint64_t)part * XEP_CUDA_CHUNK,
               chunk_bytes(d, part), &c.barrier[stage]);
}

/* Where the dispatch is without the rank nothing goes there. */
static __device__ __forceinline__ int takes_rows(const moving_t &m, xep_cuda_dest_t dest)
{
    return m.board.ranks[dest.rank].at.area[XEP_CUDA_X] != nullptr;
}

/* To all ranks that get the row; a group of its own, so that the stage of the chunk before can be waited for. */
static __device__ __forceinline__ void store_chunk(const moving_t &m, const chunks_t &c, uint32_t i,
                                                   uint32_t stage_bytes)
{
    const dispatch_t &d = m.d;
    uint32_t unit = c.lane + i * c.lanes, token = unit / c.of_row, part = unit % c.of_row;
    const xep_cuda_dest_t *dest = dests_of(m, token);
    /* first to the ranks behind this one: else all ranks would begin with the same one */
    for (int behind = 1; behind >= 0; behind--)
        for (uint32_t n = 0; n < m.plan.max_dests && dest[n].rank != XEP_CUDA_NOBODY; n++)
            if ((dest[n].rank > (int32_t)d.rank) == behind && takes_rows(m, dest[n]))
                begin_store(row_at(m, dest[n]) + (uint64_t)part * XEP_CUDA_CHUNK, c.stage + i % d.stages * stage_bytes,
                            chunk_bytes(d, part));
    end_group();
}

/* One thread, before it is known whether rows may move: all stages but one. */
static __device__ __forceinline__ void load_ahead(const dispatch_t &d, const chunks_t &c, uint32_t stage_bytes)
{
    for (uint32_t i = 0; i + 1 < d.stages && i < c.count; i++) load_chunk(d, c, i, stage_bytes);
}

/* Where nothing moves: no copy outlives its block. */
static __device__ __forceinline__ void drop_loads(const dispatch_t &d, const chunks_t &c)
{
    for (uint32_t i = 0; i + 1 < d.stages && i < c.count; i++) wait_load(&c.barrier[i], 0);
}

/*
 * The same thread. Bit s of phases is the phase that stage s is waited for in. It ends when all stores are done: only
 * then may the block count itself among those whose rows are there.
 */
static __device__ void move_chunks(const moving_t &m, const chunks_t &c, uint32_t stage_bytes)
{
    const dispatch_t &d = m.d;
    uint32_t phases = 0;
    for (uint32_t i = 0; i < c.count; i++) {
        uint32_t stage = i % d.stages;
        wait_load(&c.barrier[stage], phases >> stage & 1);
        phases ^= 1u << stage;
        store_chunk(m, c, i, stage_bytes);
        if (i + d.stages - 1 >= c.count) continue;
        /* the next load goes where the chunk before this one was: that has left when one group at most has not */
        wait_read_but_one();
        load_chunk(d, c, i + d.stages - 1, stage_bytes);
    }
    wait_stored();
}

/* What this warp moves; nothing, for those that move no rows, or not by bulk copies. */
static __device__ __forceinline__ chunks_t share_chunks(const dispatch_t &d, char *shared, uint64_t *barriers,
                                                        uint32_t stage_bytes)
{
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t of_row = (uint32_t)((d.row_bytes + XEP_CUDA_CHUNK - 1) / XEP_CUDA_CHUNK);
    const uint32_t units = warp < d.copying && d.stages != 0 ? end_token(d) * of_row : 0;
    chunks_t c = {shared + (uint64_t)warp * d.stages * stage_bytes,        barriers + warp * d.stages, of_row,
                  first_token(d) * of_row + blockIdx.x * d.copying + warp, gridDim.x * d.copying,      0};
    if (c.lane < units) c.count = (units - c.lane + c.lanes - 1) / c.lanes;
    return c;
}

/* ---- rows of any length and alignment: a warp a row ---- */

/* Rows of a slot are multiples of 64 bytes apart. */
static __device__ void move_rows(const moving_t &m, uint32_t warp, uint32_t warps)
{
    const dispatch_t &d = m.d;
    uint64_t odd = (uint64_t)d.x | d.x_stride | d.row_bytes;
    for (uint32_t t = first_token(d) + warp; t < end_token(d); t += warps) {
        const xep_cuda_dest_t *dest = dests_of(m, t);
        const char *row = d.x + t * d.x_stride;
        for (uint32_t n = 0; n < m.plan.max_dests && dest[n].rank != XEP_CUDA_NOBODY; n++)
            if (takes_rows(m, dest[n])) copy_row(row_at(m, dest[n]), row, d.row_bytes, odd);
    }
}

/* ---- what belongs to rows: a warp a token ---- */

/* As the receiver sees it: its own experts are counted from 0, those of others are -1 and have the weight 0. */
static __device__ __forceinline__ void store_selection(const moving_t &m, const xep_cuda_rank_t &there, uint64_t row,
                                                       int32_t expert, float weight, uint32_t k)
{
    const uint32_t local = (uint32_t)expert - there.first_expert; /* of -1 and of lower ranks: 2^31 and more */
    const int here = local < there.end_expert - there.first_expert;
    uint64_t at = row * m.plan.topk + k;
    if (m.d.wide) ((int64_t *)there.at.area[XEP_CUDA_TOPK_IDX])[at] = here ? (int64_t)local : -1;
    else ((int32_t *)there.at.area[XEP_CUDA_TOPK_IDX])[at] = here ? (int32_t)local : -1;
    if (m.d.weights != nullptr) ((float *)there.at.area[XEP_CUDA_WEIGHTS])[at] = here ? weight : 0.0f;
}

/* The lanes share the (rank, selection) pairs. */
static __device__ __forceinline__ void store_selections(const moving_t &m, uint32_t token, const xep_cuda_dest_t *dests)
{
    const uint32_t topk = m.plan.topk, pairs = m.plan.max_dests * topk;
    for (uint32_t i = threadIdx.x % 32; i < pairs; i += 32) {
        const uint32_t k = i % topk;
        const xep_cuda_dest_t dest = dests[i / topk];
        const int32_t expert = m.plan.chosen[(uint64_t)token * topk + k];
        float weight = m.d.weights == nullptr ? 0 : ((const float *)(m.d.weights + token * m.d.weights_stride))[k];
        if (dest.rank == XEP_CUDA_NOBODY) break;
        if (!takes_rows(m, dest)) continue;
        const xep_cuda_rank_t &there = m.board.ranks[dest.rank];
        store_selection(m, there, dest.row, expert, weight, k);
        if (k == 0) ((int32_t *)there.at.area[XEP_CUDA_SRC_TOKEN])[dest.row] = (int32_t)token;
    }
}

/* The lanes share the scales of the token, which all its ranks get. */
static __device__ __forceinline__ void store_scales(const moving_t &m, uint32_t token, const xep_cuda_dest_t *dests)
{
    const dispatch_t &d = m.d;
    const char *from = d.scales + (int64_t)token * d.scales_token_stride;
    for (uint32_t s = threadIdx.x % 32; s < d.nscales; s += 32) {
        const uint32_t scale = *(const uint32_t *)(from + (int64_t)s * d.scales_stride);
        for (uint32_t n = 0; n < m.plan.max_dests && dests[n].rank != XEP_CUDA_NOBODY; n++) {
            if (!takes_rows(m, dests[n])) continue;
            char *scales = m.board.ranks[dests[n].rank].at.area[XEP_CUDA_SCALES];
            ((uint32_t *)scales)[(uint64_t)dests[n].row * d.nscales + s] = scale;
        }
    }
}

/* Stores what combines and cached dispatches will read of a plan that each block has made in its own memory. */
static __device__ __forceinline__ void keep_token(const moving_t &m, uint32_t token, const xep_cuda_dest_t *dests)
{
    const uint64_t first = (uint64_t)token * m.plan.topk;
    for (uint32_t n = threadIdx.x % 32; n < m.plan.max_dests; n += 32)
        m.d.plan.dest[(uint64_t)token * m.plan.max_dests + n] = dests[n];
    for (uint32_t k = threadIdx.x % 32; k < m.plan.topk; k += 32) m.d.plan.chosen[first + k] = m.plan.chosen[first + k];
}

static __device__ void move_metadata(const moving_t &m, uint32_t warp, uint32_t warps)
{
    for (uint32_t t = warp; t < m.plan.tokens; t += warps) {
        const xep_cuda_dest_t *dests = dests_of(m, t);
        store_selections(m, t, dests);
        store_scales(m, t, dests);
        if (m.d.planning) keep_token(m, t, dests);
    }
}

/* The warps of a block share the work: the first "copying" ones move rows, the rest what belongs to them. */
static __device__ __forceinline__ void move(const moving_t &m, const chunks_t &c, uint32_t stage_bytes)
{
    const dispatch_t &d = m.d;
    const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if (warp >= d.copying && d.part != XEP_CUDA_REST)
        move_metadata(m, (warp - d.copying) * gridDim.x + blockIdx.x, (warps - d.copying) * gridDim.x);
    else if (warp >= d.copying) return;
    else if (d.stages == 0) move_rows(m, blockIdx.x * d.copying + warp, gridDim.x * d.copying);
    else if (threadIdx.x % 32 == 0) move_chunks(m, c, stage_bytes);
}

#endif
