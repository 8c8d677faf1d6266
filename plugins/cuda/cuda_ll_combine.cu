/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Combine: outputs into the input, or sums of them to the sources of their tokens, and the word; then the rows of each
 * token are pulled, weighed and summed. Or rows are pushed to the sources, and summed there (cuda_ll_rows.cuh).
 */
#include <stddef.h>

#include "cuda_ll_heaps.cuh"
#include "cuda_ll_offers.cuh"
#include "cuda_ll_push.cuh"
#include "cuda_ll_rows.cuh"
#include "cuda_outs.cuh"
#include "cuda_sum.cuh"
#include "cuda_words.cuh"

/* ---- the send phase ---- */

typedef xep_cuda_ll_offer_t offer_t;

/* Rows of a pair that other ranks read. */
static __device__ __forceinline__ uint32_t rows_of(const offer_t &o, uint32_t pair)
{
    return pair % o.at.nranks == o.at.rank ? 0 : o.pair_count[pair];
}

/* A warp adds up the rows of all pairs, 32 at a time: before [pairs + 1] is in shared memory. */
static __device__ __forceinline__ void add_pairs(const offer_t &o, uint32_t *before)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t row = 0;
    for (uint32_t begin = 0; begin < o.pairs && threadIdx.x < 32; begin += 32) {
        const uint32_t pair = begin + lane, rows = pair < o.pairs ? rows_of(o, pair) : 0;
        uint32_t sum = rows;
        for (uint32_t step = 1; step < 32; step *= 2) {
            const uint32_t left = __shfl_up_sync(UINT32_MAX, sum, step);
            if (lane >= step) sum += left;
        }
        if (pair < o.pairs) before[pair] = row + sum - rows;
        row += __shfl_sync(UINT32_MAX, sum, 31);
    }
    if (threadIdx.x == 0) before[o.pairs] = row;
    __syncthreads();
}

/* The pair that row i, of all that are copied, belongs to. */
static __device__ __forceinline__ uint32_t find_pair(const offer_t &o, const uint32_t *before, uint32_t i)
{
    uint32_t low = 0, high = o.pairs;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (before[middle] <= i) low = middle;
        else high = middle;
    }
    return low;
}

template <typename T> static __device__ __forceinline__ void copy_row(char *to, const char *from, uint64_t bytes)
{
#pragma unroll 4
    for (uint64_t i = threadIdx.x % 32; i < bytes / sizeof(T); i += 32) ((T *)to)[i] = ((const T *)from)[i];
}

/*
 * The rows of all pairs are numbered together, and the warps of the grid take turns: each has about as many as any
 * other, however uneven the experts are. In the input a row has the number that it has in the slot: readers look there.
 */
static __device__ void copy_rows(const offer_t &o, uint32_t *before)
{
    const uint32_t warps = blockDim.x / 32, all = gridDim.x * warps;
    const uint64_t odd = (uint64_t)o.x | o.x_stride | o.row_bytes;
    add_pairs(o, before);
    for (uint32_t i = threadIdx.x / 32 * gridDim.x + blockIdx.x; i < before[o.pairs]; i += all) {
        const uint32_t pair = find_pair(o, before, i);
        const uint64_t row = o.pair_begin[pair] + (i - before[pair]);
        const char *from = o.x + row * o.x_stride;
        char *to = o.input + row * o.row_stride;
        if (odd % 16 == 0) copy_row<int4>(to, from, o.row_bytes);
        else if (odd % 4 == 0) copy_row<uint32_t>(to, from, o.row_bytes);
        else copy_row<uint16_t>(to, from, o.row_bytes);
    }
}

/*
 * By all threads of a block: to each rank, in the line of this rank's slot, what it offers, if that is news: the word
 * would have to wait until the store is at the rank. And, if nobody else tells, that it is ready.
 */
