/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Rows to their final places: read once, from there to every rank that gets them. Bulk copies go through shared memory
 * and need no registers, so that 8 to 16 of a device's multiprocessors fill its links; the last warps of each block
 * move what belongs to the rows.
 */
#include "cuda_bulk.cuh"
#include "cuda_kernels.h"
#include "cuda_words.cuh"

enum { KNOWN_RANKS = 64 }; /* of more, places are looked up in global memory */

/* ---- where a row goes ---- */

static __device__ __forceinline__ char *row_at(const xep_cuda_dispatch_t &d, xep_cuda_dest_t dest)
{
    return d.there[dest.rank].area[XEP_CUDA_X] + dest.row * d.row_stride;
}

static __device__ __forceinline__ const xep_cuda_dest_t *dests_of(const xep_cuda_dispatch_t &d, uint32_t token)
{
    return d.dest + (uint64_t)token * d.max_dests;
}

/* ---- rows that bulk copies can move: one thread of a warp keeps some chunks on their way ---- */

/* What one warp moves: of the chunks of all tokens those numbered lane, lane + lanes and so on, count of them. */
typedef struct chunks {
    char *stage;       /* [stages][XEP_CUDA_CHUNK] */
    uint64_t *barrier; /* [stages] */
    uint32_t of_row;   /* chunks of a row */
    uint32_t lane, lanes, count;
} chunks_t;

static __device__ __forceinline__ uint32_t chunk_bytes(const xep_cuda_dispatch_t &d, uint32_t part)
{
    uint64_t left = d.row_bytes - (uint64_t)part * XEP_CUDA_CHUNK;
    return left < XEP_CUDA_CHUNK ? (uint32_t)left : XEP_CUDA_CHUNK;
}

static __device__ __forceinline__ void load_chunk(const xep_cuda_dispatch_t &d, const chunks_t &c, uint32_t i,
                                                  uint32_t stage_bytes)
{
    uint32_t unit = c.lane + i * c.lanes, token = unit / c.of_row, part = unit % c.of_row, stage = i % d.stages;
    expect_bytes(&c.barrier[stage], chunk_bytes(d, part));
    begin_load(c.stage + stage * stage_bytes, d.x + token * d.x_stride + (uint64_t)part * XEP_CUDA_CHUNK,
               chunk_bytes(d, part), &c.barrier[stage]);
}

/* To all ranks that get the row; a group of its own, so that the stage of the chunk before can be waited for. */
static __device__ __forceinline__ void store_chunk(const xep_cuda_dispatch_t &d, const chunks_t &c, uint32_t i,
                                                   uint32_t stage_bytes)
{
    uint32_t unit = c.lane + i * c.lanes, token = unit / c.of_row, part = unit % c.of_row;
    const xep_cuda_dest_t *dest = dests_of(d, token);
    for (uint32_t n = 0; n < d.max_dests && dest[n].rank != XEP_CUDA_NOBODY; n++)
        begin_store(row_at(d, dest[n]) + (uint64_t)part * XEP_CUDA_CHUNK, c.stage + i % d.stages * stage_bytes,
                    chunk_bytes(d, part));
    end_group();
}

/*
 * One thread. All stages but one are loaded ahead. Bit s of phases is the phase that stage s is waited for in. It ends
 * when all stores are done: only then may the block count itself among those whose rows are there.
 */
static __device__ void move_chunks(const xep_cuda_dispatch_t &d, const chunks_t &c, uint32_t stage_bytes)
{
    uint32_t phases = 0;
    for (uint32_t i = 0; i + 1 < d.stages && i < c.count; i++) load_chunk(d, c, i, stage_bytes);
    for (uint32_t i = 0; i < c.count; i++) {
        uint32_t stage = i % d.stages;
        wait_load(&c.barrier[stage], phases >> stage & 1);
        phases ^= 1u << stage;
        store_chunk(d, c, i, stage_bytes);
        if (i + d.stages - 1 >= c.count) continue;
        /* the next load goes where the chunk before this one was: that has left when one group at most has not */
        wait_read_but_one();
        load_chunk(d, c, i + d.stages - 1, stage_bytes);
    }
    wait_stored();
}

/* ---- rows of any length and alignment: a warp a row ---- */

