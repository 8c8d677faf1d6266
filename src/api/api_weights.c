/* SPDX-License-Identifier: BSD-3-Clause */

/* The exported functions of weights: what the user passed is checked, then src/weights does it. */

#include "api_check.h"
#include "error.h"
#include "group_abort.h"
#include "owners.h"
#include "weights.h"

enum { MAX_EXPERT_BITS = 40 }; /* bytes of an expert; with 2^31 of them no sum overflows */

static xep_status_t check_params(const xep_group_t *group, xep_weights_params_t *params)
{
    const uint64_t most = UINT64_C(1) << MAX_EXPERT_BITS;
    if (params->experts < 1 || params->experts > INT32_MAX)
        return xep_fail(XEP_ERR_INVALID, "invalid experts: %u (1 to 2^31 - 1)", params->experts);
    if (params->bytes < 1 || params->bytes > most / params->experts)
        return xep_fail(XEP_ERR_INVALID, "invalid bytes: %llu (1 to 2^40 of all experts)",
                        (unsigned long long)params->bytes);
    if (params->gradients > params->experts)
        return xep_fail(XEP_ERR_INVALID, "invalid gradients: %u (at most experts, %u)", params->gradients,
                        params->experts);
    if ((params->elements == 0) != (params->gradients == 0) || params->elements > most / params->experts)
        return xep_fail(XEP_ERR_INVALID, "invalid elements: %llu (of each of %u gradients)",
                        (unsigned long long)params->elements, params->gradients);
    if (params->copies == 0) params->copies = 2;
    if (params->copies > params->experts) params->copies = params->experts;
    if (params->timeout_ms == 0) params->timeout_ms = group->timeout_ms;
    return xep_owners_check(params->owners, params->experts, group->nranks);
}

/* As with xep_buffer_create(): an error of this rank is told to the others. */
xep_status_t xep_weights_create(xep_group_t *group, const xep_weights_params_t *params, xep_weights_t **weights_p)
{
    xep_weights_params_t own;
    xep_status_t status = xep_require_group(group);
    if (status == XEP_OK) status = xep_group_usable(group);
    if (status != XEP_OK) return status;
    status = xep_check_struct("params", params, &own, sizeof own);
    if (status == XEP_OK && weights_p == NULL) status = xep_fail(XEP_ERR_INVALID, "weights_p is NULL");
    if (status == XEP_OK) status = check_params(group, &own);
    return xep_weights_open(group, &own, status, weights_p);
}

void xep_weights_destroy(xep_weights_t *weights)
{
    if (weights != NULL && !xep_group_is_inherited(weights->group)) xep_weights_close(weights);
}

/* The object, and an expert that exists; owned: and is this rank's. */
static xep_status_t check_expert(const xep_weights_t *weights, uint32_t expert, int owned)
{
    if (weights == NULL) return xep_fail(XEP_ERR_INVALID, "weights is NULL");
    xep_status_t status = xep_require_group(weights->group);
    if (status != XEP_OK) return status;
    if (expert >= weights->params.experts)
        return xep_fail(XEP_ERR_INVALID, "invalid expert: %u (one of %u)", expert, weights->params.experts);
    if (owned && weights->owner[expert] != weights->group->rank)
        return xep_fail(XEP_ERR_INVALID, "invalid expert: %u (rank %u has it)", expert, weights->owner[expert]);
    return XEP_OK;
}

/* Of an expert that is mapped. */
static _Atomic uint64_t *word_of(const xep_weights_t *weights, uint32_t expert)
{
    return xep_weights_at(weights, expert, xep_weights_word_offset(weights, expert));
}

