/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Rows to their final places: read once, from there to every rank that gets them. Bulk copies go through shared memory
 * and need no registers, so that 8 to 16 of a device's multiprocessors fill its links; the last warps of each block
 * move what belongs to the rows. The first rows are on their way to shared memory while counts are exchanged.
 */
#include "cuda_move.cuh"

#ifdef XEP_CUDA_WITH_ALL
#define XEP_CUDA_DISPATCH xep_cuda_dispatch_with_all
#else
#define XEP_CUDA_DISPATCH xep_cuda_dispatch
#endif

/* ---- what all ranks have told ---- */

/* Rows that nobody sent select no expert; all of them where nothing moves. By the warps that move no rows. */
static __device__ void mark_tail(const moving_t &m, int go)
{
    const uint64_t words = (uint64_t)m.plan.topk * (m.d.wide ? 2 : 1);
    const uint64_t begin = go ? rows_before(m.board, m.plan.nranks, m.d.rank) * words : 0;
    const uint32_t copying = m.d.copying * 32, threads = blockDim.x - copying;
    const uint64_t me = blockIdx.x * threads + threadIdx.x - copying, all = (uint64_t)gridDim.x * threads;
    for (uint64_t i = begin + me; i < m.d.tail_words && m.d.tail != nullptr; i += all) m.d.tail[i] = UINT32_MAX;
}

/* One block, by its warps that move no rows: the last one tells the host while the others show the rest. */
static __device__ __forceinline__ void publish(const moving_t &m, uint64_t epoch, int verdict)
{
    const dispatch_t &d = m.d;
    const uint32_t me = threadIdx.x - d.copying * 32, all = blockDim.x - d.copying * 32 - 32;
    const uint64_t wrong = is_cached(d) ? UINT64_MAX : *m.plan.wrong;
    const int go = verdict == XEP_CUDA_GO;
    if (me < all) show_counts(d, m.board, go, me, all);
    else if (!d.counts.counts_there && verdict != XEP_CUDA_LOST) tell_host(d, m.board, epoch, wrong);
    else if (verdict == XEP_CUDA_STAY) keep_refusal(d, m.board, epoch, wrong);
    if (me == 0) *d.counts.verdict = verdict;
}

/*
 * Tells the record in one block, and takes those of all ranks that are not out; the second launch takes the same ones
 * again, which stay until all ranks have its words. All threads of the block.
 */
static __device__ __forceinline__ int exchange_records(const moving_t &m, uint64_t epoch)
{
    const dispatch_t &d = m.d;
    const char *own = d.peer[d.rank] + d.counts.word;
    int claimed = 1;
    if (leaves_out(d.outs) && blockIdx.x == 0) claimed = claim_record(d, m.board, m.plan, epoch);
    if (blockIdx.x == 0 && claimed && d.part != XEP_CUDA_REST) tell_records(d, m.board, m.plan, epoch);
    if (d.planning) list_plan(m.plan, d.copying);
    if (!leaves_out(d.outs)) return take_records(d, m.board, epoch, 1);
    const int goes_on = decide(
        waiter_of(d), claimed, [&](uint32_t r) { return own + r * d.word_stride; }, epoch, epoch, d.counts.deadline,
        [&](uint32_t r, uint32_t how) {
            if (how == XEP_CUDA_HEARD) fetch_record(d, r, epoch);
        });
    if (goes_on) take_records(d, m.board, epoch, 0);
    return goes_on;
}

/* What all ranks have told; lost where some record did not come. All threads of the block. */
static __device__ __forceinline__ int hear(const moving_t &m, uint64_t epoch)
{
    const dispatch_t &d = m.d;
    if (!exchange_records(m, epoch)) {
        lose_step(&d.now->lost, epoch);
        return XEP_CUDA_LOST;
    }
    return judge(d, m.board, epoch) ? XEP_CUDA_GO : XEP_CUDA_STAY;
}

