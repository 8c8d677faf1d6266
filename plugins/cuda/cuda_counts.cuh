/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The records that ranks tell each other before rows move. The host checks and compares them too, as it does for rows
 * in its own memory, and finds the words for what is wrong; here it is only found whether rows may move, so that nobody
 * waits for a host. Both look at the same records.
 *
 * One block tells, and shows what came of it to later kernels and to the host, beside the rows; every block waits for
 * the records of all ranks and judges them by itself.
 */
#ifndef XEP_CUDA_COUNTS_CUH
#define XEP_CUDA_COUNTS_CUH

#include "cuda_kernels.h"
#include "cuda_outs.cuh"
#include "cuda_plan.cuh"
#include "cuda_words.cuh"

#include <stddef.h>

/* In words of 4 bytes; the epoch comes first. */
enum { HEADER = sizeof(normal_record_t) / 4, EPOCH = 2, AGREES_WITH_ALL = -1, AT_ONCE = 8 /* loads of a thread */ };
static_assert(offsetof(normal_record_t, epoch) == 0 && sizeof(normal_record_t::epoch) == 4 * EPOCH, "");

typedef xep_cuda_dispatch_t dispatch_t;

/* In shared memory: what a block has read of all ranks' records, and where rows go. */
typedef struct board {
    uint32_t *words; /* [nranks][stride] header, then rows to each rank */
    uint32_t stride;
    xep_cuda_rank_t *ranks; /* [nranks] */
} board_t;

/* As the host has measured it: xep_cuda_board_bytes(). */
static __device__ __forceinline__ board_t lay_board(uint32_t nranks, char *shared)
{
    const uint32_t stride = (HEADER + nranks + 1) & ~1u;
    return {(uint32_t *)shared, stride, (xep_cuda_rank_t *)(shared + (uint64_t)nranks * stride * 4)};
}

static __device__ __forceinline__ const normal_record_t &header_of(const board_t &b, uint32_t rank)
{
    return *(const normal_record_t *)(b.words + rank * b.stride);
}

static __device__ __forceinline__ uint32_t rows_of(const board_t &b, uint32_t from, uint32_t to)
{
    return b.words[from * b.stride + HEADER + to];
}

/*
 * The record of a rank in a heap, where its source has stored it: one of each rank, which serves all slots. Each number
 * of it lies beside the epoch.
 */
static __device__ __forceinline__ uint64_t *record_in(const dispatch_t &d, char *heap, uint32_t source)
{
    return (uint64_t *)(heap + d.counts.records + source * 2 * d.counts.record_bytes);
}

/* A number of a record in this rank's heap, which is there. */
static __device__ __forceinline__ uint32_t told_by(const dispatch_t &d, uint32_t source, uint32_t i)
{
    return (uint32_t)load_told(record_in(d, d.peer[d.rank], source) + i);
}

static __device__ __forceinline__ uint32_t experts_of(const dispatch_t &d, uint32_t rank)
{
    return d.first_expert[rank + 1] - d.first_expert[rank];
}

/*
 * Into the board, before there is anything to tell: later one load would wait for another. By the last warp: the first
 * ones load owners.
 */
static __device__ __forceinline__ void take_experts(const dispatch_t &d, const board_t &b)
{
    if (threadIdx.x + 32 < blockDim.x) return;
    for (uint32_t r = threadIdx.x % 32; r < d.plan.nranks; r += 32) {
        b.ranks[r].heap = d.peer[r];
        b.ranks[r].first_expert = d.first_expert[r];
        b.ranks[r].end_expert = d.first_expert[r + 1];
    }
}

static __device__ __forceinline__ int is_cached(const dispatch_t &d)
{
    return d.counts.header.params[NORMAL_CACHED] != 0;
}

/* ---- to all ranks ---- */

/* Rows to a rank, as its plan has them. */
static __device__ __forceinline__ uint32_t rows_to(const dispatch_t &d, const xep_cuda_plan_t &plan, uint32_t rank)
{
    return d.planning ? count_rows(plan, rank) : plan.rows[rank];
}

/*
 * A warp writes the record of one rank: rows to everyone, and the selections of that rank's experts. With a cached
 * handle zeros: a rank that has none, and so disagrees, waits for as much.
 */
