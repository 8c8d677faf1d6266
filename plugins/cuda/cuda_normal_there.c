/* SPDX-License-Identifier: BSD-3-Clause */

/* Dispatches whose counts stay on the device: what the host shows without knowing them, and what it is told later. */
#include "cuda_normal.h"

static xep_status_t refuse(const cuda_normal_t *mode, xep_op_t *op, const char *what)
{
    return mode->normal.kit.env->fail(mode->normal.kit.env, op, XEP_ERR_INVALID, "%s", what);
}

/* Where the counts of a cached handle stayed on the device, the host cannot show them for this dispatch either. */
xep_status_t cuda_normal_check_there(const cuda_normal_t *mode, xep_op_t *op)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const normal_routing_t *cached =
        op->cached_slot == XEP_NO_SLOT ? NULL : normal_slot(&mode->normal, op->cached_slot)->routing;
    if (!cuda_counts_there(op)) {
        if (cached == NULL || !mode->routings[cuda_routing_index(&mode->normal, cached)].counts_there) return XEP_OK;
        return refuse(mode, op, "invalid flags: 0 (XEP_DISPATCH_COUNTS_THERE, as the cached handle has)");
    }
    if (args->capacity == 0) return refuse(mode, op, "invalid capacity: 0 (at least 1 with XEP_DISPATCH_COUNTS_THERE)");
    if (args->recv_rows_p != NULL)
        return refuse(mode, op, "recv_rows_p must be NULL with XEP_DISPATCH_COUNTS_THERE: the host counts no rows");
    return XEP_OK;
}

/* A rank without tokens does not know whether others send weights: it shows where they would be. */
void cuda_normal_show_there(cuda_normal_t *mode, const xep_op_t *op)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const cuda_slot_t *slot = &mode->slots[op->slot];
    const normal_routing_t *routing = normal_slot(&mode->normal, op->slot)->routing;
    normal_state(op)->weighted = args->topk_weights != NULL || (args->tokens == 0 && op->cached_slot == XEP_NO_SLOT);
    normal_fill_recv(&mode->normal, op, args->capacity);
    op->recv->src_begin = slot->src_begin;
    op->recv->rank_rows = mode->routings[cuda_routing_index(&mode->normal, routing)].rank_rows;
    op->recv->expert_rows = slot->expert_rows;
}

/* ---- what is told later ---- */

static const normal_record_t *record_of(const cuda_normal_t *mode, uint32_t rank)
{
    return (const void *)(mode->refused + rank * mode->normal.layout.record_bytes);
}

/* This rank can say which index it was. */
static xep_status_t tell_wrong(const cuda_normal_t *mode, xep_op_t *op, uint32_t rank)
{
    const xep_env_t *env = mode->normal.kit.env;
    const uint64_t first = mode->refusal->wrong, topk = record_of(mode, rank)->params[NORMAL_TOPK];
    if (rank != env->shape->rank || topk == 0)
        return env
            ->fail(env, op, XEP_ERR_PROTOCOL,
                   "an earlier dispatch moved nothing: invalid topk_idx of rank %u (each -1, or one of %u experts)",
                   rank, env->shape->experts);
    return env->fail(env, op, XEP_ERR_PROTOCOL,
                     "an earlier dispatch moved nothing: invalid topk_idx[%llu][%llu] (-1, or one of %u experts)",
                     (unsigned long long)(first / topk), (unsigned long long)(first % topk), env->shape->experts);
}

/* The status is one that breaks the buffer, as ranks find it at other times. */
xep_status_t cuda_normal_check_refusal(void *opaque, xep_op_t *op)
{
    const cuda_normal_t *mode = opaque;
    const xep_env_t *env = mode->normal.kit.env;
    const xep_cuda_refusal_t *refusal = mode->refusal;
    /* pinned memory: the kernel writes this word last, behind the records and the other fields */
    if (__atomic_load_n(&refusal->refused, __ATOMIC_ACQUIRE) == 0) return XEP_OK;
    const uint32_t self = env->shape->rank, nranks = env->shape->nranks;
    /* the own one first: of that the index is known */
    if (record_of(mode, self)->wrong) return tell_wrong(mode, op, self);
    for (uint32_t r = 0; r < nranks; r++)
        if (record_of(mode, r)->wrong) return tell_wrong(mode, op, r);
    if (normal_compare_records(env, op, mode->refused, mode->normal.layout.record_bytes) != XEP_OK)
        /* the reason that the comparison has given stays, its status does not */
        return env->fail(env, op, XEP_ERR_PROTOCOL, NULL);
    for (uint32_t r = 1; r < nranks; r++)
        if (record_of(mode, r)->routing != record_of(mode, 0)->routing &&
            record_of(mode, 0)->params[NORMAL_CACHED] != 0)
            return env->fail(env, op, XEP_ERR_PROTOCOL,
                             "an earlier dispatch moved nothing: rank 0 and rank %u disagree on the cached handle", r);
    if (refusal->rank >= nranks)
        return env->fail(env, op, XEP_ERR_PROTOCOL,
                         "an earlier dispatch moved nothing: a record does not fit this buffer or this operation");
    return env->fail(env, op, XEP_ERR_PROTOCOL,
                     "an earlier dispatch moved nothing: rank %u would get %llu rows, it has room for %llu",
                     refusal->rank, (unsigned long long)refusal->rows,
                     (unsigned long long)record_of(mode, refusal->rank)->capacity);
}
