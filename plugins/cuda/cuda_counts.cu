/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The records that ranks tell each other before rows move. The host checks and compares them too, as it does for rows
 * in its own memory, and finds the words for what is wrong; here it is only found whether rows may move, so that nobody
 * waits for a host. Both look at the same records.
 */
#include "cuda_kernels.h"
#include "cuda_words.cuh"

#include <stddef.h>

/* In words of 4 bytes; the epoch comes first. */
enum { HEADER = sizeof(normal_record_t) / 4, EPOCH = 2, AGREES_WITH_ALL = -1 };
static_assert(offsetof(normal_record_t, epoch) == 0 && sizeof(normal_record_t::epoch) == 4 * EPOCH, "");

/* In this rank's heap, where its source has stored it: one record of each rank, which serves all slots. */
static __device__ __forceinline__ const uint32_t *record_of(const xep_cuda_counts_t &counts, uint32_t source)
{
    return (const uint32_t *)(counts.peer[counts.rank] + counts.records + source * counts.record_bytes);
}

static __device__ __forceinline__ const normal_record_t &header_of(const xep_cuda_counts_t &counts, uint32_t source)
{
    return *(const normal_record_t *)record_of(counts, source);
}

static __device__ __forceinline__ uint32_t experts_of(const xep_cuda_counts_t &counts, uint32_t rank)
{
    return counts.first_expert[rank + 1] - counts.first_expert[rank];
}

/* A warp writes the record of one rank: rows to everyone, and the selections of that rank's experts. */
static __device__ __forceinline__ void store_record(const xep_cuda_counts_t &counts, uint64_t epoch, uint32_t to,
                                                    uint32_t wrong)
{
    uint32_t *record = (uint32_t *)(counts.peer[to] + counts.records + counts.rank * counts.record_bytes);
    const uint32_t *header = (const uint32_t *)&counts.header;
    const uint32_t first = counts.first_expert[to], lane = threadIdx.x % 32;
    if (lane == 0) ((normal_record_t *)record)->epoch = epoch;
    for (uint32_t i = EPOCH + lane; i < HEADER; i += 32)
        record[i] = i == offsetof(normal_record_t, wrong) / 4 ? wrong : header[i];
    if (counts.header.params[NORMAL_CACHED]) return;
    record += HEADER;
    for (uint32_t i = lane; i < counts.nranks; i += 32) record[i] = counts.rows[i];
    for (uint32_t i = lane; i < experts_of(counts, to); i += 32)
        record[counts.nranks + i] = counts.selections[first + i];
}

/*
 * A warp shows the host what came from one rank. The host has counted fewer operations than the device where graphs
 * were replayed: it is shown its own number for that of this one.
 */
static __device__ __forceinline__ void mirror_record(const xep_cuda_counts_t &counts, uint64_t epoch, char *mirror,
                                                     uint32_t from)
{
    uint32_t *to = (uint32_t *)(mirror + from * counts.record_bytes), words = HEADER;
    if (!counts.header.params[NORMAL_CACHED]) words += counts.nranks + experts_of(counts, counts.rank);
    for (uint32_t i = EPOCH + threadIdx.x % 32; i < words; i += 32) to[i] = record_of(counts, from)[i];
    if (threadIdx.x % 32 == 0)
        ((normal_record_t *)to)->epoch = header_of(counts, from).epoch - epoch + counts.header.epoch;
}

/*
 * Whether a record may be used: it is of this operation, no index of its writer is wrong, and its slot and
 * capacity fit the heaps. With a cached handle all ranks must use the routing of the same dispatch.
 */
static __device__ __forceinline__ int is_sound(const xep_cuda_counts_t &counts, uint64_t epoch, uint32_t rank)
{
    const normal_record_t &header = header_of(counts, rank), &first = header_of(counts, 0);
    return header.epoch == epoch && header.wrong == 0 && header.slot < counts.slots &&
           header.capacity <= counts.recv_rows &&
           (!counts.header.params[NORMAL_CACHED] || header.routing == first.routing);
}

