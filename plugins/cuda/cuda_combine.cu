/* SPDX-License-Identifier: BSD-3-Clause */

/* Combine: pulls the rows that ranks contribute to a token and sums them: +0, biases, then ranks as dest has them. */
#include "cuda_kernels.h"
#include "cuda_outs.cuh"
#include "cuda_reduce.cuh"
#include "cuda_sum.cuh"
#include "cuda_words.cuh"

enum { KNOWN_RANKS = 64 }; /* of more, every row is waited for by its word */

/* In shared memory: what a block has seen of the owners' words. */
typedef struct seen {
    uint32_t parts[KNOWN_RANKS];
    uint32_t asking[KNOWN_RANKS]; /* 1: a lane looks at the word */
    uint32_t all;                 /* 1: all parts of all owners */
    uint32_t late;                /* 1: one did not come */
    uint64_t own;                 /* first row of this rank in its own slot */
} seen_t;

/* A combine of an epoch, in a block. */
typedef struct summing {
    const xep_cuda_combine_t &c;
    const xep_cuda_sum_t &sum;
    seen_t *seen;
    uint64_t epoch;
} summing_t;

static __device__ __forceinline__ const char *ready_at(const xep_cuda_combine_t &c, uint32_t rank)
{
    return c.peer[c.rank] + c.ready + rank * c.word_stride;
}

typedef enum { HERE, NOT_YET, OTHERS_ASK } look_t;

/* Whether so many parts of an owner are there. One lane of a block asks the owner's word, the others what it found. */
static __device__ __forceinline__ look_t look(const summing_t &s, uint32_t rank, uint32_t parts)
{
    const uint64_t none = s.epoch * XEP_CUDA_STEPS;
    if (rank >= KNOWN_RANKS) return load_word(ready_at(s.c, rank)) >= none + parts ? HERE : NOT_YET;
    volatile uint32_t *seen = &s.seen->parts[rank];
    if (*seen >= parts) return HERE;
    if (atomicExch(&s.seen->asking[rank], 1) != 0) return OTHERS_ASK;
    const uint64_t there =
        load_word(ready_at(s.c, rank)) - none; /* more in the owner's next operation: not before this ends */
    *seen = (uint32_t)there;
    atomicExch(&s.seen->asking[rank], 0);
    return there >= parts ? HERE : NOT_YET;
}

/*
 * One lane, before it pulls a row. What no bulk copy pulls waits for all parts: lines of 128 bytes may have rows of two
 * parts, and the caches of ordinary loads keep lines. Lanes that all asked all the time would be in the way of what
 * they wait for.
 */
static __device__ __forceinline__ void wait_row(const summing_t &s, xep_cuda_dest_t dest)
{
    const uint32_t rank = (uint32_t)dest.rank, rows = s.c.rank_rows[(uint64_t)s.c.rank * s.c.nranks + rank];
    const uint32_t parts =
        s.sum.stages == 0 ? XEP_CUDA_PARTS : (uint32_t)((XEP_CUDA_PARTS * (dest.row + UINT64_C(1)) + rows - 1) / rows);
    const xep_cuda_deadline_t &deadline = s.c.deadline;
    volatile uint32_t *late = &s.seen->late;
    look_t found = look(s, rank, parts);
    if (found == HERE) return;
    const uint64_t begin = clock_ns();
    for (uint32_t asked = 0; !*late && found != HERE; found = look(s, rank, parts)) {
        __nanosleep(100);
        /* the word that stops is in the host's memory: far away */
        if (found == NOT_YET && ++asked % 64 == 0 && *(volatile const uint32_t *)deadline.stop != 0) *late = 1;
        if (deadline.timeout_ns == 0 || clock_ns() - begin < deadline.timeout_ns) continue;
        *(volatile uint32_t *)deadline.late = rank + 1;
        *late = 1;
    }
}

/* Whether the rows of a rank are in the sum. */
static __device__ __forceinline__ int is_with(const xep_cuda_combine_t &c, uint32_t rank)
{
    return !leaves_out(c.outs) ||
           (how_with(c.outs, rank) == XEP_CUDA_WITH && c.there[rank].area[XEP_CUDA_INPUT] != nullptr);
}