static __device__ __forceinline__ void tell_line(const xep_cuda_ll_heaps_t &at, const uint64_t *offer, uint64_t ready)
{
    const int news = at.slot->said[0] != offer[0] || at.slot->said[1] != offer[1];
    for (uint32_t i = threadIdx.x; i < at.nranks; i += blockDim.x) {
        char *line = line_at(at, (at.rank + 1 + i) % at.nranks, at.slot_number, at.rank);
        uint64_t *said = (uint64_t *)(line + at.line_said);
        if (news) {
            said[0] = offer[0];
            said[1] = offer[1];
        }
        /* a release by the thread that wrote the offer: whoever sees the word sees that, too */
        if (ready != 0) store_word(line + at.line_ready, ready);
    }
}

/* By one thread, when all blocks have read the epoch of the operation before. */
static __device__ __forceinline__ void count_operation(const xep_cuda_ll_heaps_t &at, uint64_t epoch,
                                                       const uint64_t *told)
{
    if (told != nullptr) {
        at.slot->ready = epoch;
        at.slot->said[0] = told[0];
        at.slot->said[1] = told[1];
    }
    at.slot->epoch = epoch;
    at.now->epoch = epoch;
}

/*
 * If all ranks refused the dispatch, all leave out its combine, too; if one rank lost it, the others wait for that rank
 * in vain. The combine is told and counted all the same, as it was on all ranks, so their epochs stay the same.
 */
template <typename F> static __device__ __forceinline__ void offer(const offer_t &o, F bring)
{
    const xep_cuda_ll_heaps_t &at = o.at;
    const uint64_t epoch = at.now->epoch + 1, ready = at.slot->ready;
    const uint64_t word = at.line + at.slot_number * (uint64_t)at.nranks * at.line_bytes + at.line_ready;
    if (is_left_out(at, epoch)) return;
    const int here = at.slot->verdict == XEP_CUDA_LL_HERE;
    if (here && at.told != 0 && blockIdx.x == 0) tell_offer(at, o.offer, at.slot->area, epoch);
    if (here) bring();
    if (blockIdx.x == 0) tell_line(at, o.offer, 0);
    begin_next();
    tell_share(at.peer, at.rank, at.nranks, word, at.line_bytes, ready, epoch, 1);
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    wait_for_blocks(line_at(at, at.rank, at.slot_number, at.rank) + at.line_ready, epoch);
    count_operation(at, epoch, o.offer);
}