static __device__ __forceinline__ void store_record(const dispatch_t &d, const board_t &b, const xep_cuda_plan_t &plan,
                                                    uint64_t epoch, uint32_t to)
{
    uint64_t *record = record_in(d, b.ranks[to].heap, d.rank);
    const uint32_t *header = (const uint32_t *)&d.counts.header;
    const uint32_t first = b.ranks[to].first_expert, count = b.ranks[to].end_expert - first, lane = threadIdx.x % 32;
    const uint32_t cached = is_cached(d), wrong = !cached && *plan.wrong != UINT64_MAX;
    for (uint32_t i = lane; i < HEADER; i += 32) {
        uint32_t number = header[i];
        if (i < EPOCH) number = (uint32_t)(epoch >> 32 * i);
        if (i == offsetof(normal_record_t, wrong) / 4) number = wrong;
        store_told(record + i, number, epoch);
    }
    record += HEADER;
    for (uint32_t i = lane; i < plan.nranks; i += 32) store_told(record + i, cached ? 0 : rows_to(d, plan, i), epoch);
    record += plan.nranks;
    for (uint32_t i = lane; i < count; i += 32) store_told(record + i, cached ? 0 : plan.selections[first + i], epoch);
}

static __device__ __forceinline__ waiter_t waiter_of(const dispatch_t &d)
{
    return {d.outs, d.peer, d.rank, d.plan.nranks};
}

/*
 * Where ranks may be out, before the record is told, all threads of one block: it is in this rank's own heap, and then
 * claimed. 0: others have left this rank out.
 */
static __device__ int claim_record(const dispatch_t &d, const board_t &b, const xep_cuda_plan_t &plan, uint64_t epoch)
{
    __shared__ int claimed;
    if (threadIdx.x < 32) store_record(d, b, plan, epoch, d.rank);
    __syncwarp();
    if (threadIdx.x == 0) {
        const waiter_t w = waiter_of(d);
        xep_cuda_own_words_t *own = words_of(w, d.rank);
        const unsigned long long before = *(const volatile uint64_t *)&own->claim;
        *(volatile uint64_t *)&own->storing = epoch;
        __threadfence_system();
        claimed =
            before % 2 == 0 && atomicCAS_system((unsigned long long *)&own->claim, before, 2ull * epoch) == before;
        if (!claimed) is_left_by_others(w);
        __threadfence_system();
    }
    __syncthreads();
    return claimed;
}

/* One thread: the record of a rank that is out, and counts, from its own heap; of selections it has told nothing. */
static __device__ void fetch_record(const dispatch_t &d, uint32_t source, uint64_t epoch)
{
    const uint64_t *from = record_in(d, d.peer[source], source);
    uint64_t *to = record_in(d, d.peer[d.rank], source);
    const uint32_t counts = is_cached(d) ? 0 : d.plan.nranks, words = HEADER + counts;
    for (uint32_t i = 0; i < words; i++) store_told(to + i, (uint32_t)load_told(from + i), epoch);
    for (uint32_t i = 0; i < experts_of(d, d.rank) && !is_cached(d); i++) store_told(to + words + i, 0, epoch);
}

/* Whether nothing that a rank says counts. */
static __device__ __forceinline__ int is_without(const dispatch_t &d, uint32_t rank)
{
    return leaves_out(d.outs) && how_with(d.outs, rank) == XEP_CUDA_WITHOUT;
}

/*
 * All threads of one block. Where ranks may be out a word says that the whole record is there: it comes behind what its
 * warp has stored, so no warp waits for another.
 */
static __device__ __forceinline__ void tell_records(const dispatch_t &d, const board_t &b, const xep_cuda_plan_t &plan,
                                                    uint64_t epoch)
{
    for (uint32_t i = threadIdx.x / 32; i < plan.nranks; i += blockDim.x / 32) {
        const uint32_t to = (d.rank + 1 + i) % plan.nranks;
        store_record(d, b, plan, epoch, to);
        if (!leaves_out(d.outs)) continue;
        __syncwarp();
        if (threadIdx.x % 32 == 0) store_word(b.ranks[to].heap + d.counts.word + d.rank * d.word_stride, epoch);
    }
}

/* ---- what all have told ---- */

/*
 * Copies, so that what is checked is what is used; waits for each number, if they are not known to be there. The rows
 * of a cached routing are known. The block that shows counts waits for the selections, too. All threads of the block;
 * 0: the deadline has passed.
 */
static __device__ __forceinline__ int take_records(const dispatch_t &d, const board_t &b, uint64_t epoch, int wait)
{
    const uint32_t nranks = d.plan.nranks, rows = HEADER + (is_cached(d) ? 0 : nranks);
    const uint32_t each = rows + (wait && blockIdx.x == 0 && !is_cached(d) ? experts_of(d, d.rank) : 0);
    int here = 1;
    for (uint32_t i = threadIdx.x; i < nranks * each && here; i += blockDim.x) {
        const uint32_t r = i / each, w = i % each;
        const uint64_t *told = record_in(d, d.peer[d.rank], r) + w;
        uint32_t number;
        if (wait) here = wait_told(told, r, epoch, d.counts.deadline, &number);
        else number = (uint32_t)load_told(told);
        if (w < rows) b.words[r * b.stride + w] = number;
    }
    for (uint32_t i = threadIdx.x; i < nranks * nranks && is_cached(d); i += blockDim.x)
        b.words[i / nranks * b.stride + HEADER + i % nranks] = d.counts.rank_rows[i];
    return __syncthreads_and(here);
}