template <typename T> static __device__ __forceinline__ void copy_row(char *to, const char *from, uint64_t bytes)
{
    for (uint64_t i = threadIdx.x % 32; i < bytes / sizeof(T); i += 32) ((T *)to)[i] = ((const T *)from)[i];
}

/* In the widest unit that addresses and lengths here allow; rows of a slot are multiples of 64 bytes apart. */
static __device__ void move_rows(const xep_cuda_dispatch_t &d, uint32_t warp, uint32_t warps)
{
    uint64_t odd = (uint64_t)d.x | d.x_stride | d.row_bytes;
    for (uint32_t t = warp; t < d.tokens; t += warps) {
        const xep_cuda_dest_t *dest = dests_of(d, t);
        const char *row = d.x + t * d.x_stride;
        for (uint32_t n = 0; n < d.max_dests && dest[n].rank != XEP_CUDA_NOBODY; n++) {
            char *to = row_at(d, dest[n]);
            if (odd % 16 == 0) copy_row<int4>(to, row, d.row_bytes);
            else if (odd % 4 == 0) copy_row<uint32_t>(to, row, d.row_bytes);
            else copy_row<char>(to, row, d.row_bytes);
        }
    }
}

/* ---- what belongs to rows: a warp a token ---- */

/* Where the rows of this rank begin at another, and what that one's experts are: at hand for each token. */
typedef struct there {
    xep_cuda_there_t at;
    uint32_t first_expert, end_expert;
} there_t;

static __device__ __forceinline__ there_t find_rank(const xep_cuda_dispatch_t &d, int32_t rank)
{
    return {d.there[rank], d.first_expert[rank], d.first_expert[rank + 1]};
}

/* As the receiver sees it: its own experts are counted from 0, those of others are -1 and have the weight 0. */
static __device__ __forceinline__ void store_selection(const xep_cuda_dispatch_t &d, const there_t &there, uint64_t row,
                                                       int32_t expert, float weight, uint32_t k)
{
    const uint32_t local = (uint32_t)expert - there.first_expert; /* of -1 and of lower ranks: 2^31 and more */
    const int here = local < there.end_expert - there.first_expert;
    uint64_t at = row * d.topk + k;
    if (d.wide) ((int64_t *)there.at.area[XEP_CUDA_TOPK_IDX])[at] = here ? (int64_t)local : -1;
    else ((int32_t *)there.at.area[XEP_CUDA_TOPK_IDX])[at] = here ? (int32_t)local : -1;
    if (d.weights != nullptr) ((float *)there.at.area[XEP_CUDA_WEIGHTS])[at] = here ? weight : 0.0f;
}

/* The lanes share the (rank, selection) pairs. */
static __device__ __forceinline__ void store_selections(const xep_cuda_dispatch_t &d, const there_t *ranks,
                                                        uint32_t token, const xep_cuda_dest_t *dests)
{
    const uint32_t pairs = d.max_dests * d.topk;
    for (uint32_t i = threadIdx.x % 32; i < pairs; i += 32) {
        const uint32_t k = i % d.topk;
        const xep_cuda_dest_t dest = dests[i / d.topk];
        const int32_t expert = d.chosen[(uint64_t)token * d.topk + k];
        float weight = d.weights == nullptr ? 0 : ((const float *)(d.weights + token * d.weights_stride))[k];
        if (dest.rank == XEP_CUDA_NOBODY) break;
        const there_t there = ranks == nullptr ? find_rank(d, dest.rank) : ranks[dest.rank];
        store_selection(d, there, dest.row, expert, weight, k);
        if (k == 0) ((int32_t *)there.at.area[XEP_CUDA_SRC_TOKEN])[dest.row] = (int32_t)token;
    }
}

/* The lanes share the scales of the token, which all its ranks get. */
static __device__ __forceinline__ void store_scales(const xep_cuda_dispatch_t &d, const there_t *ranks, uint32_t token,
                                                    const xep_cuda_dest_t *dests)
{
    const char *from = d.scales + (int64_t)token * d.scales_token_stride;
    for (uint32_t s = threadIdx.x % 32; s < d.nscales; s += 32) {
        const uint32_t scale = *(const uint32_t *)(from + (int64_t)s * d.scales_stride);
        for (uint32_t n = 0; n < d.max_dests && dests[n].rank != XEP_CUDA_NOBODY; n++) {
            const there_t there = ranks == nullptr ? find_rank(d, dests[n].rank) : ranks[dests[n].rank];
            ((uint32_t *)there.at.area[XEP_CUDA_SCALES])[(uint64_t)dests[n].row * d.nscales + s] = scale;
        }
    }
}

