/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Owner maps: which rank has which expert, where the caller says so (xep_buffer_params_t.owners), and which others
 * serve it, too (params.replicas, XEP_BALANCE_EVEN): the instances of the expert. Modes number experts by rank and know
 * no map; to them each instance is an expert. A buffer that has a map or instances puts those numbers in place of the
 * caller's when a dispatch begins.
 */
#ifndef XEP_BUFFER_OWNERS_H
#define XEP_BUFFER_OWNERS_H

#include "buffer.h"
#include "layout.h"
#include "plan.h"
#include "request.h"

/** Owner of an expert by a map [E], or by blocks: NULL. */
static inline uint32_t xep_owner_of(const uint32_t *owners, uint32_t experts, uint32_t nranks, uint32_t expert)
{
    return owners != NULL ? owners[expert] : xep_expert_owner(experts, nranks, expert);
}

/** Whether it is decided that a rank is out. */
static inline int xep_owners_is_out(const xep_buffer_t *buffer, uint32_t rank)
{
    return buffer->env.out != NULL && buffer->env.out[rank];
}

/** XEP_ERR_INVALID: an owner that is no rank. owners: [experts], or NULL. */
xep_status_t xep_owners_check(const uint32_t *owners, uint32_t experts, uint32_t nranks);

/** XEP_ERR_INVALID: replicas or a rule that cannot be. owners are checked. */
xep_status_t xep_instances_check(const xep_buffer_params_t *params, uint32_t nranks);

/** Whether each expert has all ranks. */
static inline int xep_instances_are_whole(const xep_buffer_params_t *params)
{
    return params->balance == XEP_BALANCE_EVEN && params->nreplicas == 0;
}

/** Of checked params. XEP_ERR_NO_MEMORY; free what it made with close. */
xep_status_t xep_instances_open(const xep_buffer_params_t *params, uint32_t nranks, xep_instances_t *instances);
void xep_instances_close(xep_instances_t *instances);

/** A number that is another one for another map or other replicas, as good as certainly. */
uint64_t xep_owners_digest(const xep_buffer_params_t *params, uint32_t nranks);

/**
 * Of maps that rank and rank 0 have differently, as their digests say: XEP_ERR_MISMATCH with the first expert that
 * differs, and both owners. Collective, with the same rank on all.
 */
xep_status_t xep_owners_refuse(xep_group_t *group, const xep_buffer_params_t *params, uint32_t rank);

struct xep_owners {
    xep_instances_t instances;
    uint32_t *number;   /* [instances] what the mode calls each */
    uint64_t *sent;     /* [R] selections of a dispatch for each rank so far; NULL: each expert has its owner alone */
    int64_t *topk_idx;  /* [slots][tokens * topk] of the dispatch in each slot, by these numbers, of its type */
    uint64_t slot_size; /* elements of a slot there */
};

/** For a buffer that is made with a map or instances, and has its shape; close(NULL) is a no-op. */
xep_status_t xep_owners_open(xep_buffer_t *buffer, const xep_buffer_params_t *params);
void xep_owners_close(xep_owners_t *owners);

/**
 * buffer->take_dispatch: puts the mode's numbers in place of the caller's topk_idx, in memory that is the slot's until
 * its next dispatch. XEP_ERR_INVALID: an index that is neither -1 nor an expert.
 */
xep_status_t xep_owners_take(xep_request_t *req);

/** The same by what pick() says of each selection in turn; experts are checked. */
static inline xep_status_t xep_owners_renumber(xep_request_t *req, uint32_t (*pick)(void *arg, uint32_t expert),
                                               void *arg)
{
    const xep_owners_t *owners = req->buffer->owners;
    const uint32_t experts = req->buffer->params.experts;
    xep_dispatch_args_t *args = &req->dispatch;
    const int wide = args->topk_idx_dtype == XEP_INT64;
    int64_t *wide_to = owners->topk_idx + req->op.slot * owners->slot_size;
    int32_t *to = (int32_t *)(void *)wide_to;
    for (uint64_t t = 0, i = 0; t < args->tokens; t++)
        for (uint32_t k = 0; k < args->topk; k++, i++) {
            const int64_t expert = xep_layout_expert(args->topk_idx, args->topk_idx_stride, args->topk_idx_dtype, t, k);
            if (expert < -1 || expert >= (int64_t)experts) return xep_layout_refuse(t, k, expert, experts);
            const int64_t number = expert == -1 ? -1 : (int64_t)pick(arg, (uint32_t)expert);
            if (wide) wide_to[i] = number;
            else to[i] = (int32_t)number;
        }
    args->topk_idx = wide_to;
    args->topk_idx_stride = args->topk * (wide ? sizeof *wide_to : sizeof *to);
    return XEP_OK;
}

#endif