/* Biases first, then the ranks that got the token. Own rows are read where the user has them. */
static __device__ __forceinline__ const char *contribution(const summing_t &s, uint32_t token, uint32_t n,
                                                           float *weight_p)
{
    const xep_cuda_combine_t &c = s.c;
    const char *bias = bias_of(c.sum, token, &n);
    (void)weight_p;
    if (bias != nullptr) return bias;
    const xep_cuda_dest_t dest = c.dest[(uint64_t)token * c.max_dests + n];
    if (dest.rank == XEP_CUDA_NOBODY || !is_with(c, (uint32_t)dest.rank)) return nullptr;
    if (c.input.x != nullptr && c.input.slots == nullptr && dest.rank == (int32_t)c.rank)
        return c.input.x + (s.seen->own + dest.row) * c.input.x_stride;
    if (!s.seen->all) {
        wait_row(s, dest);
        fence_for_bulk();
    }
    return c.there[dest.rank].area[XEP_CUDA_INPUT] + dest.row * c.row_stride;
}

/* A warp a token, a lane a weight: in the order of dest, as on the host. */
static __device__ void sum_weights(const xep_cuda_combine_t &c)
{
    const uint32_t lane = summing_warp(c.sum), lanes = summing_warps(c.sum);
    for (uint32_t t = lane; t < c.sum.tokens; t += lanes) {
        const xep_cuda_dest_t *dest = c.dest + (uint64_t)t * c.max_dests;
        float *out = (float *)(c.out_weights + t * c.out_weights_stride);
        for (uint32_t k = threadIdx.x % 32; k < c.topk; k += 32) {
            float sum = 0;
            for (uint32_t n = 0; n < c.max_dests && dest[n].rank != XEP_CUDA_NOBODY; n++) {
                if (!is_with(c, (uint32_t)dest[n].rank)) continue;
                const char *weights = c.there[dest[n].rank].area[XEP_CUDA_INPUT_WEIGHTS];
                sum = __fadd_rn(sum, ((const float *)weights)[(uint64_t)dest[n].row * c.topk + k]);
            }
            out[k] = sum;
        }
    }
}

/* Which selections are in no sum. All blocks, by the warps that sum. */
static __device__ void tell_missing(const xep_cuda_combine_t &c)
{
    const uint32_t all = c.sum.tokens * c.topk, threads = summing_warps(c.sum) * 32;
    for (uint32_t i = summing_warp(c.sum) * 32 + threadIdx.x % 32; i < all; i += threads)
        c.missing[i / c.topk * c.missing_stride + i % c.topk] = c.chosen[i] >= 0 && !is_with(c, c.owner[c.chosen[i]]);
}

/* Which owners have all of their rows ready: where all do, no row is waited for. All threads of the block. */
static __device__ __forceinline__ void look_at_owners(const summing_t &s)
{
    const xep_cuda_combine_t &c = s.c;
    int all = 1;
    for (uint32_t r = threadIdx.x; r < c.nranks; r += blockDim.x) {
        const int here = leaves_out(c.outs) || load_word(ready_at(c, r)) >= s.epoch * XEP_CUDA_STEPS + XEP_CUDA_PARTS;
        if (r < KNOWN_RANKS) s.seen->parts[r] = here ? XEP_CUDA_PARTS : 0, s.seen->asking[r] = 0;
        all &= here;
    }
    all = __syncthreads_and(all);
    if (threadIdx.x == 0) {
        s.seen->all = (uint32_t)all;
        s.seen->late = 0;
        s.seen->own =
            c.input.x == nullptr ? 0 : (uint64_t)(c.there[c.rank].area[XEP_CUDA_INPUT] - c.input.input) / c.row_stride;
    }
    __syncthreads();
}

/* ---- outputs that are not in the input yet ---- */

/* How many parts are told after so many: a quarter more, as a token's reader waits for the next ones that are told. */
static __device__ __forceinline__ uint32_t next_parts(uint32_t parts)
{
    const uint32_t next = parts + (parts + 3) / 4 + (parts == 0);
    return next < XEP_CUDA_PARTS ? next : XEP_CUDA_PARTS;
}

/* Parts of the rows from one to another. Returns which warp this one is for what comes next. */
static __device__ uint32_t copy_rows(const xep_cuda_combine_t &c, uint32_t row_bytes, uint64_t begin, uint64_t end,
                                     uint32_t warp, uint32_t warps)
{
    const uint32_t packs = row_bytes / 16, parts = (packs + 32 * FEW - 1) / (32 * FEW);
    const uint64_t all = (end - begin) * parts;
    for (uint64_t u = warp; u < all; u += warps) {
        const uint64_t row = begin + u / parts;
        const uint32_t first = (uint32_t)(u % parts) * 32 * FEW + threadIdx.x % 32;
        const int4 *from = (const int4 *)(c.input.x + row * c.input.x_stride);
        int4 *to = (int4 *)(c.input.input + row * c.row_stride), x[FEW];
#pragma unroll
        for (uint32_t i = 0; i < FEW; i++)
            if (first + i * 32 < packs) x[i] = __ldcs(from + first + i * 32);
#pragma unroll
        for (uint32_t i = 0; i < FEW; i++)
            if (first + i * 32 < packs) to[first + i * 32] = x[i];
    }
    return next_turn(warp, warps, all);
}