/* Of ranks that are out: they agree with this one, send nothing, and have as much room as any rank. */
static __device__ __forceinline__ void imagine_records(const dispatch_t &d, const board_t &b, uint64_t epoch)
{
    for (uint32_t r = threadIdx.x; r < d.plan.nranks; r += blockDim.x) {
        if (!is_without(d, r)) continue;
        normal_record_t *header = (normal_record_t *)(b.words + r * b.stride);
        *header = d.counts.header;
        header->epoch = epoch;
        header->capacity = d.counts.recv_rows;
        header->slot = header->wrong = 0;
        for (uint32_t i = 0; i < d.plan.nranks; i++) b.words[r * b.stride + HEADER + i] = 0;
    }
    __syncthreads();
}

/*
 * Whether a record may be used: it is of this operation, no index of its writer is wrong, and its slot and
 * capacity fit the heaps. With a cached handle all ranks must use the routing of the same dispatch.
 */
static __device__ __forceinline__ int is_sound(const dispatch_t &d, const board_t &b, uint64_t epoch, uint32_t rank)
{
    const normal_record_t &header = header_of(b, rank), &first = header_of(b, 0);
    return header.epoch == epoch && header.wrong == 0 && header.slot < d.counts.slots &&
           header.capacity <= d.counts.recv_rows && (!is_cached(d) || header.routing == first.routing);
}

/* Whether all ranks that have an opinion of a parameter have the same. */
static __device__ __forceinline__ int is_agreed(const board_t &b, uint32_t nranks, uint32_t param)
{
    uint32_t said = (uint32_t)AGREES_WITH_ALL;
    for (uint32_t r = 0; r < nranks; r++) {
        const uint32_t value = header_of(b, r).params[param];
        if (value == (uint32_t)AGREES_WITH_ALL || value == said) continue;
        if (said != (uint32_t)AGREES_WITH_ALL) return 0;
        said = value;
    }
    return 1;
}

/* Rows to a rank from all ranks before this one. */
static __device__ __forceinline__ uint64_t rows_before(const board_t &b, uint32_t from, uint32_t to)
{
    uint64_t rows = 0;
    for (uint32_t s = 0; s < from; s++) rows += rows_of(b, s, to);
    return rows;
}

/* Addresses in the slot that the rank chose, of all its arrays; row is the first of this rank's rows there. */
static __device__ __forceinline__ void find_places(const dispatch_t &d, const board_t &b, uint32_t rank)
{
    const uint64_t slot = header_of(b, rank).slot, row = rows_before(b, d.rank, rank);
    xep_cuda_rank_t *there = &b.ranks[rank];
    for (int i = 0; i < XEP_CUDA_AREAS; i++) {
        const xep_cuda_area_t &area = d.counts.area[i];
        there->at.area[i] =
            is_without(d, rank) ? nullptr : there->heap + area.first + slot * area.stride + row * area.row_bytes;
    }
}

/* All threads of the block; true: rows may move. The same in all blocks and on all ranks. */
static __device__ __forceinline__ int judge(const dispatch_t &d, const board_t &b, uint64_t epoch)
{
    const uint32_t nranks = d.plan.nranks;
    int good = 1;
    if (leaves_out(d.outs)) imagine_records(d, b, epoch);
    for (uint32_t p = threadIdx.x; p < NORMAL_PARAMS; p += blockDim.x) good &= is_agreed(b, nranks, p);
    for (uint32_t r = threadIdx.x; r < nranks; r += blockDim.x) {
        good &= is_sound(d, b, epoch, r) && rows_before(b, nranks, r) <= header_of(b, r).capacity;
        find_places(d, b, r);
    }
    return __syncthreads_and(good);
}

/* ---- to later kernels: some threads of one block, of which this is number me ---- */

/* Selections of the own experts, for this dispatch and those that use its routing; zeros where nothing moves. */
static __device__ __forceinline__ void show_experts(const dispatch_t &d, int go, uint32_t me, uint32_t all)
{
    const xep_cuda_counts_t &counts = d.counts;
    for (uint32_t e = me; e < experts_of(d, d.rank); e += all) {
        uint32_t sum = 0;
#pragma unroll 4
        for (uint32_t s = 0; s < d.plan.nranks && go && !is_cached(d); s++)
            sum += is_without(d, s) ? 0 : told_by(d, s, HEADER + d.plan.nranks + e);
        if (!is_cached(d)) counts.local[e] = sum;
        else if (go) sum = counts.local[e];
        if (counts.counts_there)
            counts.expert_rows[e] = (sum + (uint64_t)counts.alignment - 1) / counts.alignment * counts.alignment;
    }
}

