/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The send phase of a dispatch: rows are cast into this rank's own memory, where all receivers read them; what tells
 * them which rows are theirs is written to each.
 */
#ifndef XEP_CUDA_LL_SEND_CUH
#define XEP_CUDA_LL_SEND_CUH

#include <xep/xep.h>

#include "cuda_cast.cuh"
#include "cuda_ll_heaps.cuh"
#include "cuda_words.cuh"

enum {
    INDICES = 8,  /* that a thread loads at once */
    TABLE = 1024, /* indices that a block numbers at once: 32 for each lane of a warp */
    NO_EXPERT = -1,
    PART = 2048 /* bytes of a row that a warp copies at once */
};

/* A send phase, in a block. */
typedef struct sending {
    const xep_cuda_ll_dispatch_t &d;
    const xep_cuda_ll_given_t &given;
    const ll_notice_t &notice;
    const xep_cuda_ll_heaps_t &at;
    char **head; /* [nranks] of this turn, from this rank on: in shared memory */
    uint64_t epoch, turn;
} sending_t;

static __device__ __forceinline__ uint32_t warps_before()
{
    return threadIdx.x / 32 * gridDim.x + blockIdx.x; /* in a row over the blocks: none has more than its share */
}

static __device__ __forceinline__ uint32_t all_warps()
{
    return gridDim.x * (blockDim.x / 32);
}

/* The first threads of a block, whole warps: as __syncthreads(). */
static __device__ __forceinline__ void sync_some(uint32_t threads)
{
    asm volatile("barrier.sync 1, %0;" ::"r"(threads) : "memory");
}

/* ---- selections ---- */

static __device__ __forceinline__ int64_t load_index(const sending_t &s, uint32_t i)
{
    const uint32_t topk = s.notice.topk, bytes = s.given.idx_bytes;
    const char *at =
        s.given.topk_idx + (s.given.topk_idx_stride == topk * bytes
                                ? i * (uint64_t)bytes /* a division for each would take longer than the load */
                                : i / topk * s.given.topk_idx_stride + i % topk * (uint64_t)bytes);
    return s.given.wide ? *(const int64_t *)at : *(const int32_t *)at;
}

/* To all ranks, also those that are not the expert's: they look at every pick, and would find that of an older turn. */
static __device__ __forceinline__ void tell_pick(const sending_t &s, uint32_t i, xep_cuda_pick_t pick)
{
    s.d.kept.picks[i] = pick;
    for (uint32_t r = 0; r < s.at.nranks; r++) ((xep_cuda_pick_t *)s.head[r])[i] = pick;
}

/* TABLE indices from one on, by the caller's numbers, into shared memory: by the first threads of a block. */
static __device__ __forceinline__ void load_table(const sending_t &s, uint32_t begin, uint32_t threads, uint32_t *table)
{
    const uint32_t n = s.notice.tokens * s.notice.topk;
    for (uint32_t first = threadIdx.x; first < TABLE; first += INDICES * threads) {
        int64_t index[INDICES];
#pragma unroll
        for (uint32_t a = 0; a < INDICES; a++) {
            const uint32_t i = first + a * threads;
            index[a] = i < TABLE && begin + i < n ? load_index(s, begin + i) : NO_EXPERT;
        }
#pragma unroll
        for (uint32_t a = 0; a < INDICES; a++) {
            const uint32_t i = first + a * threads;
            if (i < TABLE) table[i] = (uint64_t)index[a] < s.at.experts ? (uint32_t)index[a] : (uint32_t)NO_EXPERT;
        }
    }
}

/* Which indices of the table select an expert: a word of 32 for each lane of a warp. */
static __device__ __forceinline__ uint32_t find_expert(const uint32_t *table, uint32_t expert)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t word = 0;
#pragma unroll 8
    for (uint32_t a = 0; a < TABLE / 32; a++) {
        const uint32_t mine = __ballot_sync(UINT32_MAX, table[a * 32 + lane] == expert);
        if (lane == a) word = mine;
    }
    return word;
}

