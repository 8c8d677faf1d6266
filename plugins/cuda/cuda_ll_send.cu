/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The send phase of a dispatch: rows are cast into this rank's own memory, where all receivers read them; what tells
 * them which rows are theirs is written to each.
 */
#include <xep/xep.h>

#include "cuda_cast.cuh"
#include "cuda_ll_heaps.cuh"
#include "cuda_words.cuh"

enum {
    INDICES = 16, /* that a lane loads at once: a warp's lanes are as many at least */
    PART = 2048   /* bytes of a row that a warp copies at once */
};

typedef xep_cuda_ll_send_t send_t;

static __device__ __forceinline__ uint32_t warps_before()
{
    return threadIdx.x / 32 * gridDim.x + blockIdx.x; /* in a row over the blocks: none has more than its share */
}

static __device__ __forceinline__ uint32_t all_warps()
{
    return gridDim.x * (blockDim.x / 32);
}

/* ---- selections ---- */

static __device__ __forceinline__ int64_t load_index(const send_t &s, uint32_t i)
{
    const uint32_t topk = s.notice.topk, bytes = s.idx_bytes;
    const char *at = s.topk_idx + (s.topk_idx_stride == topk * bytes
                                       ? i * (uint64_t)bytes /* a division for each would take longer than the load */
                                       : i / topk * s.topk_idx_stride + i % topk * (uint64_t)bytes);
    return s.wide ? *(const int64_t *)at : *(const int32_t *)at;
}

/* To all ranks, also those that are not the expert's: they look at every pick, and would find that of an older turn. */
static __device__ __forceinline__ void tell_pick(const send_t &s, uint64_t turn, uint32_t i, xep_cuda_pick_t pick)
{
    s.kept.picks[i] = pick;
    for (uint32_t r = 0; r < s.at.nranks; r++)
        ((xep_cuda_pick_t *)head_at(s.at, (s.at.rank + r) % s.at.nranks, turn, s.at.rank))[i] = pick;
}

/* Which of INDICES * 32 indices in a row select an expert, by the caller's number: a word of 32 for each lane. */
static __device__ __forceinline__ uint32_t find_expert(const send_t &s, uint32_t begin, uint32_t expert)
{
    const uint32_t n = s.notice.tokens * s.notice.topk, lane = threadIdx.x % 32;
    int64_t index[INDICES];
    uint32_t word = 0;
#pragma unroll
    for (uint32_t a = 0; a < INDICES; a++) {
        const uint32_t i = begin + a * 32 + lane;
        index[a] = i < n ? load_index(s, i) : -1;
    }
#pragma unroll
    for (uint32_t a = 0; a < INDICES; a++) {
        const uint32_t mine = __ballot_sync(UINT32_MAX, index[a] == expert);
        if (lane == a) word = mine;
    }
    return word;
}

/* A warp an expert: its selections get numbers in the order of tokens, whatever the others do. */
static __device__ void number_expert(const send_t &s, uint64_t turn, uint32_t expert)
{
    const uint32_t n = s.notice.tokens * s.notice.topk, lane = threadIdx.x % 32;
    const uint32_t given = s.callers == nullptr ? expert : s.callers[expert];
    uint32_t count = 0;
    for (uint32_t begin = 0; begin < n; begin += INDICES * 32) {
        const uint32_t word = find_expert(s, begin, given);
        uint32_t sum = __popc(word);
        for (uint32_t step = 1; step < 32; step *= 2) {
            const uint32_t before = __shfl_up_sync(UINT32_MAX, sum, step);
            if (lane >= step) sum += before;
        }
        uint32_t ordinal = count + sum - __popc(word);
        for (uint32_t left = word; left != 0; left &= left - 1)
            tell_pick(s, turn, begin + lane * 32 + __ffs((int)left) - 1, xep_cuda_pick_t{(int32_t)expert, ordinal++});
        count += __shfl_sync(UINT32_MAX, sum, 31);
    }
    for (uint32_t r = lane; r < s.at.nranks; r += 32)
        ((uint32_t *)(head_at(s.at, r, turn, s.at.rank) + s.at.head_counts))[expert] = count;
}

/* All that are no expert; and the weights of all. */
static __device__ void tell_rest(const send_t &s, uint64_t turn)
{
    const uint32_t n = s.notice.tokens * s.notice.topk;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const int64_t index = load_index(s, i);
        const char *weights = s.weights + i / s.notice.topk * s.weights_stride;
        const float weight = s.weights == nullptr ? 1.0f : ((const float *)weights)[i % s.notice.topk];
        if ((uint64_t)index >= s.at.experts) {
            tell_pick(s, turn, i, xep_cuda_pick_t{-1, 0});
            if (index != -1) atomicMin((unsigned long long *)s.wrong, (unsigned long long)i);
        }
        s.kept.weights[i] = weight;
        for (uint32_t r = 0; r < s.at.nranks && s.notice.sends_weights; r++)
            ((float *)(head_at(s.at, r, turn, s.at.rank) + s.at.head_weights))[i] = weight;
    }
}