/* A rank that is out and lives may store its rows yet: until it has done so, has ended, or has had its time. */
static __device__ void wait_until_quiet(const dispatch_t &d, uint32_t rank)
{
    const waiter_t w = waiter_of(d);
    const uint64_t begin = clock_ns();
    while (load_word((const char *)&words_of(w, rank)->storing) != 0 && is_gone(w, rank) != HAS_ENDED &&
           *(volatile const uint32_t *)d.deadline.stop == 0 && clock_ns() - begin < d.deadline.timeout_ns) {
        *(volatile uint64_t *)&words_of(w, w.rank)->beat = clock_ns(); /* others may be waiting for this rank */
        __nanosleep(1000);
    }
}

/* One block, where ranks may be out: rows of one whose last word does not come select no expert. */
static __device__ int await_rows(const moving_t &m, uint64_t epoch, int go)
{
    const dispatch_t &d = m.d;
    const waiter_t w = waiter_of(d);
    const char *own = d.peer[d.rank] + d.done;
    const int good = await_all(
        w, [&](uint32_t r) { return own + r * d.word_stride; }, epoch * XEP_CUDA_WHOLE, epoch, d.deadline,
        [&](uint32_t r, uint32_t how) {
            d.out[r] = how != XEP_CUDA_WITH || is_without(d, r);
            if (how != XEP_CUDA_WITH && !is_without(d, r)) wait_until_quiet(d, r);
        });
    const xep_cuda_area_t &idx = d.counts.area[XEP_CUDA_TOPK_IDX];
    char *rows = d.peer[d.rank] + idx.first + d.counts.header.slot * idx.stride;
    for (uint32_t r = 0; r < w.nranks && good && go; r++) {
        if (((volatile uint8_t *)d.out)[r] == 0) continue;
        const uint64_t first = rows_before(m.board, r, d.rank), words = idx.row_bytes / 4;
        for (uint64_t i = threadIdx.x; i < rows_of(m.board, r, d.rank) * words; i += blockDim.x)
            ((uint32_t *)(rows + first * idx.row_bytes))[i] = UINT32_MAX;
    }
    return good;
}

/*
 * One block: waits for the rows of all ranks, and counts the operation when all blocks of this one have told; where
 * ranks may be left out it is counted first.
 */
static __device__ __forceinline__ void end_dispatch(const moving_t &m, uint64_t epoch, int verdict)
{
    const dispatch_t &d = m.d;
    int good = 1;
    if (!leaves_out(d.outs) && verdict != XEP_CUDA_LOST)
        good = wait_all(d.peer[d.rank], m.plan.nranks, d.done, d.word_stride, epoch * XEP_CUDA_WHOLE, d.deadline);
    if (threadIdx.x == 0) {
        wait_for_blocks(d.peer[d.rank] + d.done + d.rank * d.word_stride, epoch);
        d.now->epoch = d.now->done = epoch;
        if (leaves_out(d.outs)) *(volatile uint64_t *)&words_of(waiter_of(d), d.rank)->storing = 0;
    }
    if (leaves_out(d.outs) && verdict != XEP_CUDA_LOST) good = await_rows(m, epoch, verdict == XEP_CUDA_GO);
    if (!good) lose_step(&d.now->lost, epoch);
}

/* One block of the first launch: until the rows of all ranks' first tokens are here, or all, where they are told of. */
static __device__ __forceinline__ void end_first(const moving_t &m, uint64_t epoch)
{
    const dispatch_t &d = m.d;
    const char *own = d.peer[d.rank] + d.done;
    int here = 1;
    for (uint32_t r = threadIdx.x; r < m.plan.nranks && here; r += blockDim.x) {
        const uint32_t later = header_of(m.board, r).first != 0 ? XEP_CUDA_WHOLE / 2 : 0;
        here = wait_word(own + r * d.word_stride, r, epoch * XEP_CUDA_WHOLE - later, d.deadline);
    }
    if (!__syncthreads_and(here)) lose_step(&d.now->lost, epoch);
}

