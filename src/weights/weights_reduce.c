/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Each rank puts its gradients into its heap and says for which experts they are; owners read and add those of all
 * ranks, ranks ascending; and when all have said that they have, the heaps may be written again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "group_control.h"
#include "group_exchange.h"
#include "group_signal.h"
#include "group_wait.h"
#include "weights.h"

/** What a rank says: how it stands, and for which experts it has gradients. Exchanged as bytes. */
typedef struct offer {
    int32_t status;
    uint32_t count;
    uint32_t experts[]; /* [params.gradients] */
} offer_t;

static uint64_t gradients_offset(const xep_weights_t *weights, uint32_t i)
{
    return weights->gradients_offset + i * weights->params.elements * sizeof(float);
}

/* ---- adding those of a rank ---- */

typedef struct reading {
    xep_weights_t *weights;
    uint32_t rank;
    uint64_t offset, bytes;
    float *to;
    int asked;
} reading_t;

static xep_status_t look(void *arg)
{
    reading_t *reading = arg;
    xep_wire_t *wire = &reading->weights->heap->wire;
    if (!reading->asked) {
        xep_status_t status = wire->ops->get(wire, reading->rank, reading->offset, reading->to, reading->bytes);
        if (status != XEP_OK) return status;
        reading->asked = 1;
    }
    return wire->ops->flush(wire);
}

static void explain(void *arg, char *text, size_t bytes)
{
    snprintf(text, bytes, "the gradients of rank %u have not come", ((const reading_t *)arg)->rank);
}

static void add(float *restrict sum, const float *restrict x, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) sum[i] += x[i];
}

/* Bytes of a read that was given up would come over those of the next one. */
static xep_status_t await_last(xep_weights_t *weights)
{
    if (!weights->may_come) return XEP_OK;
    const uint64_t deadline_ns = xep_deadline(weights->params.timeout_ms);
    const xep_status_t status = xep_group_flush(weights->group, weights->heap, deadline_ns, "xep_weights_reduce");
    weights->may_come = status != XEP_OK;
    return status;
}

static xep_status_t add_piece(xep_weights_t *weights, uint32_t rank, uint64_t offset, float *sum, uint64_t count)
{
    const char *base = weights->heap->wire.ops->map(&weights->heap->wire, rank);
    reading_t reading = {.weights = weights,
                         .rank = rank,
                         .offset = offset,
                         .bytes = count * sizeof *sum,
                         .to = weights->bounce};
    const xep_wait_t wait = {.look = look,
                             .arg = &reading,
                             .deadline_ns = xep_deadline(weights->params.timeout_ms),
                             .explain = explain};
    xep_status_t status = base != NULL ? XEP_OK : xep_group_explain(&wait, xep_group_wait(weights->group, &wait));
    if (status != XEP_OK) weights->may_come = 1;
    else add(sum, base != NULL ? (const float *)(const void *)(base + offset) : weights->bounce, count);
    return status;
}

static xep_status_t add_gradients(xep_weights_t *weights, uint32_t rank, uint32_t i, float *sum)
{
    const uint64_t elements = weights->params.elements;
    xep_status_t status = XEP_OK;
    for (uint64_t done = 0; done < elements && status == XEP_OK; done += XEP_BOUNCE)
        status = add_piece(weights, rank, gradients_offset(weights, i) + done * sizeof *sum, sum + done,
                           elements - done < XEP_BOUNCE ? elements - done : XEP_BOUNCE);
    return status;
}

/* ---- all together ---- */

static const offer_t *offer_of(const xep_weights_t *weights, const char *all, uint32_t rank)
{
    return (const offer_t *)(const void *)(all +
                                           rank * (sizeof(offer_t) + weights->params.gradients * sizeof(uint32_t)));
}

/* What ranks say was checked there; an expert of theirs is looked up here, so it is looked at again. */
static xep_status_t add_all(xep_weights_t *weights, const char *all, float *out)
{
    xep_status_t status = XEP_OK;
    for (uint32_t r = 0; r < weights->group->nranks && status == XEP_OK; r++) {
        const offer_t *offer = offer_of(weights, all, r);
        for (uint32_t i = 0; i < offer->count && i < weights->params.gradients && status == XEP_OK; i++) {
            const uint32_t e = offer->experts[i];
            if (e >= weights->params.experts || weights->owner[e] != weights->group->rank) continue;
            status = add_gradients(weights, r, i, out + weights->index[e] * weights->params.elements);
        }
    }
    return status;
}

static xep_status_t exchange(xep_weights_t *weights, offer_t *mine, char *all, xep_status_t own)
{
    mine->status = own;
    return xep_group_agree(weights->group, "go on with its gradients", mine, all,
                           sizeof *mine + weights->params.gradients * sizeof(uint32_t));
}

static void give(xep_weights_t *weights, const xep_weights_reduce_args_t *args, offer_t *mine)
{
    mine->count = args->count;
    for (uint32_t i = 0; i < args->count; i++) {
        mine->experts[i] = args->experts[i];
        memcpy((char *)weights->heap->base + gradients_offset(weights, i), args->x[i],
               weights->params.elements * sizeof(float));
    }
}

xep_status_t xep_weights_end_last(xep_weights_t *weights)
{
    xep_group_gathers_for(weights->group, "xep_weights_reduce");
    const xep_status_t status = xep_group_leave_gather(weights->group);
    xep_group_gathers_for(weights->group, NULL);
    return status;
}

xep_status_t xep_weights_sum(xep_weights_t *weights, const xep_weights_reduce_args_t *args, xep_status_t status)
{
    const size_t bytes = sizeof(offer_t) + weights->params.gradients * sizeof(uint32_t);
    offer_t *mine = calloc(1, bytes);
    char *all = calloc(weights->group->nranks, bytes);
    if (mine == NULL || all == NULL) {
        free(mine);
        free(all);
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the gradients of %u ranks", weights->group->nranks);
    }
    xep_group_gathers_for(weights->group, "xep_weights_reduce");
    if (status == XEP_OK) status = await_last(weights);
    if (status == XEP_OK) give(weights, args, mine);
    status = exchange(weights, mine, all, status);
    if (status == XEP_OK) {
        status = add_all(weights, all, args->out);
        status = exchange(weights, mine, all, status);
    }
    xep_group_gathers_for(weights->group, NULL);
    free(mine);
    free(all);
    return status;
}
