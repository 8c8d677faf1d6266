/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The receive phase of a dispatch: from what all ranks have told, every block finds the places of all rows, and so
 * whether they fit, on its own; then each row is fetched once, from its source, and stored wherever it belongs.
 */
#include <xep/xep.h>

#include "cuda_bulk.cuh"
#include "cuda_ll_place.cuh"
#include "cuda_words.cuh"

typedef xep_cuda_ll_receive_t receive_t;

enum { NOWHERE = -1 };

/* In shared memory: what a block has made of the notices and the counts. */
typedef struct board {
    ll_notice_t *notice; /* [nranks] */
    uint64_t *rows;      /* [nranks] that each rank gets; padded: of its largest expert */
    uint32_t *begin;     /* [L][nranks] */
    uint32_t *count;     /* [L][nranks] */
    uint32_t *first;     /* [L] */
    uint32_t *total;     /* [experts] of all ranks */
    uint32_t *own;       /* [L] of which these are this rank's */
    uint32_t experts;    /* L */
    uint32_t first_expert;
} board_t;

/* As the host has measured it: cuda_ll_dispatch.c. */
static __device__ __forceinline__ board_t lay_board(const receive_t &r, char *shared)
{
    board_t b;
    b.first_expert = r.at.first_expert[r.at.rank];
    b.experts = r.at.first_expert[r.at.rank + 1] - b.first_expert;
    b.notice = (ll_notice_t *)shared;
    b.rows = (uint64_t *)(b.notice + r.at.nranks);
    b.begin = (uint32_t *)(b.rows + r.at.nranks);
    b.count = b.begin + b.experts * r.at.nranks;
    b.first = b.count + b.experts * r.at.nranks;
    b.total = b.first + b.experts;
    b.own = b.total + b.first_expert;
    return b;
}

/* ---- what was told ---- */

/* Copies, so that what is checked is what is used. */
static __device__ __forceinline__ void take_notices(const receive_t &r, uint64_t turn, const board_t &b)
{
    const uint32_t words = sizeof(ll_notice_t) / 8;
    for (uint32_t i = threadIdx.x; i < r.at.nranks * words; i += blockDim.x)
        ((uint64_t *)b.notice)[i] = ((const volatile uint64_t *)notice_at(r.at, r.at.rank, turn, i / words))[i % words];
    __syncthreads();
}

static __device__ __forceinline__ uint64_t align_up(uint64_t rows, uint32_t alignment)
{
    return alignment == 1 ? rows : (rows + alignment - 1) / alignment * alignment;
}

static __device__ __forceinline__ int is_sound(const receive_t &r, const ll_notice_t &n, uint64_t epoch)
{
    return n.epoch == epoch && n.tokens <= r.at.tokens && n.slot < r.at.slots && n.alignment >= 1 && n.padded <= 1 &&
           n.wrong <= 1;
}

/* As all ranks compare with their own, all find whether any two differ. */
static __device__ __forceinline__ int is_agreed(const receive_t &r, const ll_notice_t &n)
{
    const ll_notice_t &own = r.notice;
    return n.refused == own.refused && n.dtype == own.dtype && n.hidden == own.hidden && n.topk == own.topk &&
           n.quant == own.quant && n.nscales == own.nscales && n.scales_dtype == own.scales_dtype &&
           n.sends_weights == own.sends_weights;
}

/* Selections of every expert, of all sources. 0: a count that none can be. All threads of the block. */
static __device__ __forceinline__ int add_counts(const receive_t &r, uint64_t turn, const board_t &b)
{
    int sane = 1;
    for (uint32_t e = threadIdx.x; e < r.at.experts; e += blockDim.x) {
        const uint32_t local = e - b.first_expert;
        uint32_t total = 0;
#pragma unroll 4
        for (uint32_t s = 0; s < r.at.nranks; s++) {
            const char *head = head_at(r.at, r.at.rank, turn, s);
            const uint32_t count = ((const volatile uint32_t *)(head + r.at.head_counts))[e];
            sane &= count <= b.notice[s].tokens * b.notice[s].topk;
            if (local < b.experts) b.count[local * r.at.nranks + s] = count;
            total += count;
        }
        b.total[e] = total;
    }
    return __syncthreads_and(sane);
}

