/* SPDX-License-Identifier: BSD-3-Clause */

/* What an operation costs besides its bytes is made of: flags of two ranks that share memory, and the layout. */

#include "perf_time.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "oracle_alloc.h"
#include "perf_by_hand.h"
#include "perf_machine.h"
#include "perf_say.h"

enum { ROUNDS = 2000, LAYOUTS = 50 };

/** Shared by ranks 0 and 1; one cache line each. */
typedef struct flags {
    _Alignas(128) _Atomic uint64_t ping; /* written by rank 0 */
    _Alignas(128) _Atomic uint64_t pong; /* written by rank 1 */
} flags_t;

/* The median and not the least: what an operation meets is the usual round trip, not the best one of two thousand. */
static double time_ping(flags_t *flags)
{
    double us[ROUNDS];

    for (uint64_t i = 0; i < ROUNDS; i++) {
        const uint64_t begin = perf_clock_ns();
        atomic_store_explicit(&flags->ping, i + 1, memory_order_release);
        perf_await(&flags->pong, i + 1);
        us[i] = (double)(perf_clock_ns() - begin) / 1e3;
    }
    return perf_median(us, ROUNDS);
}

/* What rank 1 does meanwhile. Both words only grow, so that no round has to clear them. */
static void answer_ping(flags_t *flags)
{
    for (uint64_t i = 0; i < ROUNDS; i++) {
        perf_await(&flags->ping, i + 1);
        atomic_store_explicit(&flags->pong, i + 1, memory_order_release);
    }
}

/* Of the tokens of this rank. Without token_in_rank, as a mode's own plan has no such array. */
static double time_layout(const perf_t *perf)
{
    xep_layout_args_t args = XEP_LAYOUT_ARGS_INIT;
    xep_layout_t layout = XEP_LAYOUT_INIT;
    double us[LAYOUTS];

    args.tokens = perf->tokens;
    args.topk = (uint32_t)perf->options.topk;
    args.experts = (uint32_t)perf->options.experts;
    args.nranks = perf->info.nranks;
    args.topk_idx = perf->idx;
    layout.tokens_per_rank = oracle_alloc(args.nranks * sizeof *layout.tokens_per_rank);
    layout.tokens_per_expert = oracle_alloc(args.experts * sizeof *layout.tokens_per_expert);
    for (int i = 0; i < LAYOUTS; i++) {
        const uint64_t begin = perf_clock_ns();
        xep_layout(&args, &layout);
        us[i] = (double)(perf_clock_ns() - begin) / 1e3;
    }
    free(layout.tokens_per_rank);
    free(layout.tokens_per_expert);
    return perf_median(us, LAYOUTS);
}

/* Ranks above 1 have nothing to do here but to wait at the barrier. */
void perf_fixed_parts(perf_t *perf)
{
    flags_t *flags = perf->one_clock && perf->info.nranks > 1 ? perf_share(perf, sizeof *flags) : NULL;

    perf->times->layout = time_layout(perf);
    if (flags != NULL && perf->info.rank == 0) perf->times->round_trip = time_ping(flags);
    if (flags != NULL && perf->info.rank == 1) answer_ping(flags);
    if (flags != NULL) munmap(flags, sizeof *flags);
    perf_must(perf, xep_group_barrier(perf->group));
}
