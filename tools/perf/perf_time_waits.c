/* SPDX-License-Identifier: BSD-3-Clause */

#include "perf_time.h"

#include <stdlib.h>

#include "oracle_alloc.h"
#include "perf_say.h"

/* How often and how long a rank waited for another one, over all iterations of an operation. */
typedef struct perf_wait {
    uint64_t times, sum_ns, max_ns; /* times: iterations in which it waited */
} perf_wait_t;

/* Of every rank, in each operation, for each rank: [R][PERF_OPS][R]. */
static perf_wait_t *wait_at(const perf_t *perf, uint32_t waiting, perf_op_t op, uint32_t late)
{
    return &perf->waits[((size_t)waiting * PERF_OPS + op) * perf->info.nranks + late];
}

void perf_waits_open(perf_t *perf)
{
    const size_t nranks = perf->info.nranks;

    if (!perf->options.waits) return;
    perf->wait_ns = oracle_alloc(nranks * sizeof *perf->wait_ns);
    perf->waits = oracle_alloc(nranks * PERF_OPS * nranks * sizeof *perf->waits);
}

/* wait_ns is added to by the library over all operations of a step; it was cleared before the step. */
void perf_waits_book(perf_t *perf, perf_op_t op)
{
    for (uint32_t late = 0; perf->wait_ns != NULL && late < perf->info.nranks; late++) {
        perf_wait_t *wait = wait_at(perf, perf->info.rank, op, late);
        const uint64_t ns =
            perf->wait_ns[late] / perf->options.slots; /* operations in flight share the time of their step */
        wait->times += ns != 0;
        wait->sum_ns += ns;
        if (ns > wait->max_ns) wait->max_ns = ns;
    }
}

void perf_waits_gather(perf_t *perf)
{
    if (perf->waits == NULL) return;
    perf_wait_t *mine = perf->waits;
    perf->waits = perf_gather(perf, wait_at(perf, perf->info.rank, PERF_DISPATCH, 0),
                              PERF_OPS * perf->info.nranks * sizeof *perf->waits);
    free(mine);
}

/* In us, over all iterations: those in which it did not wait count as 0. */
double perf_waits_mean(const perf_t *perf, perf_op_t op, uint32_t waiting, uint32_t late)
{
    return (double)wait_at(perf, waiting, op, late)->sum_ns / (double)perf->options.iters / 1e3;
}

/* Mean and percent are over all other ranks, as nobody else can have waited; max is that of any one. */
void perf_waits_late(const perf_t *perf, perf_op_t op, uint32_t late, perf_late_t *late_p)
{
    const uint32_t others = perf->info.nranks > 1 ? perf->info.nranks - 1 : 1;
    perf_late_t sum = {0};

    for (uint32_t waiting = 0; waiting < perf->info.nranks; waiting++) {
        const perf_wait_t *wait = wait_at(perf, waiting, op, late);
        sum.mean += perf_waits_mean(perf, op, waiting, late) / others;
        sum.percent += 100 * (double)wait->times / (double)perf->options.iters / others;
        if ((double)wait->max_ns / 1e3 > sum.max) sum.max = (double)wait->max_ns / 1e3;
    }
    *late_p = sum;
}
