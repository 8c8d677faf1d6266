/* SPDX-License-Identifier: BSD-3-Clause */

#include "owners.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "group_exchange.h"
#include "hash.h"
#include "request.h"

xep_status_t xep_owners_check(const uint32_t *owners, uint32_t experts, uint32_t nranks)
{
    for (uint32_t e = 0; owners != NULL && e < experts; e++)
        if (owners[e] >= nranks)
            return xep_fail(XEP_ERR_INVALID, "invalid owners[%u]: %u (one of %u ranks)", e, owners[e], nranks);
    return XEP_OK;
}

/* ---- instances ---- */

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

/* ---- ranks with different maps ---- */

/* Digest of the owners of experts begin .. end - 1, and of their replicas, in whatever order these are given. */
static uint64_t digest(const xep_buffer_params_t *params, uint32_t nranks, uint32_t begin, uint32_t end)
{
    uint64_t sum = XEP_HASH_BEGIN;
    for (uint32_t e = begin; e < end; e++)
        sum = xep_hash_word(sum, xep_owner_of(params->owners, params->experts, nranks, e));
    for (uint32_t i = 0; i < params->nreplicas; i++) {
        const uint64_t word = (uint64_t)params->replicas[i].expert << 32 | params->replicas[i].rank;
        if (params->replicas[i].expert >= begin && params->replicas[i].expert < end)
            sum += (word ^ word >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    }
    return sum;
}

uint64_t xep_owners_digest(const xep_buffer_params_t *params, uint32_t nranks)
{
    return digest(params, nranks, 0, params->experts);
}

/* By halves, so that ranks exchange a few words and no map: the first half first, if it differs. */
static xep_status_t find_difference(xep_group_t *group, const xep_buffer_params_t *params, uint32_t rank,
                                    uint64_t *words, uint32_t *expert_p)
{
    uint32_t begin = 0, end = params->experts;
    while (end - begin > 1) {
        const uint32_t middle = begin + (end - begin) / 2;
        const uint64_t mine = digest(params, group->nranks, begin, middle);
        xep_status_t status = xep_group_exchange(group, &mine, words, sizeof mine);
        if (status != XEP_OK) return status;
        if (words[rank] != words[0]) end = middle;
        else begin = middle;
    }
    *expert_p = begin;
    return XEP_OK;
}

xep_status_t xep_owners_refuse(xep_group_t *group, const xep_buffer_params_t *params, uint32_t rank)
{
    uint64_t mine, *words = malloc(group->nranks * sizeof *words);
    uint32_t expert = 0;
    if (words == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the owners of %u ranks", group->nranks);
    xep_status_t status = find_difference(group, params, rank, words, &expert);
    mine = xep_owner_of(params->owners, params->experts, group->nranks, expert);
    if (status == XEP_OK) status = xep_group_exchange(group, &mine, words, sizeof mine);
    if (status == XEP_OK && words[rank] == words[0])
        status = xep_fail(XEP_ERR_MISMATCH, "rank %u and rank 0 disagree on the replicas of expert %u", rank, expert);
    else if (status == XEP_OK)
        status = xep_fail(XEP_ERR_MISMATCH, "rank %u and rank 0 disagree on owners[%u]: %llu, %llu", rank, expert,
                          (unsigned long long)words[rank], (unsigned long long)words[0]);
    free(words);
    return status;
}

/* ---- a buffer with a map ---- */

/* As place_experts() has placed them (mode_shape.c): by rank, and there in the order of experts. next: [R], zeros. */
static void number_instances(const xep_shape_t *shape, const xep_instances_t *instances, uint32_t *next,
                             uint32_t *number)
{
    for (uint32_t i = 0; i < instances->count; i++)
        number[i] = shape->first_expert[instances->rank[i]] + next[instances->rank[i]]++;
}

xep_status_t xep_owners_open(xep_buffer_t *buffer, const xep_buffer_params_t *params)
{
    const xep_shape_t *shape = &buffer->shape;
    uint32_t *next = calloc(shape->nranks, sizeof *next);
    xep_owners_t *owners = buffer->owners = calloc(1, sizeof *owners);
    if (owners == NULL || next == NULL) goto err_memory;
    xep_status_t status = xep_instances_open(params, shape->nranks, &owners->instances);
    if (status != XEP_OK) goto err_next;
    owners->slot_size = shape->tokens * shape->topk;
    owners->number = malloc(owners->instances.count * sizeof *owners->number);
    owners->topk_idx = calloc(shape->slots * owners->slot_size, sizeof *owners->topk_idx);
    const int has_several = owners->instances.count != params->experts;
    if (has_several) owners->sent = calloc(shape->nranks, sizeof *owners->sent);
    if (owners->number == NULL || owners->topk_idx == NULL || (has_several && owners->sent == NULL)) goto err_memory;
    number_instances(shape, &owners->instances, next, owners->number);
    free(next);
    return XEP_OK;

err_memory:
    status = xep_fail(XEP_ERR_NO_MEMORY, "no memory for the owners of %u experts", shape->experts);
err_next:
    free(next);
    return status;
}

void xep_owners_close(xep_owners_t *owners)
{
    if (owners == NULL) return;
    xep_instances_close(&owners->instances);
    free(owners->topk_idx);
    free(owners->number);
    free(owners->sent);
    free(owners);
}

/* ---- a dispatch ---- */

static uint32_t pick_owner(void *arg, uint32_t expert)
{
    const xep_owners_t *owners = ((const xep_buffer_t *)arg)->owners;
    return owners->number[owners->instances.begin[expert]];
}

/* How far an instance is: this rank's, this node's, another one, out. Lower is better, as with all that follows. */
static uint32_t distance(const xep_buffer_t *buffer, uint32_t rank)
{
    const xep_shape_t *shape = &buffer->shape;
    if (xep_owners_is_out(buffer, rank)) return 3;
    return rank == shape->rank ? 0 : shape->node[rank] == shape->node[shape->rank] ? 1 : 2;
}

static int is_nearer(const xep_buffer_t *buffer, uint32_t rank, uint32_t than)
{
    const xep_shape_t *shape = &buffer->shape;
    const uint64_t *sent = buffer->owners->sent;
    const uint32_t a = distance(buffer, rank), b = distance(buffer, than), n = shape->nranks;
    if (a != b) return a < b;
    if (sent[rank] != sent[than]) return sent[rank] < sent[than];
    return (rank + n - shape->rank) % n < (than + n - shape->rank) % n;
}

static uint32_t pick_nearest(void *arg, uint32_t expert)
{
    const xep_buffer_t *buffer = arg;
    const xep_instances_t *instances = &buffer->owners->instances;
    uint32_t best = instances->begin[expert];
    for (uint32_t i = best + 1; i < instances->begin[expert + 1]; i++)
        if (is_nearer(buffer, instances->rank[i], instances->rank[best])) best = i;
    buffer->owners->sent[instances->rank[best]]++;
    return buffer->owners->number[best];
}

static uint32_t pick_owner_in(void *arg, uint32_t expert)
{
    const xep_instances_t *instances = &((const xep_buffer_t *)arg)->owners->instances;
    return xep_owners_is_out(arg, instances->rank[instances->begin[expert]]) ? pick_nearest(arg, expert)
                                                                             : pick_owner(arg, expert);
}

/* A cached dispatch has no indices: its routing is by the mode's numbers already. */
xep_status_t xep_owners_take(xep_request_t *req)
{
    xep_buffer_t *buffer = req->buffer;
    const int to_owners = xep_instances_are_whole(&buffer->params);
    if (req->dispatch.cached != NULL) return XEP_OK;
    if (buffer->owners->sent == NULL || (to_owners && buffer->env.out == NULL))
        return xep_owners_renumber(req, pick_owner, buffer);
    memset(buffer->owners->sent, 0, buffer->shape.nranks * sizeof *buffer->owners->sent);
    return xep_owners_renumber(req, to_owners ? pick_owner_in : pick_nearest, buffer);
}