/* A warp: numbers the selections of an expert in the table, which begins at one; returns how many there are. */
static __device__ __forceinline__ uint32_t number_table(const sending_t &s, const uint32_t *table, uint32_t begin,
                                                        uint32_t expert, uint32_t before)
{
    const uint32_t lane = threadIdx.x % 32, given = s.given.callers == nullptr ? expert : s.given.callers[expert];
    const uint32_t word = find_expert(table, given);
    uint32_t sum = __popc(word);
    for (uint32_t step = 1; step < 32; step *= 2) {
        const uint32_t left = __shfl_up_sync(UINT32_MAX, sum, step);
        if (lane >= step) sum += left;
    }
    uint32_t ordinal = before + sum - __popc(word);
    for (uint32_t left = word; left != 0; left &= left - 1)
        tell_pick(s, begin + lane * 32 + __ffs((int)left) - 1, xep_cuda_pick_t{(int32_t)expert, ordinal++});
    return __shfl_sync(UINT32_MAX, sum, 31);
}

/*
 * A warp an expert: its selections get numbers in the order of tokens, whatever the others do. The first warps of a
 * block, as many as it has experts, look at the same table: indices are loaded once for all of them.
 */
static __device__ __forceinline__ void number_experts(const sending_t &s, uint32_t warps)
{
    __shared__ uint32_t table[TABLE];
    const uint32_t n = s.notice.tokens * s.notice.topk, lane = threadIdx.x % 32, threads = warps * 32;
    for (uint32_t first = 0; first < s.at.experts; first += all_warps()) {
        const uint32_t expert = first + warps_before();
        uint32_t count = 0;
        for (uint32_t begin = 0; begin < n; begin += TABLE) {
            load_table(s, begin, threads, table);
            sync_some(threads);
            if (expert < s.at.experts) count += number_table(s, table, begin, expert, count);
            sync_some(threads);
        }
        for (uint32_t r = lane; r < s.at.nranks && expert < s.at.experts; r += 32)
            ((uint32_t *)(s.head[r] + s.at.head_counts))[expert] = count;
    }
}

/* All ranks refuse the dispatch; which index it is this one keeps. */
static __device__ __forceinline__ void tell_wrong(const sending_t &s, uint32_t i)
{
    atomicMin((unsigned long long *)s.d.wrong, (unsigned long long)i);
    for (uint32_t r = 0; r < s.at.nranks; r++) words_at(s.at, r, s.turn, s.at.rank)->wrong = s.epoch;
}

/* All that are no expert; and the weights of all. */
static __device__ void tell_rest(const sending_t &s)
{
    const uint32_t n = s.notice.tokens * s.notice.topk;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const int64_t index = load_index(s, i);
        const char *weights = s.given.weights + i / s.notice.topk * s.given.weights_stride;
        const float weight = s.given.weights == nullptr ? 1.0f : ((const float *)weights)[i % s.notice.topk];
        if ((uint64_t)index >= s.at.experts) {
            tell_pick(s, i, xep_cuda_pick_t{-1, 0});
            if (index != -1) tell_wrong(s, i);
        }
        s.d.kept.weights[i] = weight;
        for (uint32_t r = 0; r < s.at.nranks && s.notice.sends_weights; r++)
            ((float *)(s.head[r] + s.at.head_weights))[i] = weight;
    }
}

/* ---- rows as they are ---- */

template <typename T> static __device__ __forceinline__ void copy_part(char *to, const char *from, uint32_t bytes)
{
#pragma unroll 4
    for (uint32_t i = threadIdx.x % 32; i < bytes / sizeof(T); i += 32) ((T *)to)[i] = ((const T *)from)[i];
}

/* In parts, so that a few long rows keep as many warps busy as many short ones; then the scales of each token. */
static __device__ void pack_rows(const sending_t &s, char *items, uint32_t first, uint32_t all)
{
    const uint32_t parts = (uint32_t)((s.d.item.row_bytes + PART - 1) / PART), units = s.notice.tokens * parts;
    const uint64_t odd = (uint64_t)s.d.cast.x | s.d.cast.x_stride | s.d.item.row_bytes;
    for (uint32_t u = first; u < units; u += all) {
        const uint32_t token = u / parts, part = u % parts;
        const uint64_t left = s.d.item.row_bytes - (uint64_t)part * PART;
        const uint32_t bytes = left < PART ? (uint32_t)left : PART;
        const char *from = s.d.cast.x + token * s.d.cast.x_stride + (uint64_t)part * PART;
        char *to = items + token * s.d.item.stride + (uint64_t)part * PART;
        if (odd % 16 == 0) copy_part<int4>(to, from, bytes);
        else if (odd % 4 == 0) copy_part<uint32_t>(to, from, bytes);
        else copy_part<char>(to, from, bytes);
    }
    for (uint32_t t = first; t < s.notice.tokens; t += all) {
        const char *from = s.given.scales + (int64_t)t * s.given.scales_token_stride;
        uint32_t *to = (uint32_t *)(items + t * s.d.item.stride + s.d.item.scales);
        for (uint32_t i = threadIdx.x % 32; i < s.notice.nscales; i += 32)
            to[i] = *(const uint32_t *)(from + (int64_t)i * s.given.scales_stride);
    }
}