/* What every rank gets, a warp a rank: all ranks add up the same. */
static __device__ __forceinline__ void add_rows(const receive_t &r, const board_t &b)
{
    for (uint32_t rank = threadIdx.x / 32; rank < r.at.nranks; rank += blockDim.x / 32) {
        const uint32_t alignment = b.notice[rank].alignment, padded = b.notice[rank].padded;
        uint64_t rows = 0;
        for (uint32_t e = r.at.first_expert[rank] + threadIdx.x % 32; e < r.at.first_expert[rank + 1]; e += 32) {
            if (!padded) rows += align_up(b.total[e], alignment);
            else if (b.total[e] > rows) rows = b.total[e];
        }
        for (int step = 16; step > 0; step /= 2) {
            const uint64_t other = __shfl_xor_sync(UINT32_MAX, rows, step);
            rows = !padded ? rows + other : other > rows ? other : rows;
        }
        if (threadIdx.x % 32 == 0) b.rows[rank] = rows;
    }
    __syncthreads();
}

/* The lowest rank whose rows do not fit, or nranks. All threads of the block. */
static __device__ __forceinline__ uint32_t find_full(const receive_t &r, const board_t &b)
{
    __shared__ uint32_t full;
    if (threadIdx.x == 0) full = r.at.nranks;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < r.at.nranks; i += blockDim.x)
        if (b.rows[i] > b.notice[i].capacity) atomicMin(&full, i);
    __syncthreads();
    return full;
}

/* One block, once for a buffer: the host has what it needs to say why, before the word. All its threads. */
static __device__ __forceinline__ void tell_refusal(const receive_t &r, const board_t &b, uint32_t full)
{
    const uint32_t words = r.at.nranks * sizeof(ll_notice_t) / 8;
    if (r.refusal->refused) return;
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x)
        ((volatile uint64_t *)r.mirror)[i] = ((const uint64_t *)b.notice)[i];
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x != 0) return;
    r.refusal->rank = full;
    r.refusal->rows = full < r.at.nranks ? b.rows[full] : 0;
    r.refusal->wrong = r.at.slot->wrong;
    __threadfence_system();
    *(volatile uint32_t *)&r.refusal->refused = 1;
}

/* All threads of the block; the same in all blocks, and where ranks refuse, on all ranks. */
static __device__ __forceinline__ int judge(const receive_t &r, uint64_t epoch, uint64_t turn, const board_t &b)
{
    int sound = 1, agreed = 1;
    take_notices(r, turn, b);
    for (uint32_t i = threadIdx.x; i < r.at.nranks; i += blockDim.x) {
        sound &= is_sound(r, b.notice[i], epoch);
        agreed &= is_agreed(r, b.notice[i]) && !b.notice[i].wrong;
    }
    sound = __syncthreads_and(sound);
    agreed = __syncthreads_and(agreed);
    if (sound && agreed) sound = add_counts(r, turn, b);
    if (sound && agreed) add_rows(r, b);
    const uint32_t full = sound && agreed ? find_full(r, b) : r.at.nranks;
    if (sound && agreed && full == r.at.nranks) return XEP_CUDA_LL_HERE;
    if (blockIdx.x == 0) tell_refusal(r, b, full);
    return sound ? XEP_CUDA_LL_REFUSED : XEP_CUDA_LL_LOST;
}

/* ---- places ---- */

/* A warp adds up the rows of experts, 32 at a time; then all know where each pair begins. Returns how many rows. */
static __device__ __forceinline__ uint32_t lay_rows(const receive_t &r, const board_t &b)
{
    __shared__ uint32_t end;
    const uint32_t lane = threadIdx.x % 32,
                   alignment = r.rows_of_expert != 0 ? 1 : r.notice.alignment; /* padded rows are counted as they are */
    uint32_t row = 0;
    for (uint32_t begin = 0; begin < b.experts && threadIdx.x < 32; begin += 32) {
        const uint32_t e = begin + lane, rows = e < b.experts ? (uint32_t)align_up(b.own[e], alignment) : 0;
        uint32_t sum = rows;
        for (uint32_t step = 1; step < 32; step *= 2) {
            const uint32_t left = __shfl_up_sync(UINT32_MAX, sum, step);
            if (lane >= step) sum += left;
        }
        if (e < b.experts) b.first[e] = r.rows_of_expert != 0 ? (uint32_t)(e * r.rows_of_expert) : row + sum - rows;
        row += __shfl_sync(UINT32_MAX, sum, 31);
    }
    if (threadIdx.x == 0) end = row;
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < b.experts; e += blockDim.x)
        for (uint32_t s = 0, at = b.first[e]; s < r.at.nranks; s++) {
            b.begin[e * r.at.nranks + s] = at;
            at += b.count[e * r.at.nranks + s];
        }
    __syncthreads();
    return end;
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
        table_at(r.at, s, b.notice[s].slot, r.at.rank)[e] = b.begin[i];
    }
    for (uint32_t i = threadIdx.x; i < r.at.nranks; i += blockDim.x) r.at.there[i] = b.notice[i].slot;
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

