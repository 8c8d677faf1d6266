/* SPDX-License-Identifier: BSD-3-Clause */

#include "instances.h"

#include <stdlib.h>

#include "error.h"
#include "owners.h"

static xep_status_t check_replica(const xep_buffer_params_t *params, uint32_t nranks, uint32_t i)
{
    const xep_replica_t *replica = &params->replicas[i];
    if (replica->expert >= params->experts || replica->rank >= nranks)
        return xep_fail(XEP_ERR_INVALID, "invalid replicas[%u]: expert %u on rank %u (%u experts, %u ranks)", i,
                        replica->expert, replica->rank, params->experts, nranks);
    if (xep_owner_of(params->owners, params->experts, nranks, replica->expert) == replica->rank)
        return xep_fail(XEP_ERR_INVALID, "invalid replicas[%u]: expert %u on rank %u (which owns it)", i,
                        replica->expert, replica->rank);
    return XEP_OK;
}

static xep_status_t check_balance(const xep_buffer_params_t *params)
{
    if ((unsigned)params->balance > XEP_BALANCE_PLAN)
        return xep_fail(XEP_ERR_INVALID, "invalid balance: %d (one of XEP_BALANCE_*)", (int)params->balance);
    if ((params->plan != NULL) != (params->balance == XEP_BALANCE_PLAN))
        return xep_fail(XEP_ERR_INVALID, "plan is %sNULL (needed with XEP_BALANCE_PLAN, else NULL)",
                        params->plan != NULL ? "not " : "");
    if (params->balance != XEP_BALANCE_NONE && params->tokens > UINT32_MAX / params->topk)
        return xep_fail(XEP_ERR_INVALID, "invalid tokens: %llu (with balance less than 2^32 selections)",
                        (unsigned long long)params->tokens);
    return XEP_OK;
}

xep_status_t xep_instances_check(const xep_buffer_params_t *params, uint32_t nranks)
{
    xep_status_t status = check_balance(params);
    const uint64_t all = xep_instances_are_whole(params) ? (uint64_t)nranks * params->experts
                                                         : (uint64_t)params->nreplicas + params->experts;
    if (status == XEP_OK && all > INT32_MAX)
        status = xep_fail(XEP_ERR_INVALID, "too many instances of experts: %llu (at most %d)", (unsigned long long)all,
                          INT32_MAX);
    if (status == XEP_OK && params->replicas == NULL && params->nreplicas != 0)
        status = xep_fail(XEP_ERR_INVALID, "replicas is NULL, with %u nreplicas", params->nreplicas);
    for (uint32_t i = 0; i < params->nreplicas && status == XEP_OK; i++) status = check_replica(params, nranks, i);
    if (status != XEP_OK || (params->nreplicas == 0 && params->balance == XEP_BALANCE_NONE)) return status;
    xep_instances_t instances;
    status = xep_instances_open(params, nranks, &instances);
    if (status != XEP_OK) return status;
    for (uint32_t e = 0; e < params->experts && status == XEP_OK; e++)
        for (uint32_t i = instances.begin[e] + 2; i < instances.begin[e + 1] && status == XEP_OK; i++)
            if (instances.rank[i] == instances.rank[i - 1])
                status =
                    xep_fail(XEP_ERR_INVALID, "invalid replicas: expert %u on rank %u twice", e, instances.rank[i]);
    xep_instances_close(&instances);
    return status;
}

/* Behind the owner, ascending. */
static void insert(xep_instances_t *instances, uint32_t first, uint32_t *next, uint32_t rank)
{
    uint32_t i = (*next)++;
    for (; i > first + 1 && instances->rank[i - 1] > rank; i--) instances->rank[i] = instances->rank[i - 1];
    instances->rank[i] = rank;
}

/* next: [E] where the next instance of each expert goes. */
static void fill(const xep_buffer_params_t *params, uint32_t nranks, xep_instances_t *instances, uint32_t *next)
{
    for (uint32_t e = 0; e < params->experts; e++) {
        const uint32_t owner = xep_owner_of(params->owners, params->experts, nranks, e);
        next[e] = instances->begin[e];
        instances->rank[next[e]++] = owner;
        for (uint32_t r = 0; xep_instances_are_whole(params) && r < nranks; r++)
            if (r != owner) instances->rank[next[e]++] = r;
    }
    for (uint32_t i = 0; i < params->nreplicas; i++) {
        const uint32_t e = params->replicas[i].expert;
        insert(instances, instances->begin[e], &next[e], params->replicas[i].rank);
    }
}

xep_status_t xep_instances_open(const xep_buffer_params_t *params, uint32_t nranks, xep_instances_t *instances)
{
    const uint32_t experts = params->experts, each = xep_instances_are_whole(params) ? nranks : 1;
    const size_t count = (size_t)experts * each + params->nreplicas;
    uint32_t *begin = calloc(experts + 1 + count, sizeof *begin), *next = calloc(experts, sizeof *next);
    if (begin == NULL || next == NULL) {
        free(begin);
        free(next);
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %zu instances of experts", count);
    }
    *instances = (xep_instances_t){.count = (uint32_t)count, .begin = begin, .rank = begin + experts + 1};
    for (uint32_t i = 0; i < params->nreplicas; i++) begin[params->replicas[i].expert + 1]++;
    for (uint32_t e = 0; e < experts; e++) begin[e + 1] += begin[e] + each;
    fill(params, nranks, instances, next);
    free(next);
    return XEP_OK;
}

void xep_instances_close(xep_instances_t *instances)
{
    free(instances->begin);
    *instances = (xep_instances_t){0};
}
