/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The arrays of a shape are one allocation. The regions of the heap are laid one after the other here, in the order of
 * their numbers, and nowhere else.
 */
#include "shape.h"

#include <stdlib.h>

#include "error.h"
#include "instances.h"

enum { LEAST_ALIGNMENT = 64, MOST_ALIGNMENT = 4096 };

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
                           .wide_sums = params->node_sums == XEP_NODE_SUMS_FP32,
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

/* ---- regions ---- */

static int is_alignment(uint32_t alignment)
{
    return alignment >= LEAST_ALIGNMENT && alignment <= MOST_ALIGNMENT && (alignment & (alignment - 1)) == 0;
}

/* Half of the 64 bits: sums of an offset and a length cannot overflow then, wherever they are computed. */
static xep_status_t lay_region(const xep_plugin_t *plugin, xep_memory_t memory, xep_region_t *region, uint64_t *end)
{
    int is_known = region->memory == XEP_MEMORY_HOST || region->memory == memory;
    if (!is_known || (region->bytes != 0 && !is_alignment(region->alignment)))
        return xep_fail(XEP_ERR_PLUGIN, "mode \"%s\" wants memory of kind %d aligned to %u (kind %d, %d to %d)",
                        plugin->name, region->memory, region->alignment, memory, LEAST_ALIGNMENT, MOST_ALIGNMENT);
    uint64_t *end_p = &end[region->memory];
    if (region->bytes == 0) region->alignment = LEAST_ALIGNMENT;
    region->offset = (*end_p + region->alignment - 1) / region->alignment * region->alignment;
    if (__builtin_add_overflow(region->offset, region->bytes, end_p) || *end_p > UINT64_MAX / 2)
        return XEP_ERR_NO_MEMORY;
    return XEP_OK;
}

xep_status_t xep_shape_measure(const xep_plugin_t *plugin, const xep_shape_t *shape, xep_memory_t memory,
                               xep_region_t regions[XEP_REGIONS], uint64_t end[XEP_MEMORIES], uint64_t *recv_rows_p)
{
    xep_status_t status;
    for (int i = 0; i < XEP_MEMORIES; i++) end[i] = 0;
    for (int i = 0; i < XEP_REGIONS; i++) regions[i] = (xep_region_t){0};
    status = plugin->heap_size(shape, regions, recv_rows_p);
    for (int i = 0; i < XEP_REGIONS && status == XEP_OK; i++) status = lay_region(plugin, memory, &regions[i], end);
    if (status == XEP_ERR_PLUGIN) return status;
    if (status != XEP_OK)
        return xep_fail(status, "mode \"%s\" cannot serve this shape: %s", plugin->name,
                        status == XEP_ERR_NO_MEMORY ? "its size does not fit into 64 bits" : xep_status_text(status));
    return XEP_OK;
}
