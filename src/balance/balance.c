/* SPDX-License-Identifier: BSD-3-Clause */

#include "balance.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "hash.h"
#include "layout.h"
#include "request.h"

enum { LINE_BYTES = 64 };

static uint64_t share_bytes(uint32_t experts)
{
    return (sizeof(xep_share_t) + experts * sizeof(uint32_t) + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

uint64_t xep_balance_bytes(const xep_buffer_params_t *params, uint32_t nranks)
{
    if (params->balance == XEP_BALANCE_NONE) return 0;
    return nranks * (LINE_BYTES + 2 * share_bytes(params->experts));
}

/* ---- a dispatch ---- */

/* The shares stay until the round after the next, which may begin once this rank has sent its share of a second one. */
static void note_counts(xep_buffer_t *buffer)
{
    xep_balancer_t *balancer = buffer->balancer;
    for (uint32_t r = 0; r < buffer->shape.nranks; r++)
        balancer->counts[r] = xep_owners_is_out(buffer, r) ? balancer->nothing : xep_balance_share_of(buffer, r)->words;
    balancer->planner.out = buffer->env.out;
    xep_plan_count(&balancer->planner, balancer->counts);
}

/* *expert_p: whose rows are wrong; E: nobody's. From now on the counts are copies: others may write over the shares. */
static xep_status_t ask_caller(xep_buffer_t *buffer, uint32_t *expert_p)
{
    xep_balancer_t *balancer = buffer->balancer;
    xep_planner_t *planner = &balancer->planner;
    const uint32_t experts = planner->experts, nranks = planner->nranks;
    for (uint32_t r = 0; r < nranks; r++) {
        uint32_t *copy = balancer->all_counts + (size_t)r * experts;
        memcpy(copy, balancer->counts[r], experts * sizeof *copy);
        balancer->counts[r] = copy;
    }
    memset(planner->rows, 0, planner->instances->count * sizeof *planner->rows);
    const xep_plan_t plan = {.size = sizeof plan,
                             .experts = experts,
                             .nranks = nranks,
                             .counts = balancer->all_counts,
                             .begin = planner->instances->begin,
                             .rank = planner->instances->rank,
                             .rows = planner->rows,
                             .out = planner->out};
    const int ret = buffer->params.plan(buffer->params.plan_ctx, &plan);
    *expert_p = experts;
    if (ret != 0) return xep_fail(XEP_ERR_INVALID, "params.plan returned %d", ret);
    const uint32_t e = *expert_p = xep_plan_take(planner);
    if (e == experts) return XEP_OK;
    return xep_fail(XEP_ERR_INVALID, "invalid plan: the rows of expert %u do not add up to its %llu selections", e,
                    (unsigned long long)planner->total[e]);
}

static uint32_t digest_outs(const xep_planner_t *planner)
{
    uint64_t sum = XEP_HASH_BEGIN;
    for (uint32_t r = 0; r < planner->nranks; r++) sum = xep_hash_word(sum, (uint64_t)xep_plan_is_out(planner, r));
    return (uint32_t)(sum ^ sum >> 32);
}

/* Digest of how many rows each instance of an expert serves. */
static uint32_t digest(const xep_planner_t *planner, uint32_t expert)
{
    uint64_t sum = XEP_HASH_BEGIN;
    for (uint32_t i = planner->instances->begin[expert]; i < planner->instances->begin[expert + 1]; i++)
        sum = xep_hash_word(sum, planner->rows[i]);
    return (uint32_t)(sum ^ sum >> 32);
}

/* Plans that leave out different ranks are not compared: 0. */
static int plans_differ(const xep_share_t *share, const xep_share_t *first, uint32_t expert)
{
    return share->without == first->without && share->words[expert] != first->words[expert];
}

static xep_status_t compare_plans(xep_request_t *req)
{
    xep_buffer_t *buffer = req->buffer;
    const xep_planner_t *planner = &buffer->balancer->planner;
    xep_share_t *mine = xep_balance_share(buffer);
    uint32_t first = 0, wrong;
    xep_status_t status = mine->status = ask_caller(buffer, &wrong);
    mine->without = digest_outs(planner);
    for (uint32_t e = 0; e < planner->experts; e++) mine->words[e] = digest(planner, e);
    if (status != XEP_OK) mine->words[0] = wrong;
    status = xep_balance_exchange(req);
    if (status != XEP_OK) return status;
    while (xep_owners_is_out(buffer, first)) first++;
    for (uint32_t r = first + 1; r < planner->nranks; r++)
        for (uint32_t e = 0; e < planner->experts && !xep_owners_is_out(buffer, r); e++)
            if (plans_differ(xep_balance_share_of(buffer, r), xep_balance_share_of(buffer, first), e))
                return xep_fail(XEP_ERR_MISMATCH, "rank %u and rank %u have different plans for expert %u", r, first,
                                e);
    return XEP_OK;
}

static xep_status_t make_plan(xep_request_t *req)
{
    xep_buffer_t *buffer = req->buffer;
    xep_planner_t *planner = &buffer->balancer->planner;
    if (buffer->params.plan != NULL) return compare_plans(req);
    if (buffer->params.balance == XEP_BALANCE_EVEN) xep_plan_even(planner);
    else xep_plan_least_loaded(planner);
    return XEP_OK;
}

/* Only experts that this rank has selected: what lower ranks have of the others does not matter. */
static void share_out(xep_buffer_t *buffer)
{
    xep_balancer_t *balancer = buffer->balancer;
    xep_planner_t *planner = &balancer->planner;
    const uint32_t *const *counts = balancer->counts;
    const uint32_t rank = buffer->shape.rank;
    for (uint32_t e = 0; e < planner->experts; e++)
        if (counts[rank][e] != 0)
            (void)xep_plan_begin(planner, counts, e, rank, xep_plan_before(planner, counts, e, rank));
}

static void add_loads(xep_loads_t *loads, const xep_planner_t *planner)
{
    loads->dispatches++;
    loads->selections += planner->selections;
    loads->most_before += planner->most_before;
    loads->most_after += planner->most_after;
}

static uint32_t pick(void *arg, uint32_t expert)
{
    const xep_buffer_t *buffer = arg;
    return buffer->owners->number[xep_plan_pick(&buffer->balancer->planner, expert)->instance];
}

/*
 * buffer->take_dispatch: waits for the other ranks if the dispatch asks for it. Modes know no such flag: the ranks have
 * shown that all set it.
 */
static xep_status_t take(xep_request_t *req)
{
    xep_buffer_t *buffer = req->buffer;
    const int balanced = (req->dispatch.flags & XEP_DISPATCH_BALANCE) != 0;
    req->dispatch.flags &= ~(uint32_t)XEP_DISPATCH_BALANCE;
    if (!balanced || req->dispatch.cached != NULL) return xep_owners_take(req);
    xep_share_t *mine = xep_balance_share(buffer);
    mine->status = XEP_OK;
    xep_status_t status = xep_layout_count_selections(&req->dispatch, buffer->params.experts, mine->words);
    if (status == XEP_OK) status = xep_balance_exchange(req);
    if (status != XEP_OK) return status;
    note_counts(buffer);
    status = make_plan(req);
    if (status != XEP_OK) return status;
    share_out(buffer);
    add_loads(&buffer->balancer->loads, &buffer->balancer->planner);
    return xep_owners_renumber(req, pick, buffer);
}

/* ---- opening and closing ---- */

xep_status_t xep_balance_open(xep_buffer_t *buffer, const xep_buffer_params_t *params)
{
    const uint32_t nranks = buffer->shape.nranks, experts = params->experts;
    xep_balancer_t *balancer = calloc(1, sizeof *balancer);
    buffer->balancer = balancer;
    if (balancer == NULL) goto err_memory;
    if (xep_planner_open(&buffer->owners->instances, experts, nranks, xep_instances_are_whole(params),
                         &balancer->planner) != XEP_OK)
        goto err_memory;
    balancer->share_bytes = share_bytes(experts);
    balancer->counts = calloc(nranks, sizeof *balancer->counts);
    balancer->all_counts = params->plan != NULL ? calloc((size_t)nranks * experts, sizeof(uint32_t)) : NULL;
    balancer->nothing = calloc(experts, sizeof *balancer->nothing);
    if (balancer->counts == NULL || balancer->nothing == NULL || (params->plan != NULL && balancer->all_counts == NULL))
        goto err_memory;
    buffer->take_dispatch = take;
    return XEP_OK;

err_memory:
    return xep_fail(XEP_ERR_NO_MEMORY, "no memory to balance %u experts", experts);
}

void xep_balance_close(xep_balancer_t *balancer)
{
    if (balancer == NULL) return;
    xep_planner_close(&balancer->planner);
    free(balancer->counts);
    free(balancer->nothing);
    free(balancer->all_counts);
    free(balancer);
}
