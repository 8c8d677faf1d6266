/* SPDX-License-Identifier: BSD-3-Clause */

#include "mode.h"

#include <stdlib.h>

#include "error.h"
#include "owners.h"

/* Without a group the ranks are dealt out to the nodes. */
static void place_ranks(const xep_group_t *group, const xep_shape_t *shape, uint32_t *node, uint32_t *place,
                        uint32_t *node_ranks)
{
    for (uint32_t r = 0; r < shape->nranks; r++) {
        node[r] = group == NULL ? r % shape->nodes : group->peers[r].node;
        place[r] = node_ranks[node[r]]++;
    }
}

/* A counting sort by rank: instances on a rank stay in the order of the caller's experts. */
static void place_experts(const xep_instances_t *instances, uint32_t experts, xep_shape_t *shape, uint32_t *first,
                          uint32_t *expert)
{
    for (uint32_t i = 0; i < instances->count; i++) first[instances->rank[i] + 1]++;
    for (uint32_t r = 0; r < shape->nranks; r++) {
        if (first[r + 1] > shape->most_experts) shape->most_experts = first[r + 1];
        first[r + 1] += first[r];
    }
    shape->local_experts = first[shape->rank + 1] - first[shape->rank];
    for (uint32_t e = 0; e < experts; e++)
        for (uint32_t i = instances->begin[e]; i < instances->begin[e + 1]; i++)
            expert[first[instances->rank[i]]++] = e;
    for (uint32_t r = shape->nranks; r > 0; r--) first[r] = first[r - 1]; /* each has become the next one's */
    first[0] = 0;
    expert[shape->experts] = experts;
}

/* All arrays in one allocation, which begins with the first experts: close frees by that address. */
xep_status_t xep_shape_open(const xep_buffer_params_t *params, const xep_group_t *group, uint32_t nranks,
                            uint32_t nodes, const uint32_t *who, xep_shape_t *shape)
{
    size_t ranks = nranks;
    xep_instances_t instances;
    xep_status_t status = xep_instances_open(params, nranks, &instances);
    if (status != XEP_OK) return status;
    uint32_t *arrays = calloc(4 * ranks + 1 + nodes + instances.count + 1, sizeof *arrays);
    if (arrays == NULL) {
        xep_instances_close(&instances);
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u ranks", nranks);
    }
    uint32_t *first = arrays, *node = first + ranks + 1, *place = node + ranks, *node_ranks = place + ranks;
    uint32_t *sends = node_ranks + nodes, *expert = sends + ranks;
    *shape = (xep_shape_t){.rank = group == NULL ? 0 : group->rank,
                           .nranks = nranks,
                           .nodes = nodes,
                           .node = node,
                           .place = place,
                           .node_ranks = node_ranks,
                           .experts = instances.count,
                           .first_expert = first,
                           .expert = expert,
                           .topk = params->topk,
                           .hidden = params->hidden,
                           .scales = params->scales,
                           .elem_bytes = (uint32_t)xep_dtype_size(params->dtype),
                           .combine_elem_bytes = (uint32_t)xep_dtype_size(params->combine_dtype),
                           .slots = params->slots,
                           .tokens = params->tokens,
                           .sends = sends,
                           .recv_rows = params->recv_rows,
                           .sends_in_place = (params->flags & XEP_BUFFER_SEND_MEMORY) != 0,
                           .in_pieces = (params->flags & XEP_BUFFER_PIECES) != 0,
                           .sums_by_selection = (params->flags & XEP_BUFFER_SUM_BY_SELECTION) != 0};
    for (uint32_t r = 0; r < nranks; r++) sends[r] = who == NULL || who[r];
    place_ranks(group, shape, node, place, node_ranks);
    place_experts(&instances, params->experts, shape, first, expert);
    xep_instances_close(&instances);
    return XEP_OK;
}

void xep_shape_close(xep_shape_t *shape)
{
    free((void *)(uintptr_t)shape->first_expert); /* all its arrays are one */
    *shape = (xep_shape_t){0};
}