/* What combines and dispatches of this routing need, and what recv shows. */
static __device__ __forceinline__ void show_counts(const dispatch_t &d, const board_t &b, int go, uint32_t me,
                                                   uint32_t all)
{
    const uint32_t nranks = d.plan.nranks;
    for (uint32_t i = me; i < nranks * nranks && go && !is_cached(d); i += all)
        d.counts.rank_rows[i] = rows_of(b, i / nranks, i % nranks);
    for (uint32_t r = me; r < nranks && go; r += all) d.counts.there[r] = b.ranks[r].at;
    for (uint32_t r = me; r <= nranks && (d.counts.counts_there || d.part != XEP_CUDA_ALL); r += all)
        d.counts.src_begin[r] = go ? rows_before(b, r, d.rank) : 0;
    for (uint32_t r = me; r < nranks && d.part != XEP_CUDA_ALL; r += all) d.counts.first[r] = header_of(b, r).first;
    show_experts(d, go, me, all);
}

/* ---- to the host: a warp ---- */

/* A word of a record: of one that is imagined, as it is on the board. */
static __device__ __forceinline__ uint32_t mirrored(const dispatch_t &d, const board_t &b, uint32_t rank, uint32_t i)
{
    if (!is_without(d, rank)) return told_by(d, rank, i);
    return i < HEADER + d.plan.nranks ? b.words[rank * b.stride + i] : 0;
}

/*
 * The records as they came. The host has counted fewer operations than the device where graphs were replayed: it is
 * shown its own number for that of this one.
 */
static __device__ __forceinline__ void mirror_records(const dispatch_t &d, const board_t &b, uint64_t epoch,
                                                      char *mirror)
{
    const uint32_t each = HEADER - EPOCH + (is_cached(d) ? 0 : d.plan.nranks + experts_of(d, d.rank));
    const uint32_t lane = threadIdx.x % 32, words = d.plan.nranks * each;
    for (uint32_t begin = lane; begin < words; begin += 32 * AT_ONCE) {
        uint32_t word[AT_ONCE];
#pragma unroll
        for (uint32_t a = 0; a < AT_ONCE; a++) {
            const uint32_t i = begin + a * 32;
            word[a] = i < words ? mirrored(d, b, i / each, EPOCH + i % each) : 0;
        }
#pragma unroll
        for (uint32_t a = 0; a < AT_ONCE; a++) {
            const uint32_t i = begin + a * 32;
            if (i < words) ((uint32_t *)(mirror + i / each * d.counts.record_bytes))[EPOCH + i % each] = word[a];
        }
    }
    for (uint32_t r = lane; r < d.plan.nranks; r += 32)
        ((normal_record_t *)(mirror + r * d.counts.record_bytes))->epoch =
            header_of(b, r).epoch - epoch + d.counts.header.epoch;
    __syncwarp();
}

/* Also where nothing moves: the host finds the reason in the same records. The word comes last (wait_counts()). */
static __device__ __forceinline__ void tell_host(const dispatch_t &d, const board_t &b, uint64_t epoch, uint64_t wrong)
{
    mirror_records(d, b, epoch, d.counts.mirror);
    if (threadIdx.x % 32 != 0) return;
    *d.counts.wrong_first = wrong;
    __threadfence_system(); /* of what the other lanes wrote, too */
    *(volatile uint64_t *)d.counts.counted = d.counts.header.epoch;
}

/* The lowest rank that gets more than it has room for. */
static __device__ __forceinline__ uint32_t find_small(const board_t &b, uint32_t nranks)
{
    uint32_t rank = 0;
    while (rank + 1 < nranks && rows_before(b, nranks, rank) <= header_of(b, rank).capacity) rank++;
    return rows_before(b, nranks, rank) <= header_of(b, rank).capacity ? nranks : rank;
}

/* Of a dispatch whose counts no host waits for: the first one is told, the records of later ones are not looked at. */
static __device__ __forceinline__ void keep_refusal(const dispatch_t &d, const board_t &b, uint64_t epoch,
                                                    uint64_t wrong)
{
    xep_cuda_refusal_t *refusal = d.counts.refusal;
    if (__any_sync(UINT32_MAX, *(volatile uint64_t *)&refusal->refused != 0)) return;
    mirror_records(d, b, epoch, d.counts.refused);
    if (threadIdx.x % 32 != 0) return;
    refusal->wrong = wrong;
    refusal->rank = find_small(b, d.plan.nranks);
    refusal->rows = refusal->rank == d.plan.nranks ? 0 : rows_before(b, d.plan.nranks, refusal->rank);
    __threadfence_system();
    *(volatile uint64_t *)&refusal->refused = 1;
}

#endif