/* The word is odd before anything of the expert changes. */
xep_status_t xep_weights_change(xep_weights_t *weights, uint32_t expert, void **base_p)
{
    xep_status_t status = check_expert(weights, expert, 1);
    if (status == XEP_OK && base_p == NULL) status = xep_fail(XEP_ERR_INVALID, "base_p is NULL");
    if (status != XEP_OK) return status;
    _Atomic uint64_t *word = word_of(weights, expert);
    atomic_fetch_or_explicit(word, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    *base_p = xep_weights_at(weights, expert, xep_weights_offset(weights, expert));
    return XEP_OK;
}

xep_status_t xep_weights_publish(xep_weights_t *weights, uint32_t expert)
{
    xep_status_t status = check_expert(weights, expert, 1);
    if (status != XEP_OK) return status;
    _Atomic uint64_t *word = word_of(weights, expert);
    const uint64_t version = atomic_load_explicit(word, memory_order_relaxed);
    if (version % 2 == 0)
        return xep_fail(XEP_ERR_INVALID, "expert %u is not being changed (xep_weights_change())", expert);
    atomic_store_explicit(word, version + 1, memory_order_release);
    return XEP_OK;
}

/* A mapped expert is read where it is, changed or not; what was never filled is refused. */
xep_status_t xep_weights_of(xep_weights_t *weights, uint32_t expert, const void **base_p)
{
    xep_status_t status = check_expert(weights, expert, 0);
    if (status == XEP_OK && base_p == NULL) status = xep_fail(XEP_ERR_INVALID, "base_p is NULL");
    if (status != XEP_OK) return status;
    const void *base = xep_weights_at(weights, expert, xep_weights_offset(weights, expert));
    if (base == NULL) {
        pthread_mutex_lock(&weights->lock);
        status = xep_weights_fetch(weights, expert, &base);
        pthread_mutex_unlock(&weights->lock);
    } else if (atomic_load_explicit(word_of(weights, expert), memory_order_acquire) < 2) {
        status = xep_weights_refuse_unfilled(weights, expert);
    }
    if (status == XEP_OK) *base_p = base;
    return status;
}

xep_status_t xep_weights_prefetch(xep_weights_t *weights, uint32_t expert)
{
    xep_status_t status = check_expert(weights, expert, 0);
    if (status != XEP_OK || xep_weights_at(weights, expert, 0) != NULL) return status;
    pthread_mutex_lock(&weights->lock);
    status = xep_weights_begin_fetch(weights, expert);
    pthread_mutex_unlock(&weights->lock);
    return status;
}

static xep_status_t check_reduce(const xep_weights_t *weights, const xep_weights_reduce_args_t *args)
{
    if (args->reserved != 0) return xep_fail(XEP_ERR_INVALID, "invalid reserved: %u (0)", args->reserved);
    if (args->count > weights->params.gradients)
        return xep_fail(XEP_ERR_INVALID, "invalid count: %u (at most params.gradients, %u)", args->count,
                        weights->params.gradients);
    if (args->count != 0 && (args->experts == NULL || args->x == NULL))
        return xep_fail(XEP_ERR_INVALID, "%s is NULL", args->experts == NULL ? "experts" : "x");
    for (uint32_t i = 0; i < args->count; i++) {
        if (args->experts[i] >= weights->params.experts || args->x[i] == NULL)
            return xep_fail(XEP_ERR_INVALID, "invalid experts[%u]: %u (one of %u, with x)", i, args->experts[i],
                            weights->params.experts);
        if (i != 0 && args->experts[i] <= args->experts[i - 1])
            return xep_fail(XEP_ERR_INVALID, "invalid experts[%u]: %u (ascending, behind %u)", i, args->experts[i],
                            args->experts[i - 1]);
    }
    for (uint32_t e = 0; args->out == NULL && e < weights->params.experts; e++)
        if (weights->owner[e] == weights->group->rank)
            return xep_fail(XEP_ERR_INVALID, "out is NULL (this rank has expert %u)", e);
    return xep_check_output("out", args->out);
}

xep_status_t xep_weights_reduce(xep_weights_t *weights, const xep_weights_reduce_args_t *args)
{
    xep_weights_reduce_args_t own;
    if (weights == NULL) return xep_fail(XEP_ERR_INVALID, "weights is NULL");
    xep_status_t status = xep_require_group(weights->group);
    if (status == XEP_OK) status = xep_weights_end_last(weights);
    if (status != XEP_OK) return status;
    status = xep_check_struct("args", args, &own, sizeof own);
    if (status == XEP_OK) status = check_reduce(weights, &own);
    return xep_weights_sum(weights, &own, status);
}
