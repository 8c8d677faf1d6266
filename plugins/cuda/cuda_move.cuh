/* SPDX-License-Identifier: BSD-3-Clause */

/** Rows of a dispatch to their final places: chunks of them by bulk copies, or a warp a row. */
#ifndef XEP_CUDA_MOVE_CUH
#define XEP_CUDA_MOVE_CUH

#include "cuda_bulk.cuh"
#include "cuda_coming.cuh"
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

/* ---- rows that bulk copies can move: one thread of a warp keeps some chunks on their way ---- */

/* What one warp moves: of the chunks of all tokens those numbered lane, lane + lanes and so on, count of them. */
typedef struct chunks {
    char *stage;                       /* [stages][XEP_CUDA_CHUNK] */
    uint64_t *barrier;                 /* [stages] */
    uint32_t of_row;                   /* chunks of a row */
    uint32_t lane, lanes, count, most; /* of any warp */
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
 * then may the block count itself among those whose rows are there. So it is with parts.
 */
static __device__ void move_chunks(const moving_t &m, const chunks_t &c, uint32_t stage_bytes)
{
    const dispatch_t &d = m.d;
    passing_t parts = begin_passing(d.coming, c.most);
    uint32_t phases = 0;
    for (uint32_t i = 0; i < c.count; i++) {
        uint32_t stage = i % d.stages;
        wait_load(&c.barrier[stage], phases >> stage & 1);
        phases ^= 1u << stage;
        store_chunk(m, c, i, stage_bytes);
        if (is_part(parts, i + 1)) {
            wait_stored();
            pass_parts(d.coming, &parts, i + 1);
        }
        if (i + d.stages - 1 >= c.count) continue;
        /* the next load goes where the chunk before this one was: that has left when one group at most has not */
        wait_read_but_one();
        load_chunk(d, c, i + d.stages - 1, stage_bytes);
    }
    wait_stored();
    pass_parts(d.coming, &parts, c.most);
}

/* What this warp moves; nothing, for those that move no rows, or not by bulk copies. */
static __device__ __forceinline__ chunks_t share_chunks(const dispatch_t &d, char *shared, uint64_t *barriers,
                                                        uint32_t stage_bytes)
{
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t of_row = (uint32_t)((d.row_bytes + XEP_CUDA_CHUNK - 1) / XEP_CUDA_CHUNK);
    const uint32_t all = d.stages != 0 ? d.plan.tokens * of_row : 0, units = warp < d.copying ? all : 0;
    chunks_t c = {shared + (uint64_t)warp * d.stages * stage_bytes,
                  barriers + warp * d.stages,
                  of_row,
                  blockIdx.x * d.copying + warp,
                  gridDim.x * d.copying,
                  0,
                  (all + gridDim.x * d.copying - 1) / (gridDim.x * d.copying)};
    if (c.lane < units) c.count = (units - c.lane + c.lanes - 1) / c.lanes;
    return c;
}

/* ---- rows of any length and alignment: a warp a row ---- */

template <typename T> static __device__ __forceinline__ void copy_row(char *to, const char *from, uint64_t bytes)
{
    for (uint64_t i = threadIdx.x % 32; i < bytes / sizeof(T); i += 32) ((T *)to)[i] = ((const T *)from)[i];
}

/* In the widest unit that addresses and lengths here allow; rows of a slot are multiples of 64 bytes apart. */
static __device__ void move_rows(const moving_t &m, uint32_t warp, uint32_t warps)
{
    const dispatch_t &d = m.d;
    uint64_t odd = (uint64_t)d.x | d.x_stride | d.row_bytes;
    for (uint32_t t = warp; t < m.plan.tokens; t += warps) {
        const xep_cuda_dest_t *dest = dests_of(m, t);
        const char *row = d.x + t * d.x_stride;
        for (uint32_t n = 0; n < m.plan.max_dests && dest[n].rank != XEP_CUDA_NOBODY; n++) {
            if (!takes_rows(m, dest[n])) continue;
            char *to = row_at(m, dest[n]);
            if (odd % 16 == 0) copy_row<int4>(to, row, d.row_bytes);
            else if (odd % 4 == 0) copy_row<uint32_t>(to, row, d.row_bytes);
            else copy_row<char>(to, row, d.row_bytes);
        }
    }
}

#endif
