/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Planned, stored and summed by the same processes at the same time. By rank in each one's private memory, with no word
 * to each other: no metadata, no signals, no waiting. A row that is cast stays in the cache until it is stored, which
 * is what a program by hand does. By expert rows and outputs go from core to core, and a word tells of them: no program
 * is without one.
 */

#include "perf_by_hand.h"

#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"

struct perf_limit {
    perf_by_hand_t hand;
    perf_packets_t *packets;       /* NULL, or how rows move */
    perf_cuda_limit_t *of_devices; /* NULL without --memory cuda; else it is the limit */
};

void perf_limit_open(perf_t *perf)
{
    perf->limit = oracle_alloc(sizeof *perf->limit);
    perf_by_hand_open(&perf->limit->hand, perf);
    perf->limit->packets = perf_packets_open(perf, &perf->limit->hand);
    perf->limit->of_devices = perf_cuda_limit_open(perf, &perf->limit->hand);
}

void perf_limit_close(perf_t *perf)
{
    perf_cuda_limit_close(perf->limit->of_devices);
    perf_packets_close(perf->limit->packets);
    perf_by_hand_close(&perf->limit->hand);
    free(perf->limit);
    perf->limit = NULL;
}

/* A cached handle needs no plan, so the limit is not charged with one either. */
static void store_rows(perf_t *perf)
{
    perf_limit_t *limit = perf->limit;

    if (!perf->options.cached) perf_by_hand_plan(&limit->hand);
    if (limit->packets != NULL) perf_packets_move(limit->packets, perf->streaming);
    else perf_by_hand_store(&limit->hand, perf->streaming);
}

void perf_limit_dispatch(perf_t *perf)
{
    const perf_limit_t *limit = perf->limit;

    if (limit->of_devices == NULL) store_rows(perf);
    else perf_cuda_limit_run(limit->of_devices, PERF_DISPATCH, perf->streaming);
}

/*
 * Where dispatched rows cannot be read as outputs, or outputs are elsewhere, numbers are put there that can: outputs
 * were just written, as those of the operations were.
 */
void perf_limit_experts(perf_t *perf)
{
    const perf_limit_t *limit = perf->limit;

    if (limit->packets != NULL) perf_packets_experts(limit->packets);
    else if (limit->of_devices == NULL &&
             (perf->shape.dtype != perf->shape.combine_dtype || perf->placed_bytes != perf->sum_bytes))
        memset(perf->area, 0x3e, perf->sent_rows * perf_line_up(perf->sum_bytes));
}

void perf_limit_combine(perf_t *perf)
{
    const perf_limit_t *limit = perf->limit;
    char *sums = perf->limit_sums[perf->streaming];

    if (limit->packets != NULL) perf_packets_sum(limit->packets, sums, perf->streaming);
    else if (limit->of_devices == NULL) perf_by_hand_sum(&limit->hand, sums, perf->streaming);
    else perf_cuda_limit_run(limit->of_devices, PERF_COMBINE, perf->streaming);
}