/* From part begin to part end of the rows of each reader. */
template <typename E>
static __device__ void bring_parts(const xep_cuda_combine_t &c, const reduce_t &r, uint32_t begin, uint32_t end)
{
    const uint32_t warps = c.sum.beside * (blockDim.x / 32);
    uint32_t warp = threadIdx.x / 32 * c.sum.beside + blockIdx.x;
    uint64_t first = 0;
    for (uint32_t reader = 0; reader < c.nranks; reader++) {
        const uint64_t rows = c.rank_rows[(uint64_t)reader * c.nranks + c.rank];
        const uint64_t from = first + rows * begin / XEP_CUDA_PARTS, to = first + rows * end / XEP_CUDA_PARTS;
        first += rows;
        if (c.input.slots != nullptr) warp = reduce_rows<E, E>(r, from, to, warp, warps);
        else if (reader != c.rank)
            warp = copy_rows(c, c.sum.hidden * (uint32_t)sizeof(typename E::raw), from, to, warp, warps);
    }
}

/* A block that sums nothing: it counts itself when it has brought so many parts. */
template <typename E> static __device__ __forceinline__ void bring(const xep_cuda_combine_t &c)
{
    const reduce_t r = {.slots = c.input.slots,
                        .topk = c.topk,
                        .hidden = c.sum.hidden,
                        .x = c.input.x,
                        .x_stride = c.input.x_stride,
                        .out = c.input.input,
                        .out_stride = c.row_stride};
    if (*c.verdict != XEP_CUDA_GO) return;
    for (uint32_t begin = 0, end; begin < XEP_CUDA_PARTS; begin = end) {
        end = next_parts(begin);
        bring_parts<E>(c, r, begin, end);
        __syncthreads();
        if (threadIdx.x == 0) add_word_to((char *)&c.input.copied[end - 1], 1);
    }
}

/* The warp of a block that pulls nothing tells the readers of each part as soon as all of it is there. */
static __device__ void forward_parts(const summing_t &s)
{
    const xep_cuda_combine_t &c = s.c;
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t parts = 0; parts < XEP_CUDA_PARTS;) {
        parts = next_parts(parts);
        const int here = wait_word((const char *)&c.input.copied[parts - 1], c.rank, c.sum.beside, c.deadline);
        if (!here) s.seen->late = 1;
        if (!__all_sync(UINT32_MAX, here)) return;
        for (uint32_t i = lane; i < c.nranks; i += 32)
            store_word(c.peer[(c.rank + 1 + i) % c.nranks] + c.ready + c.rank * c.word_stride,
                       s.epoch * XEP_CUDA_STEPS + parts);
    }
}

/* ---- all of it ---- */

/* Whether the outputs of all ranks are ready that are not out: with masks, all parts of them. All blocks. */
static __device__ __forceinline__ int await_owners(const xep_cuda_combine_t &c, uint64_t epoch)
{
    const uint64_t none = epoch * XEP_CUDA_STEPS;
    if (!leaves_out(c.outs)) return wait_all(c.peer[c.rank], c.nranks, c.ready, c.word_stride, none, c.deadline);
    const waiter_t w = {c.outs, c.peer, c.rank, c.nranks};
    return decide(
        w, 1, [&](uint32_t r) { return ready_at(c, r); }, none + XEP_CUDA_PARTS, epoch, c.deadline,
        [](uint32_t, uint32_t) {});
}

/* One block: whether all have read what is here. */
static __device__ __forceinline__ int await_readers(const xep_cuda_combine_t &c, uint64_t epoch)
{
    const char *own = c.peer[c.rank] + c.read;
    const uint64_t value = epoch * XEP_CUDA_WHOLE;
    if (!leaves_out(c.outs)) return wait_all(c.peer[c.rank], c.nranks, c.read, c.word_stride, value, c.at_the_end);
    const waiter_t w = {c.outs, c.peer, c.rank, c.nranks};
    return await_all(
        w, [&](uint32_t r) { return own + r * c.word_stride; }, value, epoch, c.at_the_end, [](uint32_t, uint32_t) {});
}