/* All threads of each block, when it is done; of what was told before the epoch was another. */
static __device__ __forceinline__ void tell_done(const dispatch_t &d, uint64_t before, uint64_t epoch, int good)
{
    const uint64_t share = d.part == XEP_CUDA_ALL     ? share_of(epoch - before, XEP_CUDA_WHOLE)
                           : d.part == XEP_CUDA_FIRST ? share_of(2 * (epoch - before) - 1, XEP_CUDA_WHOLE / 2)
                                                      : share_of(1, XEP_CUDA_WHOLE / 2);
    add_share(d.peer, d.rank, d.plan.nranks, d.done, d.word_stride, share, good);
}

/*
 * Shared memory: for each copying warp its stages; their barriers; the board; the plan, if blocks make it. Where a
 * block has lost step nobody is told that rows are there, so ranks that go on wait for this one in vain, and name it.
 */
extern "C" __global__ void __launch_bounds__(1024, 1)
    XEP_CUDA_DISPATCH(const __grid_constant__ xep_cuda_dispatch_t dispatch)
{
    extern __shared__ __align__(128) char shared[];
    __shared__ xep_cuda_plan_t plan;
    const dispatch_t &d = dispatch;
    const uint32_t warp = threadIdx.x / 32, stages = d.copying * d.stages;
    const uint32_t stage_bytes = (uint32_t)(d.row_bytes < XEP_CUDA_CHUNK ? d.row_bytes : XEP_CUDA_CHUNK);
    uint64_t *barriers = (uint64_t *)(shared + (uint64_t)stages * stage_bytes);
    const moving_t m = {d, plan, lay_board(d.plan.nranks, (char *)(barriers + stages))};
    const chunks_t chunks = share_chunks(d, shared, barriers, stage_bytes);
    for (uint32_t i = threadIdx.x; i < stages; i += blockDim.x) open_barrier(&barriers[i]);
    if (threadIdx.x == 0) {
        plan = d.plan;
        if (d.planning) lay_plan((char *)(m.board.ranks + plan.nranks), &plan);
    }
    share_barriers();
    if (d.planning) take_owners(plan, d.plan.owner);
    take_experts(d, m.board);
    wait_for_last();
    const uint64_t epoch = d.now->epoch + 1, done = d.now->done;
    const int lost = has_lost_step(&d.now->lost, epoch); /* loaded beside the other word, not behind it */
    if (is_stale(d.plan.life)) return;                   /* all blocks */
    int verdict = XEP_CUDA_LOST, has_rest = 1;
    if (!lost) {
        if (threadIdx.x % 32 == 0) load_ahead(d, chunks, stage_bytes);
        if (d.planning) count_plan(plan, d.copying);
        /* behind take_experts(), as in the plan; where the first launch has lost step the second one has, too */
        else has_rest = !__syncthreads_or(d.part == XEP_CUDA_REST && *(volatile uint64_t *)&d.now->lost != 0);
        if (has_rest) verdict = hear(m, epoch);
    }
    if (blockIdx.x == 0 && warp >= d.copying && d.part != XEP_CUDA_REST) publish(m, epoch, verdict);
    if (warp >= d.copying && d.part != XEP_CUDA_REST) mark_tail(m, verdict == XEP_CUDA_GO);
    if (lost) return;
    if (verdict == XEP_CUDA_GO) move(m, chunks, stage_bytes);
    else if (threadIdx.x % 32 == 0) drop_loads(d, chunks);
    /* also where nothing moves: until all have said so, a rank still looks at the records of the others */
    tell_done(d, done, epoch, verdict != XEP_CUDA_LOST);
    if (blockIdx.x != 0) return;
    if (d.part != XEP_CUDA_FIRST) end_dispatch(m, epoch, verdict);
    else if (verdict != XEP_CUDA_LOST) end_first(m, epoch);
}