static __device__ void move_metadata(const xep_cuda_dispatch_t &d, const there_t *ranks, uint32_t warp, uint32_t warps)
{
    for (uint32_t t = warp; t < d.tokens; t += warps) {
        const xep_cuda_dest_t *dests = dests_of(d, t);
        store_selections(d, ranks, t, dests);
        store_scales(d, ranks, t, dests);
    }
}

/*
 * Shared memory: for each copying warp its stages, then its barriers. The first "copying" warps move rows, the
 * rest what belongs to them.
 */
static __device__ void move(const xep_cuda_dispatch_t &d, char *shared)
{
    __shared__ there_t ranks[KNOWN_RANKS];
    const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const uint32_t stage_bytes = (uint32_t)(d.row_bytes < XEP_CUDA_CHUNK ? d.row_bytes : XEP_CUDA_CHUNK);
    uint64_t *barriers = (uint64_t *)(shared + (uint64_t)d.copying * d.stages * stage_bytes);
    for (uint32_t i = threadIdx.x; i < d.copying * d.stages; i += blockDim.x) open_barrier(&barriers[i]);
    for (uint32_t r = threadIdx.x; r < d.nranks && d.nranks <= KNOWN_RANKS; r += blockDim.x)
        ranks[r] = find_rank(d, (int32_t)r);
    share_barriers();
    if (warp >= d.copying) {
        move_metadata(d, d.nranks <= KNOWN_RANKS ? ranks : nullptr, (warp - d.copying) * gridDim.x + blockIdx.x,
                      (warps - d.copying) * gridDim.x);
    } else if (d.stages == 0) {
        move_rows(d, blockIdx.x * d.copying + warp, gridDim.x * d.copying);
    } else if (threadIdx.x % 32 == 0) {
        uint32_t of_row = (uint32_t)((d.row_bytes + XEP_CUDA_CHUNK - 1) / XEP_CUDA_CHUNK), units = d.tokens * of_row;
        chunks_t c = {shared + (uint64_t)warp * d.stages * stage_bytes,
                      barriers + warp * d.stages,
                      of_row,
                      blockIdx.x * d.copying + warp,
                      gridDim.x * d.copying,
                      0};
        if (c.lane < units) c.count = (units - c.lane + c.lanes - 1) / c.lanes;
        move_chunks(d, c, stage_bytes);
    }
}

/* Rows that nobody sent select no expert; all of them where nothing moves. */
static __device__ void mark_tail(const xep_cuda_dispatch_t &d, int verdict, uint64_t words)
{
    const uint64_t begin = verdict == XEP_CUDA_GO ? d.src_begin[d.nranks] * words : 0;
    const uint64_t me = blockIdx.x * blockDim.x + threadIdx.x, all = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = begin + me; i < d.tail_words; i += all) d.tail[i] = UINT32_MAX;
}

/*
 * Behind the kernel of the counts, which has left the verdict, the places and the epoch on the device. Where that has
 * lost step nobody is told anything, so ranks that go on wait for this one in vain, and name it.
 */
extern "C" __global__ void __launch_bounds__(1024, 1)
    xep_cuda_dispatch(const __grid_constant__ xep_cuda_dispatch_t dispatch)
{
    extern __shared__ __align__(128) char shared[];
    const xep_cuda_dispatch_t &d = dispatch;
    const int verdict = *d.verdict;
    const uint64_t epoch = d.now->epoch;
    if (is_stale(d.life)) return;
    if (d.tail != nullptr) mark_tail(d, verdict, (uint64_t)d.topk * (d.wide ? 2 : 1));
    if (verdict == XEP_CUDA_GO) move(d, shared);
    if (!is_last_block(d.blocks_done) || verdict == XEP_CUDA_LOST) return;
    /* also where nothing moves: until all have said so, a rank still looks at the records of the others */
    tell_all(d.peer, d.rank, d.nranks, d.word, d.word_stride, epoch);
    if (!wait_all(d.peer[d.rank], d.nranks, d.word, d.word_stride, epoch, d.deadline)) lose_step(&d.now->lost, epoch);
}