/* ---- the phase ---- */

/* The rows, by so many warps, of which this is one. Usual: as they are, or bf16 cast to e4m3 (cuda_ll_dispatch.c). */
template <bool USUAL>
static __device__ __forceinline__ void move_rows(const sending_t &s, char *items, uint32_t warp, uint32_t warps)
{
    if (s.notice.quant == XEP_QUANT_NONE) pack_rows(s, items, warp, warps);
    else if (USUAL) cast_rows_as<XEP_QUANT_E4M3, bf16_t>(s.d.cast, (uint8_t *)items, warp, warps);
    else cast_rows(s.d.cast, items, warp, warps);
}

/* One block: a thread a rank. That all of it is there, and what all blocks have written, is told by words.sent. */
static __device__ __forceinline__ void tell_notices(const sending_t &s)
{
    ll_notice_t notice = s.notice;
    notice.word = s.epoch;
    for (uint32_t i = threadIdx.x; i < s.at.nranks; i += blockDim.x) {
        uint64_t *line = (uint64_t *)notice_in(s.at, s.at.peer[i], s.turn, s.at.rank);
        for (uint32_t w = 0; w < sizeof notice / 8; w++) line[w] = ((const uint64_t *)&notice)[w];
    }
}

/* One thread of one block, when it has told: once all have, all have read where the operation before has left off. */
static __device__ __forceinline__ void count_dispatch(const xep_cuda_ll_dispatch_t &d, uint64_t epoch, uint64_t turn)
{
    const xep_cuda_ll_heaps_t &at = d.at;
    wait_for_blocks((const char *)&words_at(at, at.rank, 0, at.rank)->sent, epoch);
    const uint64_t wrong = *(volatile uint64_t *)d.wrong;
    *d.wrong = UINT64_MAX;
    at.slot->epoch = epoch;
    at.slot->turn = turn;
    at.slot->wrong = wrong;
    at.slot->verdict = XEP_CUDA_LL_LOST;
    at.now->epoch = at.now->sent = epoch;
    at.now->turn = turn + 1;
}

/* Waits for no other rank: notices.h says why all have read this entry of the ring by now. All threads. */
template <bool USUAL> static __device__ __forceinline__ void send_packets(const sending_t &s)
{
    const uint64_t sent = s.at.now->sent;
    char *items = items_at(s.at, s.turn, s.at.rank);
    for (uint32_t i = threadIdx.x; i < s.at.nranks; i += blockDim.x)
        s.head[i] = head_in(s.at, s.at.peer[(s.at.rank + i) % s.at.nranks], s.turn, s.at.rank);
    __syncthreads();
    /* where there are enough warps, those that number selections leave the rows to the others */
    const uint32_t busy = all_warps() < 2 * s.at.experts ? 0 : s.at.experts;
    const uint32_t numbering = busy == 0 ? blockDim.x / 32 : (busy - blockIdx.x + gridDim.x - 1) / gridDim.x;
    if (busy == 0 || warps_before() < busy) number_experts(s, numbering);
    tell_rest(s);
    if (blockIdx.x == 0) tell_notices(s);
    if (warps_before() >= busy) move_rows<USUAL>(s, items, warps_before() - busy, all_warps() - busy);
    begin_next();
    tell_share(s.at.peer, s.at.rank, s.at.nranks, s.at.words, sizeof(xep_cuda_ll_words_t), sent, s.epoch, 1);
    /* a kernel that receives, too, counts at its end: by then all blocks have told */
    if (!s.d.receives && blockIdx.x == 0 && threadIdx.x == 0) count_dispatch(s.d, s.epoch, s.turn);
}

#endif