/* Whether all ranks that have an opinion of a parameter have the same. */
static __device__ __forceinline__ int is_agreed(const xep_cuda_counts_t &counts, uint32_t param)
{
    uint32_t said = (uint32_t)AGREES_WITH_ALL;
    for (uint32_t r = 0; r < counts.nranks; r++) {
        const uint32_t value = header_of(counts, r).params[param];
        if (value == (uint32_t)AGREES_WITH_ALL || value == said) continue;
        if (said != (uint32_t)AGREES_WITH_ALL) return 0;
        said = value;
    }
    return 1;
}

/* Rows to a rank: whether they have room there. Where those of this rank begin is in *before_p. */
static __device__ __forceinline__ int add_rank(const xep_cuda_counts_t &counts, uint32_t rank, uint64_t *before_p)
{
    uint64_t all = 0;
    for (uint32_t s = 0; s < counts.nranks; s++) {
        uint32_t *rows = &counts.rank_rows[s * counts.nranks + rank];
        if (s == counts.rank) *before_p = all;
        /* a cached routing has its matrix already, and the records bring none */
        if (!counts.header.params[NORMAL_CACHED]) *rows = record_of(counts, s)[HEADER + rank];
        all += *rows;
    }
    return all <= header_of(counts, rank).capacity;
}

/* Addresses in the slot that the rank chose, of all its arrays; row is the first of this rank's rows there. */
static __device__ __forceinline__ void find_places(const xep_cuda_counts_t &counts, uint32_t rank, uint64_t row)
{
    const uint32_t slot = header_of(counts, rank).slot;
    for (int i = 0; i < XEP_CUDA_AREAS; i++) {
        const xep_cuda_area_t &area = counts.area[i];
        counts.there[rank].area[i] = counts.peer[rank] + area.first + slot * area.stride + row * area.row_bytes;
    }
}

/* All threads of the block; true: rows may move. */
static __device__ __forceinline__ int judge(const xep_cuda_counts_t &counts, uint64_t epoch)
{
    int good = 1;
    for (uint32_t p = threadIdx.x; p < NORMAL_PARAMS; p += blockDim.x) good &= is_agreed(counts, p);
    for (uint32_t r = threadIdx.x; r < counts.nranks; r += blockDim.x) {
        uint64_t row = 0;
        /* & and not &&: find_small() needs the whole matrix, also where a record is not sound */
        good &= is_sound(counts, epoch, r) & add_rank(counts, r, &row);
        if (good) find_places(counts, r, row);
    }
    return __syncthreads_and(good);
}

/* All threads of the block. When it returns, the host sees all records: a word that says so may follow. */
static __device__ __forceinline__ void mirror_all(const xep_cuda_counts_t &counts, uint64_t epoch, char *mirror)
{
    for (uint32_t r = threadIdx.x / 32; r < counts.nranks; r += blockDim.x / 32)
        mirror_record(counts, epoch, mirror, r);
    __threadfence_system();
    __syncthreads();
}

/* ---- counts that stay here ---- */

/* Selections of the own experts, for this dispatch and those that use its routing. */
static __device__ __forceinline__ void add_selections(const xep_cuda_counts_t &counts)
{
    const uint32_t experts = experts_of(counts, counts.rank);
    for (uint32_t e = threadIdx.x; e < experts && !counts.header.params[NORMAL_CACHED]; e += blockDim.x) {
        uint32_t sum = 0;
        for (uint32_t s = 0; s < counts.nranks; s++) sum += record_of(counts, s)[HEADER + counts.nranks + e];
        counts.local[e] = sum;
    }
}

/* What recv shows; zeros where nothing moves. All threads of the block. */
static __device__ __forceinline__ void show_counts(const xep_cuda_counts_t &counts, int go)
{
    const uint32_t experts = experts_of(counts, counts.rank);
    for (uint32_t r = threadIdx.x; r <= counts.nranks; r += blockDim.x) {
        uint64_t before = 0;
        for (uint32_t s = 0; s < r && go; s++) before += counts.rank_rows[s * counts.nranks + counts.rank];
        counts.src_begin[r] = before;
    }
    for (uint32_t e = threadIdx.x; e < experts; e += blockDim.x) {
        const uint64_t rows = go ? counts.local[e] : 0;
        counts.expert_rows[e] = (rows + counts.alignment - 1) / counts.alignment * counts.alignment;
    }
}

