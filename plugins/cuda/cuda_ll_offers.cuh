/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What ranks must agree on in a combine, on buffers that push rows: each rank tells every other its offer, with its
 * epoch in each word, and "ready" behind it. Combines that sum at owners do so too, with words of their own for the
 * sums: a rank that pushes would never hear those, nor they the rows.
 *
 * A combine of a handle writes the words of the area that the next rows would take. Who overwrites them, and when:
 *  - behind one that pushed, the second combine after it: all have read them, as each told its "ready" of the first
 *    when it had received. Or one of the next handle in the writer's slot: then a rank that postpones its receive
 *    phase finds a later epoch there. The writer has ended this combine by then, and so has found the offers the same.
 *  - behind one that summed at owners, which takes no area, the next one: it ended when all had read its sums, and
 *    before them these words.
 */
#ifndef XEP_CUDA_LL_OFFERS_CUH
#define XEP_CUDA_LL_OFFERS_CUH

#include "cuda_ll_heaps.cuh"

static __device__ __forceinline__ xep_cuda_ll_told_t *told_at(const xep_cuda_ll_heaps_t &at, uint32_t heap,
                                                              uint32_t slot, uint32_t writer)
{
    return (xep_cuda_ll_told_t *)(at.peer[heap] + at.told) + slot * (uint64_t)at.nranks + writer;
}

/*
 * By all threads of a block, to each rank. The word is a release by the thread that wrote the offer: it takes a while,
 * so the last warps do it, which, where rows are pushed, wait for them first.
 */
static __device__ __forceinline__ void tell_offer(const xep_cuda_ll_heaps_t &at, const uint64_t *offer, uint32_t area,
                                                  uint64_t epoch)
{
    for (uint32_t i = blockDim.x - 1 - threadIdx.x; i < at.nranks; i += blockDim.x) {
        auto &told = told_at(at, (at.rank + 1 + i) % at.nranks, at.slot_number, at.rank)->area[area];
        for (uint32_t w = 0; w < 4; w++) store_told(&told.offer[w], (uint32_t)(offer[w / 2] >> w % 2 * 32), epoch);
        store_word((char *)&told.ready, epoch);
    }
}

/*
 * A warp: whether all ranks are ready and offer the same. 0: they do not, or the deadline has passed. Of those that
 * differ each rank finds one.
 */
static __device__ __forceinline__ int await_offers(const xep_cuda_ll_sums_t &c, uint32_t area, uint64_t epoch)
{
    const xep_cuda_ll_heaps_t &at = c.at;
    for (uint32_t begin = 0; begin < at.nranks; begin += 32) {
        const uint32_t lane = begin + threadIdx.x % 32, r = lane < at.nranks ? lane : at.nranks - 1;
        const auto &told = told_at(at, at.rank, at.there[r], r)->area[area];
        if (!__all_sync(UINT32_MAX, wait_word((const char *)&told.ready, r, epoch, c.deadline))) return 0;
        int same = 1;
        for (uint32_t w = 0; w < 4; w++) {
            const uint64_t offer = load_told(&told.offer[w]);
            same &= (uint32_t)(offer >> 32) != (uint32_t)epoch ||
                    (uint32_t)offer == (uint32_t)(c.offer[w / 2] >> w % 2 * 32);
        }
        if (!same) *(volatile uint32_t *)c.differs = (r < at.rank ? at.rank : r) + 1;
        if (!__all_sync(UINT32_MAX, same)) return 0;
    }
    return 1;
}

/* A block that sums what owners have summed, where other ranks may have pushed rows instead: likewise. */
static __device__ __forceinline__ int agree(const xep_cuda_ll_sums_t &c, uint64_t epoch)
{
    return __syncthreads_and(threadIdx.x >= 32 || await_offers(c, c.at.slot->area, epoch));
}

#endif
