/* SPDX-License-Identifier: BSD-3-Clause */

#include "owners.h"

#include <stdlib.h>

#include "error.h"
#include "group_exchange.h"
#include "request.h"

xep_status_t xep_owners_check(const uint32_t *owners, uint32_t experts, uint32_t nranks)
{
    for (uint32_t e = 0; owners != NULL && e < experts; e++)
        if (owners[e] >= nranks)
            return xep_fail(XEP_ERR_INVALID, "invalid owners[%u]: %u (one of %u ranks)", e, owners[e], nranks);
    return XEP_OK;
}

/* ---- ranks with different maps ---- */

/* FNV-1a, over words, of the owners of experts begin .. end - 1. */
static uint64_t digest(const xep_buffer_params_t *params, uint32_t nranks, uint32_t begin, uint32_t end)
{
    uint64_t sum = UINT64_C(14695981039346656037);
    for (uint32_t e = begin; e < end; e++)
        sum = (sum ^ xep_owner_of(params->owners, params->experts, nranks, e)) * UINT64_C(1099511628211);
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
    if (status == XEP_OK)
        status = xep_fail(XEP_ERR_MISMATCH, "rank %u and rank 0 disagree on owners[%u]: %llu, %llu", rank, expert,
                          (unsigned long long)words[rank], (unsigned long long)words[0]);
    free(words);
    return status;
}

/* ---- a buffer with a map ---- */

xep_status_t xep_owners_open(xep_buffer_t *buffer)
{
    const xep_shape_t *shape = &buffer->shape;
    xep_owners_t *owners = calloc(1, sizeof *owners);
    if (owners == NULL) goto err_memory;
    owners->slot_size = shape->tokens * shape->topk;
    owners->number = malloc(shape->experts * sizeof *owners->number);
    owners->topk_idx = calloc(shape->slots * owners->slot_size, sizeof *owners->topk_idx);
    if (owners->number == NULL || owners->topk_idx == NULL) goto err_memory;
    for (uint32_t e = 0; e < shape->experts; e++) owners->number[shape->expert[e]] = e;
    buffer->owners = owners;
    buffer->take_dispatch = xep_owners_take;
    return XEP_OK;

err_memory:
    xep_owners_close(owners);
    return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the owners of %u experts", shape->experts);
}

void xep_owners_close(xep_owners_t *owners)
{
    if (owners == NULL) return;
    free(owners->topk_idx);
    free(owners->number);
    free(owners);
}

xep_status_t xep_owners_take(xep_request_t *req)
{
    const xep_owners_t *owners = req->buffer->owners;
    const uint32_t experts = req->buffer->shape.experts;
    xep_dispatch_args_t *args = &req->dispatch;
    const int wide = args->topk_idx_dtype == XEP_INT64;
    int64_t *wide_to = owners->topk_idx + req->op.slot * owners->slot_size;
    int32_t *to = (int32_t *)(void *)wide_to;
    if (args->cached != NULL) return XEP_OK; /* has no indices: its routing is by the mode's numbers already */
    for (uint64_t t = 0, i = 0; t < args->tokens; t++)
        for (uint32_t k = 0; k < args->topk; k++, i++) {
            const int64_t expert = xep_layout_expert(args->topk_idx, args->topk_idx_stride, args->topk_idx_dtype, t, k);
            if (expert < -1 || expert >= (int64_t)experts) return xep_layout_refuse(t, k, expert, experts);
            const int64_t number = expert == -1 ? -1 : (int64_t)owners->number[expert];
            if (wide) wide_to[i] = number;
            else to[i] = (int32_t)number;
        }
    args->topk_idx = wide_to;
    args->topk_idx_stride = args->topk * (wide ? sizeof *wide_to : sizeof *to);
    return XEP_OK;
}