/* One thread: the lowest rank that gets more than it has room for. */
static __device__ __forceinline__ void find_small(const xep_cuda_counts_t &counts, xep_cuda_refusal_t *refusal)
{
    for (refusal->rank = 0; refusal->rank < counts.nranks; refusal->rank++) {
        uint64_t rows = 0;
        for (uint32_t s = 0; s < counts.nranks; s++) rows += counts.rank_rows[s * counts.nranks + refusal->rank];
        refusal->rows = rows;
        if (rows > header_of(counts, refusal->rank).capacity) return;
    }
}

/* The first one is what the host tells; the records of later ones are not looked at. All threads of the block. */
static __device__ __forceinline__ void keep_refusal(const xep_cuda_counts_t &counts, uint64_t epoch, uint64_t first)
{
    const int kept = *(volatile uint64_t *)&counts.refusal->refused != 0;
    if (__syncthreads_or(kept)) return;
    mirror_all(counts, epoch, counts.refused);
    if (threadIdx.x != 0) return;
    xep_cuda_refusal_t refusal = {0, first, 0, 0, 0};
    find_small(counts, &refusal);
    counts.refusal->wrong = refusal.wrong;
    counts.refusal->rows = refusal.rows;
    counts.refusal->rank = refusal.rank;
    __threadfence_system();
    *(volatile uint64_t *)&counts.refusal->refused = 1;
}

/* ---- counts that the host waits for ---- */

/* Also where nothing moves: the host finds the reason in the same records. The word comes last (wait_counts()). */
static __device__ __forceinline__ void tell_host(const xep_cuda_counts_t &counts, uint64_t epoch, uint64_t first)
{
    mirror_all(counts, epoch, counts.mirror);
    if (threadIdx.x != 0) return;
    *counts.wrong_first = first;
    __threadfence_system();
    *(volatile uint64_t *)counts.counted = counts.header.epoch;
}

/*
 * Record to all ranks, word to all, wait for theirs, verdict. The verdict is LOST until it is known, so that the kernel
 * of the rows, which is enqueued behind this one in any case, moves nothing and tells nobody where records are missing.
 */
extern "C" __global__ void __launch_bounds__(1024, 1) xep_cuda_counts(const __grid_constant__ xep_cuda_counts_t counts)
{
    const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const uint64_t first = counts.header.params[NORMAL_CACHED] ? UINT64_MAX : *counts.wrong;
    const uint64_t epoch = counts.now->epoch + 1;
    if (is_stale(counts.life)) return;
    if (threadIdx.x == 0) *counts.verdict = XEP_CUDA_LOST;
    if (counts.counts_there) show_counts(counts, 0); /* also where some record does not come */
    if (has_lost_step(&counts.now->lost, epoch)) return;
    for (uint32_t i = warp; i < counts.nranks; i += warps)
        store_record(counts, epoch, (counts.rank + 1 + i) % counts.nranks, first != UINT64_MAX);
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) counts.now->epoch = epoch; /* all threads have read it */
    tell_all(counts.peer, counts.rank, counts.nranks, counts.word, counts.word_stride, epoch);
    if (!wait_all(counts.peer[counts.rank], counts.nranks, counts.word, counts.word_stride, epoch, counts.deadline)) {
        lose_step(&counts.now->lost, epoch);
        return;
    }
    const int go = judge(counts, epoch);
    add_selections(counts);
    __syncthreads();
    if (threadIdx.x == 0) *counts.verdict = go ? XEP_CUDA_GO : XEP_CUDA_STAY;
    if (!counts.counts_there) tell_host(counts, epoch, first);
    else if (go) show_counts(counts, 1);
    else keep_refusal(counts, epoch, first);
}