/* Waits for the others, in every block by itself; then sums where they agree and the dispatch has moved rows. */
template <typename E>
static __device__ __forceinline__ void sum_all(const xep_cuda_combine_t &c, uint64_t epoch, char *shared)
{
    __shared__ seen_t seen;
    const summing_t s = {c, c.sum, &seen, epoch};
    const uint32_t warp = threadIdx.x / 32;
    if (!await_owners(c, epoch)) {
        lose_step(&c.now->lost, epoch);
        return;
    }
    /* a rank that is out agrees with this one */
    const auto said = [&](uint32_t r) {
        const int with = !leaves_out(c.outs) || how_with(c.outs, r) == XEP_CUDA_WITH;
        return c.peer[c.rank] + c.said + (with ? r : c.rank) * c.word_stride;
    };
    if (!compare_offers(c.nranks, said, c.differs) || *c.verdict != XEP_CUDA_GO) return;
    look_at_owners(s);
    if (warp >= c.sum.warps) {
        if (blockIdx.x == c.sum.beside && c.input.x != nullptr) forward_parts(s);
    } else {
        sum_tokens<E, false>(s, shared);
        if (c.out_weights != nullptr) sum_weights(c);
        if (c.missing != nullptr) tell_missing(c);
    }
    if (seen.late) *(volatile uint64_t *)&c.now->lost = epoch; /* any thread's */
}

/* To each rank by another thread: its offer, then the word that says so. */
static __device__ __forceinline__ void say_offer(const xep_cuda_combine_t &c, uint64_t epoch)
{
    const uint64_t ready = epoch * XEP_CUDA_STEPS + (c.input.x == nullptr ? XEP_CUDA_PARTS : 0);
    for (uint32_t i = threadIdx.x; i < c.nranks; i += blockDim.x) {
        char *line = c.peer[(c.rank + 1 + i) % c.nranks] + c.rank * c.word_stride;
        uint64_t *said = (uint64_t *)(line + c.said);
        said[0] = c.offer[0];
        said[1] = c.offer[1];
        store_word(line + c.ready, ready);
    }
}

/*
 * One block counts the operation when all have told: by then they have read the epoch of the one before. Where a rank
 * did not come in time it may come yet, and find the input as it was, since the end of this kernel waits for it once
 * more.
 */
template <typename E> static __device__ __forceinline__ void combine(const xep_cuda_combine_t &c)
{
    extern __shared__ __align__(128) char shared[];
    const uint64_t epoch = c.now->epoch + 1, read = c.now->read;
    const int lost = has_lost_step(&c.now->lost, epoch); /* loaded beside the other word, not behind it */
    if (is_stale(c.life) || lost) return;                /* all blocks */
    /*
     * One block tells; its word to this rank itself is among those that all blocks wait for. If outputs are brought, it
     * is one of those that bring: the words of parts, which come behind what all of these have done, come behind it.
     */
    if (blockIdx.x == 0) say_offer(c, epoch);
    open_pulls(c.sum, shared);
    if (blockIdx.x < c.sum.beside) bring<E>(c);
    else sum_all<E>(c, epoch, shared);
    /* told also where nothing was summed, as the owners wait for it */
    tell_share(c.peer, c.rank, c.nranks, c.read, c.word_stride, read, epoch, 1);
    if (blockIdx.x != 0) return;
    if (threadIdx.x == 0) {
        wait_for_blocks(c.peer[c.rank] + c.read + c.rank * c.word_stride, epoch);
        for (uint32_t i = 0; i < XEP_CUDA_PARTS && c.input.x != nullptr; i++) c.input.copied[i] = 0;
        c.now->epoch = c.now->read = epoch;
    }
    if (!await_readers(c, epoch)) lose_step(&c.now->lost, epoch);
}

extern "C" __global__ void __launch_bounds__(XEP_CUDA_COMBINE_THREADS, 1)
    xep_cuda_combine_bf16(const __grid_constant__ xep_cuda_combine_t c)
{
    combine<bf16_t>(c);
}

extern "C" __global__ void __launch_bounds__(XEP_CUDA_COMBINE_THREADS, 1)
    xep_cuda_combine_fp16(const __grid_constant__ xep_cuda_combine_t c)
{
    combine<fp16_t>(c);
}

extern "C" __global__ void __launch_bounds__(XEP_CUDA_COMBINE_THREADS, 1)
    xep_cuda_combine_fp32(const __grid_constant__ xep_cuda_combine_t c)
{
    combine<fp32_t>(c);
}
