/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What all ranks have told of a dispatch, as every block of the receive phase finds it on its own: the notices, the
 * counts, and whether all of it may be used.
 */
#ifndef XEP_CUDA_LL_BOARD_CUH
#define XEP_CUDA_LL_BOARD_CUH

#include "cuda_ll_heaps.cuh"
#include "cuda_outs.cuh"

typedef xep_cuda_ll_dispatch_t receive_t;

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
    char *heap; /* of this rank: looked up before there is anything to wait for */
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
    b.heap = r.at.peer[r.at.rank];
    return b;
}

/* ---- what was told ---- */

static __device__ __forceinline__ int hears(const receive_t &r, uint32_t source)
{
    return !leaves_out(r.at.outs) || how_with(r.at.outs, source) == XEP_CUDA_WITH;
}

/* The last warps of a block have other things to do than the first, whose first rows are looked for. */
static __device__ __forceinline__ uint32_t from_behind()
{
    return blockDim.x - 1 - threadIdx.x;
}

/* A thread a source. Copies, so that what is checked is what is used. */
static __device__ __forceinline__ void take_notices(const receive_t &r, uint64_t epoch, uint64_t turn, const board_t &b)
{
    for (uint32_t s = from_behind(); s < r.at.nranks; s += blockDim.x) {
        ll_notice_t *notice = &b.notice[s];
        const volatile uint64_t *line = (const volatile uint64_t *)notice_in(r.at, b.heap, turn, s);
        const uint64_t wrong = *(volatile uint64_t *)&words_in(r.at, b.heap, turn, s)->wrong;
#pragma unroll
        for (uint32_t w = 0; w < sizeof(ll_notice_t) / 8; w++) ((uint64_t *)notice)[w] = line[w];
        notice->wrong = wrong == epoch;
        if (hears(r, s)) continue;
        /* it agrees with this one, sends nothing, and has room for all */
        *notice = r.notice;
        notice->word = epoch;
        notice->capacity = UINT32_MAX;
        notice->alignment = 1;
        notice->tokens = notice->slot = notice->padded = notice->wrong = 0;
    }
}

static __device__ __forceinline__ uint64_t align_up(uint64_t rows, uint32_t alignment)
{
    return alignment == 1 ? rows : (rows + alignment - 1) / alignment * alignment;
}

static __device__ __forceinline__ int is_sound(const receive_t &r, const ll_notice_t &n, uint64_t epoch)
{
    return n.word == epoch && n.tokens <= r.at.tokens && n.slot < r.at.slots && n.alignment >= 1 && n.padded <= 1 &&
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

/* Selections of every expert, of all sources, by all threads. 0: a count that none can be. */
static __device__ __forceinline__ int add_counts(const receive_t &r, uint64_t turn, const board_t &b)
{
    const uint32_t most = (uint32_t)r.at.tokens * r.notice.topk;
    int sane = 1;
    for (uint32_t e = from_behind(); e < r.at.experts; e += blockDim.x) {
        const uint32_t local = e - b.first_expert;
        uint32_t total = 0;
#pragma unroll 4
        for (uint32_t s = 0; s < r.at.nranks; s++) {
            const char *head = head_in(r.at, b.heap, turn, s);
            const uint32_t count = hears(r, s) ? ((const volatile uint32_t *)(head + r.at.head_counts))[e] : 0;
            sane &= count <= most;
            if (local < b.experts) b.count[local * r.at.nranks + s] = count;
            total += count;
        }
        b.total[e] = total;
    }
    return sane;
}

/* Rows of a rank, by a warp; padded: of its largest expert. All ranks add up the same. */
static __device__ __forceinline__ uint64_t add_rows(const receive_t &r, const board_t &b, uint32_t rank)
{
    const uint32_t alignment = b.notice[rank].alignment, padded = b.notice[rank].padded,
                   end = r.at.first_expert[rank + 1];
    uint64_t rows = 0;
    for (uint32_t e = r.at.first_expert[rank] + threadIdx.x % 32; e < end; e += 32) {
        if (!padded) rows += align_up(b.total[e], alignment);
        else if (b.total[e] > rows) rows = b.total[e];
    }
    for (int step = 16; step > 0; step /= 2) {
        const uint64_t other = __shfl_xor_sync(UINT32_MAX, rows, step);
        rows = !padded ? rows + other : other > rows ? other : rows;
    }
    return rows;
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
    r.refusal->wrong = r.sends ? *(volatile uint64_t *)r.wrong : r.at.slot->wrong;
    __threadfence_system();
    *(volatile uint32_t *)&r.refusal->refused = 1;
}

/*
 * All threads of the block; the same in all blocks, and where ranks refuse, on all ranks. The first warp lays the rows
 * of this rank while others add up those of all.
 */
template <typename F>
static __device__ __forceinline__ int judge(const receive_t &r, uint64_t epoch, uint64_t turn, const board_t &b, F lay)
{
    const uint32_t last = blockDim.x / 32 - 1;
    int sound = 1, agreed = 1, fits = 1;
    take_notices(r, epoch, turn, b);
    const int sane = add_counts(r, turn, b); /* loaded beside the notices, not behind them */
    for (uint32_t i = from_behind(); i < r.at.nranks; i += blockDim.x) {
        sound &= is_sound(r, b.notice[i], epoch);
        agreed &= is_agreed(r, b.notice[i]) && !b.notice[i].wrong;
    }
    int good = __syncthreads_and(sound && agreed && sane);
    if (good && threadIdx.x < 32) lay();
    for (uint32_t rank = from_behind() / 32; good && rank < r.at.nranks; rank += last + 1) {
        const uint64_t rows = add_rows(r, b, rank);
        if (threadIdx.x % 32 == 0) b.rows[rank] = rows;
        fits &= rows <= b.notice[rank].capacity;
    }
    good = __syncthreads_and(good && fits);
    if (good) return XEP_CUDA_LL_HERE;
    sound = __syncthreads_and(sound);
    agreed = __syncthreads_and(agreed);
    if (sound && agreed) sound = __syncthreads_and(sane); /* ranks that disagree count otherwise */
    const uint32_t full = sound && agreed ? find_full(r, b) : r.at.nranks;
    if (blockIdx.x == 0) tell_refusal(r, b, full);
    return sound ? XEP_CUDA_LL_REFUSED : XEP_CUDA_LL_LOST;
}

#endif