static __device__ __forceinline__ void store_metadata(const receive_t &r, const char *head, const piece_t &p,
                                                      uint32_t k, int64_t row, uint32_t local)
{
    const float *weights = (const float *)(head + r.at.head_weights);
    r.src_token[row] = (int32_t)p.token;
    r.weights[row] = r.notice.sends_weights ? weights[(uint64_t)p.token * r.notice.topk + k] : 1.0f;
    store_index(r, row, (int32_t)local);
}

/* Fetches a piece once, and stores it to the rows of all of the token's selections that are here. A warp. */
static __device__ __forceinline__ void move_piece(const receive_t &r, const board_t &b, uint64_t turn, const piece_t &p,
                                                  uint32_t *phase)
{
    const uint32_t lane = threadIdx.x % 32, topk = r.notice.topk;
    const char *head = head_at(r.at, r.at.rank, turn, p.source);
    const xep_cuda_pick_t *picks = (const xep_cuda_pick_t *)head + (uint64_t)p.token * topk;
    const char *from = items_at(r.at, turn, p.source) + p.token * r.item.stride + (uint64_t)p.part * r.chunk;
    int fetched = 0;
    for (uint32_t begin = 0; begin < topk; begin += 32) {
        const uint32_t k = begin + lane;
        uint32_t local = 0;
        const int64_t row = k < topk ? place_pick(r, b, p.source, picks[k], &local) : NOWHERE;
        uint32_t here = __ballot_sync(UINT32_MAX, row != NOWHERE);
        if (here == 0) continue;
        if (!fetched && lane == 0) {
            expect_bytes(p.barrier, p.bytes);
            begin_load(p.stage, from, p.bytes, p.barrier);
        }
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
    if (fetched && lane == 0) {
        end_group();
        wait_read();
    }
    __syncwarp();
}

/*
 * Sources take turns, so that no rank is everyone's first. Rows and items are multiples of 64 bytes apart, so that a
 * copy of a multiple of 16 bytes stays within them.
 */
static __device__ void move_rows(const receive_t &r, const board_t &b, uint64_t turn, char *stages)
{
    const uint32_t warps = blockDim.x / 32, warp = threadIdx.x / 32, all = gridDim.x * warps;
    const uint32_t row = (uint32_t)((r.item.row_bytes + 15) & ~UINT64_C(15)),
                   item = (uint32_t)((r.item.scales + r.item.scale_words * 4 + 15) & ~UINT64_C(15)),
                   parts = (item + r.chunk - 1) / r.chunk;
    const uint64_t units = r.at.tokens * r.at.nranks * parts;
    uint32_t phase = 0;
    piece_t p;
    p.stage = stages + (uint64_t)warp * r.chunk;
    p.barrier = (uint64_t *)(stages + (uint64_t)warps * r.chunk) + warp;
    fence_for_bulk();
    for (uint64_t u = warp * gridDim.x + blockIdx.x; u < units; u += all) {
        p.source = (uint32_t)((r.at.rank + u) % r.at.nranks);
        p.part = (uint32_t)(u / r.at.nranks % parts);
        p.token = (uint32_t)(u / r.at.nranks / parts);
        if (p.token >= b.notice[p.source].tokens) continue;
        const uint32_t before = p.part * r.chunk;
        p.bytes = item - before < r.chunk ? item - before : r.chunk;
        p.row_bytes = row <= before ? 0 : row - before < r.chunk ? row - before : r.chunk;
        move_piece(r, b, turn, p, &phase);
    }
    wait_stored();
}

/* Shared memory: a stage and a barrier for each warp, then the board. */
extern "C" __global__ void __launch_bounds__(1024, 1)
    xep_cuda_ll_receive(const __grid_constant__ xep_cuda_ll_receive_t r)
{
    extern __shared__ __align__(128) char shared[];
    const uint32_t warps = blockDim.x / 32;
    uint64_t *barriers = (uint64_t *)(shared + (uint64_t)warps * r.chunk);
    const board_t b = lay_board(r, (char *)(barriers + warps));
    const uint64_t epoch = r.at.slot->epoch, turn = r.at.slot->turn;
    int verdict = XEP_CUDA_LL_LOST;
    if (threadIdx.x < warps) open_barrier(&barriers[threadIdx.x]);
    share_barriers();
    if (wait_words(
            r.at.nranks, [&](uint32_t s) { return notice_at(r.at, r.at.rank, turn, s); }, epoch, r.deadline))
        verdict = judge(r, epoch, turn, b);
    if (verdict == XEP_CUDA_LL_HERE) {
        const uint32_t end = lay_rows(r, b);
        if (blockIdx.x == 0) publish(r, b, end);
        move_rows(r, b, turn, shared);
        fill_unused(r, b, end);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) r.at.slot->verdict = verdict;
}
