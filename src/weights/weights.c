/* SPDX-License-Identifier: BSD-3-Clause */

#include "weights.h"

#include <inttypes.h>
#include <stdlib.h>

#include "error.h"
#include "group_control.h"
#include "group_exchange.h"
#include "owners.h"

enum { ALIGNMENT = 4096 }; /* experts begin at a page */

/* ---- where everything is ---- */

static uint64_t align(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* All heaps are as large as that of the rank with most experts; pages that nobody touches take no memory. */
static xep_status_t lay_out(xep_weights_t *weights, uint64_t *bytes_p)
{
    const xep_weights_params_t *params = &weights->params;
    const uint32_t nranks = weights->group->nranks;
    uint32_t most = 0, *count = calloc(nranks, sizeof *count);
    weights->owner = malloc(params->experts * sizeof *weights->owner);
    weights->index = malloc(params->experts * sizeof *weights->index);
    if (count == NULL || weights->owner == NULL || weights->index == NULL) {
        free(count);
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the owners of %u experts", params->experts);
    }
    for (uint32_t e = 0; e < params->experts; e++) {
        weights->owner[e] = xep_owner_of(params->owners, params->experts, nranks, e);
        weights->index[e] = count[weights->owner[e]]++;
        if (weights->index[e] >= most) most = weights->index[e] + 1;
    }
    free(count);
    weights->params.owners = NULL; /* the caller's */
    weights->stride = align(params->bytes);
    weights->gradients_offset = align((uint64_t)most * XEP_WEIGHTS_WORD_STRIDE);
    weights->experts_offset = align(weights->gradients_offset + params->gradients * params->elements * sizeof(float));
    *bytes_p = weights->experts_offset + most * weights->stride;
    return XEP_OK;
}

/* ---- making and freeing them ---- */

/** What a rank says; exchanged as bytes. */
typedef struct terms {
    int32_t status;
    uint32_t reserved;
    uint64_t value[4], owners;
} terms_t;

static terms_t fill_terms(const xep_group_t *group, const xep_weights_params_t *params, xep_status_t own)
{
    const xep_buffer_params_t map = {.experts = params->experts, .owners = params->owners};
    if (own != XEP_OK) return (terms_t){.status = own};
    return (terms_t){.value = {params->experts, params->bytes, params->elements, params->gradients},
                     .owners = xep_owners_digest(&map, group->nranks)};
}

static xep_status_t compare_terms(xep_group_t *group, const xep_weights_params_t *params, const terms_t *first,
                                  const terms_t *theirs, uint32_t rank)
{
    static const char *const names[] = {"experts", "bytes", "elements", "gradients"};
    const xep_buffer_params_t map = {.experts = params->experts, .owners = params->owners};
    for (int i = 0; i < 4; i++)
        if (theirs->value[i] != first->value[i])
            return xep_fail(XEP_ERR_MISMATCH, "rank %u and rank 0 disagree on %s: %" PRIu64 ", %" PRIu64, rank,
                            names[i], theirs->value[i], first->value[i]);
    return theirs->owners == first->owners ? XEP_OK : xep_owners_refuse(group, &map, rank);
}

/* params is read only where all ranks are fine. */
static xep_status_t agree(xep_group_t *group, const xep_weights_params_t *params, xep_status_t own)
{
    const terms_t mine = fill_terms(group, params, own);
    terms_t *all = calloc(group->nranks, sizeof *all);
    if (all == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the parameters of %u ranks", group->nranks);
    xep_status_t status = xep_group_agree(group, "go on with its weights", &mine, all, sizeof mine);
    for (uint32_t r = 1; r < group->nranks && status == XEP_OK; r++)
        status = compare_terms(group, params, &all[0], &all[r], r);
    free(all);
    return status;
}

static xep_status_t open_heap(xep_weights_t *weights, uint64_t bytes)
{
    xep_group_t *group = weights->group;
    xep_status_t status = xep_heap_open(&group->config, group->transport, bytes, &weights->heap);
    if (status == XEP_OK) status = xep_weights_open_copies(weights);
    if (status != XEP_OK || weights->params.gradients == 0) return status;
    weights->bounce = malloc(XEP_BOUNCE * sizeof *weights->bounce);
    return weights->bounce != NULL ? XEP_OK : xep_fail(XEP_ERR_NO_MEMORY, "no memory for gradients");
}

/* All but the heap: UCX may still read into copies before that has ended. */
static void release(void *arg)
{
    xep_weights_t *weights = arg;
    xep_weights_close_copies(weights);
    pthread_mutex_destroy(&weights->lock);
    free(weights->bounce);
    free(weights->owner);
    free(weights->index);
    free(weights);
}

/* Whatever was made; no rank is waited for. exposed: one that is late may still read here, by address. */
static void free_weights(xep_weights_t *weights, int exposed)
{
    xep_heap_wire_t *heap = weights->heap;
    if (heap == NULL) {
        release(weights);
        return;
    }
    heap->exposed = exposed;
    heap->release = release;
    heap->release_arg = weights;
    weights->group->transport->ops->heap_close(heap);
}

/* Now, as the memory of a rank that has died can still be read, but not be mapped any more. */
static void map_node(xep_weights_t *weights)
{
    for (uint32_t r = 0; r < weights->group->nranks; r++)
        if (weights->group->peers[r].mapped) (void)weights->heap->wire.ops->map(&weights->heap->wire, r);
}

static xep_status_t open_agreed(xep_group_t *group, const xep_weights_params_t *params, xep_status_t status,
                                xep_weights_t **weights_p)
{
    uint64_t bytes = 0;
    status = agree(group, params, status);
    if (status != XEP_OK) return status;
    xep_weights_t *weights = calloc(1, sizeof *weights);
    if (weights == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for weights");
    weights->group = group;
    weights->params = *params;
    weights->task.run = xep_weights_run_task;
    pthread_mutex_init(&weights->lock, NULL);
    status = lay_out(weights, &bytes);
    if (status == XEP_OK) status = open_heap(weights, bytes);
    status = agree(group, params, status);
    if (status == XEP_OK) status = xep_group_connect_heap(group, weights->heap);
    if (status == XEP_OK) {
        map_node(weights);
        status = agree(group, params, status); /* nobody has the keys of a rank that has given up before it had all */
    }
    if (status != XEP_OK) {
        free_weights(weights, 1);
        return status;
    }
    xep_group_add_task(group, &weights->task);
    *weights_p = weights;
    return XEP_OK;
}

xep_status_t xep_weights_open(xep_group_t *group, const xep_weights_params_t *params, xep_status_t status,
                              xep_weights_t **weights_p)
{
    xep_group_gathers_for(group, "xep_weights_create");
    status = open_agreed(group, params, status, weights_p);
    xep_group_gathers_for(group, NULL);
    return status;
}

/*
 * Others may still read here: all come first, or their deadline. An allgather that was given up is never gone on with
 * here: it may be that of other weights.
 */
void xep_weights_close(xep_weights_t *weights)
{
    xep_group_t *group = weights->group;
    uint8_t mine = 0, *all = malloc(group->nranks);
    xep_group_gathers_for(group, "xep_weights_destroy");
    xep_status_t status = all != NULL ? xep_group_leave_gather(group) : XEP_ERR_NO_MEMORY;
    if (status == XEP_OK) status = xep_group_exchange(group, &mine, all, sizeof mine);
    xep_group_gathers_for(group, NULL);
    free(all);
    xep_group_remove_task(group, &weights->task);
    free_weights(weights, status != XEP_OK);
}