/* ---- rows as they are ---- */

template <typename T> static __device__ __forceinline__ void copy_part(char *to, const char *from, uint32_t bytes)
{
#pragma unroll 4
    for (uint32_t i = threadIdx.x % 32; i < bytes / sizeof(T); i += 32) ((T *)to)[i] = ((const T *)from)[i];
}

/* In parts, so that a few long rows keep as many warps busy as many short ones; then the scales of each token. */
static __device__ void pack_rows(const send_t &s, char *items, uint32_t first, uint32_t all)
{
    const uint32_t parts = (uint32_t)((s.item.row_bytes + PART - 1) / PART), units = s.notice.tokens * parts;
    const uint64_t odd = (uint64_t)s.cast.x | s.cast.x_stride | s.item.row_bytes;
    for (uint32_t u = first; u < units; u += all) {
        const uint32_t token = u / parts, part = u % parts;
        const uint64_t left = s.item.row_bytes - (uint64_t)part * PART;
        const uint32_t bytes = left < PART ? (uint32_t)left : PART;
        const char *from = s.cast.x + token * s.cast.x_stride + (uint64_t)part * PART;
        char *to = items + token * s.item.stride + (uint64_t)part * PART;
        if (odd % 16 == 0) copy_part<int4>(to, from, bytes);
        else if (odd % 4 == 0) copy_part<uint32_t>(to, from, bytes);
        else copy_part<char>(to, from, bytes);
    }
    for (uint32_t t = first; t < s.notice.tokens; t += all) {
        const char *from = s.scales + (int64_t)t * s.scales_token_stride;
        uint32_t *to = (uint32_t *)(items + t * s.item.stride + s.item.scales);
        for (uint32_t i = threadIdx.x % 32; i < s.notice.nscales; i += 32)
            to[i] = *(const uint32_t *)(from + (int64_t)i * s.scales_stride);
    }
}

/* ---- the notices ---- */

/* The last block, which has ordered all that was written: a thread a rank, the line by stores, then its word. */
static __device__ void tell_notices(const send_t &s, uint64_t epoch, uint64_t turn)
{
    const uint64_t wrong = *(volatile uint64_t *)s.wrong;
    ll_notice_t notice = s.notice;
    notice.wrong = wrong != UINT64_MAX;
    for (uint32_t i = threadIdx.x; i < s.at.nranks; i += blockDim.x) {
        char *line = notice_at(s.at, (s.at.rank + 1 + i) % s.at.nranks, turn, s.at.rank);
        for (uint32_t w = 1; w < sizeof notice / 8; w++) ((uint64_t *)line)[w] = ((const uint64_t *)&notice)[w];
        store_word(line, epoch);
    }
    __syncthreads(); /* wrong was read by all */
    if (threadIdx.x != 0) return;
    *s.wrong = UINT64_MAX;
    *s.at.slot = xep_cuda_ll_slot_t{epoch, turn, wrong, XEP_CUDA_LL_LOST};
    *s.at.now = xep_cuda_ll_now_t{epoch, turn + 1, 0}; /* nobody has lost step, or this would not be done */
}

/* The rows, by so many warps, of which this is one. */
static __device__ __forceinline__ void move_rows(const send_t &s, char *items, uint32_t warp, uint32_t warps)
{
    if (s.notice.quant == XEP_QUANT_NONE) pack_rows(s, items, warp, warps);
    else cast_rows(s.cast, items, warp, warps);
}

/* Waits for nobody: notices.h says why all have read this entry of the ring by now. The last block tells all ranks. */
extern "C" __global__ void __launch_bounds__(1024, 1) xep_cuda_ll_send(const __grid_constant__ xep_cuda_ll_send_t s)
{
    const uint64_t epoch = s.at.now->epoch + 1, turn = s.at.now->turn;
    char *items = items_at(s.at, turn, s.at.rank);
    if (is_left_out(s.at, epoch)) return;
    /* where there are enough warps, those that number selections leave the rows to the others */
    const uint32_t busy = all_warps() < 2 * s.at.experts ? 0 : s.at.experts;
    for (uint32_t e = warps_before(); e < s.at.experts; e += all_warps()) number_expert(s, turn, e);
    tell_rest(s, turn);
    if (warps_before() >= busy) move_rows(s, items, warps_before() - busy, all_warps() - busy);
    begin_next();
    if (is_last_block(s.at.blocks_done)) tell_notices(s, epoch, turn);
}