extern "C" __global__ void __launch_bounds__(1024, 1) xep_cuda_ll_offer(const __grid_constant__ xep_cuda_ll_offer_t o)
{
    extern __shared__ uint32_t before[];
    offer(o, [&] {
        if (o.x != nullptr) copy_rows(o, before);
    });
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    xep_cuda_ll_push_bf16(const __grid_constant__ xep_cuda_ll_push_t p)
{
    offer(p.offer, [&] { push_sums<bf16_t>(p); });
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    xep_cuda_ll_push_fp16(const __grid_constant__ xep_cuda_ll_push_t p)
{
    offer(p.offer, [&] { push_sums<fp16_t>(p); });
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    xep_cuda_ll_push_fp32(const __grid_constant__ xep_cuda_ll_push_t p)
{
    offer(p.offer, [&] { push_sums<fp32_t>(p); });
}

/* ---- the receive phase ---- */

/* Whether the outputs of a rank are in the sums. */
static __device__ __forceinline__ int is_with(const xep_cuda_ll_heaps_t &at, uint32_t rank)
{
    return !leaves_out(at.outs) || how_with(at.outs, rank) == XEP_CUDA_WITH;
}

/* Where a row lies, as far as it is known before its owner is ready: all but the first row of its expert there. */
typedef struct place {
    const uint32_t *first; /* NULL: rows is all there is to know */
    const char *rows;      /* NULL: there is none */
    uint64_t stride;
    uint32_t ordinal, owner;
    float weight;
} place_t;

/* The sum of a token's n-th owner, ascending. */
static __device__ __forceinline__ place_t find_sum(const xep_cuda_ll_sums_t &c, uint32_t token, uint32_t n)
{
    const xep_cuda_pick_t *picks = c.kept.picks + (uint64_t)token * c.topk;
    uint32_t owner = UINT32_MAX;
    for (uint32_t i = 0, from = 0; i <= n; i++, from = owner + 1) {
        owner = UINT32_MAX;
        for (uint32_t k = 0; k < c.topk; k++) {
            const uint32_t one = picks[k].expert < 0 ? UINT32_MAX : c.at.owner[picks[k].expert];
            if (one >= from && one < owner) owner = one;
        }
        if (owner == UINT32_MAX) return {nullptr, nullptr, 0, 0, c.at.rank, 1};
    }
    return {nullptr, sum_at(c.at, c.at.rank, c.sums, c.row_stride, c.at.slot_number, owner, token), 0, 0, owner, 1};
}

/* Biases first, whose weight is 1, then the rows of the selections. */
static __device__ __forceinline__ place_t find_place(const xep_cuda_ll_sums_t &c, uint32_t token, uint32_t n)
{
    place_t p = {nullptr, bias_of(c.sum, token, &n), 0, 0, c.at.rank, 1};
    if (p.rows != nullptr) return p;
    if (c.at_owner) return find_sum(c, token, n);
    const xep_cuda_pick_t pick = c.kept.picks[(uint64_t)token * c.topk + n];
    if (pick.expert < 0) return p;
    const uint32_t owner = c.at.owner[pick.expert], there = c.at.there[owner];
    const int own = owner == c.at.rank;
    p.first = table_at(c.at, c.at.rank, c.at.slot_number, owner) + (uint32_t)pick.expert - c.at.first_expert[owner];
    p.rows = own ? c.own : c.at.peer[owner] + c.input + there * c.input_bytes;
    p.stride = own ? c.own_stride : c.row_stride;
    p.ordinal = pick.ordinal;
    p.owner = owner;
    if (c.weights != nullptr) p.weight = ((const float *)(c.weights + token * c.weights_stride))[n];
    return p;
}

static __device__ __forceinline__ const char *row_at(const xep_cuda_ll_sums_t &c, const place_t &p)
{
    if (!is_with(c.at, p.owner)) return nullptr;
    if (p.first == nullptr) return p.rows;
    const uint64_t row = (uint64_t)*p.first + p.ordinal;
    /* the owner's word alone is no reason to read elsewhere */
    return row >= c.at.recv_rows ? nullptr : p.rows + row * p.stride;
}

/* What each lane has found of its warp's first token, while owners were not ready. */
typedef struct reading {
    const xep_cuda_sum_t &sum;
    const xep_cuda_ll_sums_t &c;
    uint32_t token;
    place_t place;
} reading_t;

template <typename E> static __device__ __forceinline__ reading_t look_ahead(const xep_cuda_ll_sums_t &c, char *shared)
{
    reading_t r = {c.sum, c, first_token<E>(c.sum, shared), {}};
    const uint32_t n = threadIdx.x % 32;
    if (r.token != UINT32_MAX && n < c.sum.rows) r.place = find_place(c, r.token, n);
    return r;
}

static __device__ __forceinline__ const char *contribution(const reading_t &r, uint32_t token, uint32_t n,
                                                           float *weight_p)
{
    const int is_ahead = token == r.token && n == threadIdx.x % 32;
    const place_t p = is_ahead ? r.place : find_place(r.c, token, n);
    *weight_p = p.weight;
    return row_at(r.c, p);
}

/* Which selections are in no sum. All blocks. */
static __device__ void tell_missing(const xep_cuda_ll_sums_t &c)
{
    const uint32_t all = c.sum.tokens * c.topk;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < all; i += gridDim.x * blockDim.x) {
        const int32_t expert = c.kept.picks[i].expert;
        c.missing[i / c.topk * c.missing_stride + i % c.topk] = expert >= 0 && !is_with(c.at, c.at.owner[expert]);
    }
}

/* Whether the outputs of all ranks are ready that are not out. All blocks. */
template <typename F>
static __device__ __forceinline__ int await_owners(const xep_cuda_ll_sums_t &c, F line, uint64_t epoch)
{
    const auto at = [&](uint32_t r) { return line(r) + c.at.line_ready; };
    const uint64_t value = epoch * XEP_CUDA_WHOLE;
    if (!leaves_out(c.at.outs)) return wait_words(c.at.nranks, at, value, c.deadline);
    const waiter_t w = {c.at.outs, c.at.peer, c.at.rank, c.at.nranks};
    return decide(w, 1, at, value, epoch, c.deadline, [](uint32_t, uint32_t) {});
}

/* One block: whether all have read what is here. */
static __device__ __forceinline__ int await_readers(const xep_cuda_ll_sums_t &c, uint64_t epoch)
{
    const uint64_t value = epoch * XEP_CUDA_WHOLE;
    const auto at = [&](uint32_t r) { return (const char *)&words_at(c.at, c.at.rank, 0, r)->read; };
    if (!leaves_out(c.at.outs)) return wait_words(c.at.nranks, at, value, c.at_the_end);
    const waiter_t w = {c.at.outs, c.at.peer, c.at.rank, c.at.nranks};
    return await_all(w, at, value, epoch, c.at_the_end, [](uint32_t, uint32_t) {});
}

/*
 * Waits for the outputs of all ranks, and sums where they agree: this is found out while rows come that, if they do
 * not, nobody looks at. All blocks.
 */
template <typename E>
static __device__ __forceinline__ void sum_rows(const xep_cuda_ll_sums_t &c, uint64_t epoch, char *shared)
{
    const xep_cuda_ll_heaps_t &at = c.at;
    const auto line = [&](uint32_t r) { return (const char *)line_at(at, at.rank, at.there[r], r); };
    /* a rank that is out agrees with this one */
    const auto said = [&](uint32_t r) { return line(is_with(at, r) ? r : at.rank) + at.line_said; };
    const reading_t reading = look_ahead<E>(c, shared);
    if (!await_owners(c, line, epoch)) {
        lose_step(&at.now->lost, epoch);
        return;
    }
    int same = 0;
    sum_tokens<E, true>(reading, shared, [&] { return same = compare_offers(at.nranks, said, c.differs); });
    if (same && c.missing != nullptr) tell_missing(c);
}

/*
 * Where nothing comes between the phases, and nothing is to be copied, this kernel makes the offer, too: outputs were
 * there when it began. Else the epoch is the one that the send phase has left in the slot: those of other operations
 * may have come in between. "Ready" goes by the number of the owner's slot: it is looked for under there[r]. "Read" is
 * told also where nothing was summed, as owners wait for it; of a dispatch that was refused, which it was on all ranks,
 * only this one waits, for its own blocks. So it does where ranks push rows that others sum: no "read" comes of those.
 */
template <typename E> static __device__ __forceinline__ void combine(const xep_cuda_ll_sums_t &c)
{
    extern __shared__ __align__(128) char shared[];
    const xep_cuda_ll_heaps_t &at = c.at;
    open_pulls(c.sum, shared);
    wait_for_last();
    begin_next(); /* its blocks are there when this kernel ends */
    const uint64_t epoch = c.offers ? at.now->epoch + 1 : at.slot->epoch;
    const uint64_t read = at.now->read;
    const int lost = has_lost_step(&at.now->lost, epoch), here = at.slot->verdict == XEP_CUDA_LL_HERE;
    if (is_stale(at.life) || lost) return; /* all blocks; one load behind the other would take a microsecond */
    if (here && c.offers && blockIdx.x == 0) tell_line(at, c.offer, epoch * XEP_CUDA_WHOLE);
    const int agreed = !here || at.told == 0 || agree(c, epoch);
    if (!agreed) lose_step(&at.now->lost, epoch);
    if (here && agreed) sum_rows<E>(c, epoch, shared);
    tell_read(at.peer, at.rank, at.nranks, at.words + offsetof(xep_cuda_ll_words_t, read), sizeof(xep_cuda_ll_words_t),
              read, epoch);
    if (blockIdx.x != 0) return;
    if (here && agreed && !await_readers(c, epoch)) lose_step(&at.now->lost, epoch);
    if (threadIdx.x != 0) return;
    /* where nothing was summed, none were waited for; else this one is among the readers */
    wait_for_blocks((const char *)&words_at(at, at.rank, 0, at.rank)->read, epoch);
    if (c.offers) count_operation(at, epoch, here ? c.offer : nullptr);
    at.now->read = epoch;
}

extern "C" __global__ void __launch_bounds__(1024, 1) xep_cuda_ll_sum_bf16(const __grid_constant__ xep_cuda_ll_sums_t c)
{
    combine<bf16_t>(c);
}

extern "C" __global__ void __launch_bounds__(1024, 1) xep_cuda_ll_sum_fp16(const __grid_constant__ xep_cuda_ll_sums_t c)
{
    combine<fp16_t>(c);
}

extern "C" __global__ void __launch_bounds__(1024, 1) xep_cuda_ll_sum_fp32(const __grid_constant__ xep_cuda_ll_sums_t c)
{
    combine<fp32_t>(c);
}

/* ---- rows that are pushed ---- */

/* By all threads of a block; 1: to block 0 alone, and all blocks have come here. */
static __device__ __forceinline__ int end_together(const xep_cuda_ll_heaps_t &at)
{
    __syncthreads();
    if (threadIdx.x != 0) return 0;
    add_plainly((char *)&at.now->ended, 1);
    if (blockIdx.x != 0) return 0;
    while (load_word((const char *)&at.now->ended) != gridDim.x) continue;
    at.now->ended = 0;
    return 1;
}

/* Warps wait on their own: those that push are not to stop for what others wait for. */
template <typename E> static __device__ __forceinline__ void combine_rows(const xep_cuda_ll_rows_t &c)
{
    const xep_cuda_ll_heaps_t &at = c.sums.at;
    wait_for_last();
    begin_next();
    const uint64_t epoch = c.sends ? at.now->epoch + 1 : at.slot->epoch;
    const uint32_t area = at.slot->area;
    const int here = at.slot->verdict == XEP_CUDA_LL_HERE, sums = threadIdx.x / 32 >= c.pushing;
    if (c.sends ? is_left_out(at, epoch) : is_stale(at.life) || has_lost_step(&at.now->lost, epoch)) return;
    if (here && c.sends && blockIdx.x == 0) tell_offer(at, c.sums.offer, area, epoch);
    if (here && !sums) push_all<E>(c, area);
    if (here && sums && !(await_offers(c.sums, area, epoch) && sum_all<E>(c, area)) && threadIdx.x % 32 == 0)
        *(volatile uint64_t *)&at.now->lost = epoch;
    if (here && c.receives && c.sums.missing != nullptr) tell_missing(c.sums);
    if (!end_together(at)) return;
    if (c.sends) count_operation(at, epoch, nullptr);
    if (c.receives && here) at.slot->area = area ^ 1;
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    xep_cuda_ll_rows_bf16(const __grid_constant__ xep_cuda_ll_rows_t c)
{
    combine_rows<bf16_t>(c);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    xep_cuda_ll_rows_fp16(const __grid_constant__ xep_cuda_ll_rows_t c)
{
    combine_rows<fp16_t>(c);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    xep_cuda_ll_rows_fp32(const __grid_constant__ xep_cuda_ll_rows_t c)
{
    combine_rows<fp32_t>(c);
}
