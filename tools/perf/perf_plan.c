/* SPDX-License-Identifier: BSD-3-Clause */

#include "perf_plan.h"

#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"

/*
 * A row goes to a rank once, or by expert to each expert: destinations are one or the other, all else is the same. Made
 * once right away: a combine is timed without a dispatch, too, and with --cached nobody plans.
 */
void perf_plan_open(perf_plan_t *plan, const perf_t *perf)
{
    const uint32_t experts = (uint32_t)perf->options.experts;
    const uint32_t ndest = perf->options.by_expert ? experts : perf->info.nranks;
    const size_t width = perf->options.topk < ndest ? perf->options.topk : ndest;

    plan->ndest = ndest;
    plan->width = (uint32_t)width;
    plan->owner = oracle_alloc(experts * sizeof *plan->owner);
    plan->copies = oracle_alloc(perf->tokens * sizeof *plan->copies);
    plan->to = oracle_alloc(perf->tokens * width * sizeof *plan->to);
    plan->place = oracle_alloc(perf->tokens * width * sizeof *plan->place);
    plan->begin = oracle_alloc((ndest + 1) * sizeof *plan->begin);
    plan->seen = oracle_alloc(ndest * sizeof *plan->seen);
    for (uint32_t e = 0; e < experts; e++)
        plan->owner[e] = perf->options.by_expert ? e : oracle_owner(perf->routing, e);
    perf_plan_make(plan, perf);
}

void perf_plan_close(perf_plan_t *plan)
{
    free(plan->owner);
    free(plan->copies);
    free(plan->to);
    free(plan->place);
    free(plan->begin);
    free(plan->seen);
}

/*
 * What hand-written code would do before it moves a row: place of each copy among those for its destination, then where
 * each destination begins. begin[d + 1] counts the rows for d until the last loop, which makes sums of the counts.
 * seen: token + 1, so that it need not be cleared for each token.
 */
void perf_plan_make(perf_plan_t *plan, const perf_t *perf)
{
    const uint32_t ndest = plan->ndest, topk = (uint32_t)perf->options.topk;

    memset(plan->begin, 0, (ndest + 1) * sizeof *plan->begin);
    memset(plan->seen, 0, ndest * sizeof *plan->seen);
    for (uint64_t token = 0; token < perf->tokens; token++) {
        uint32_t n = 0;
        for (uint32_t k = 0; k < topk; k++) {
            const int64_t expert = perf->idx[token * topk + k];
            if (expert < 0 || plan->seen[plan->owner[expert]] == token + 1) continue;
            const uint32_t dest = plan->owner[expert];
            plan->seen[dest] = token + 1;
            plan->to[token * plan->width + n] = dest;
            plan->place[token * plan->width + n++] = plan->begin[dest + 1]++;
        }
        plan->copies[token] = n;
    }
    for (uint32_t dest = 0; dest < ndest; dest++) plan->begin[dest + 1] += plan->begin[dest];
}
