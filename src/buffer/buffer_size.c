/* SPDX-License-Identifier: BSD-3-Clause */

#include "buffer_size.h"

#include "announce.h"
#include "balance.h"
#include "buffer_give_up.h"
#include "error.h"
#include "members.h"
#include "mode.h"
#include "path.h"
#include "plugin_loader.h"
#include "staging.h"

enum { MEMORIES = 2, LEAST_ALIGNMENT = 64, MOST_ALIGNMENT = 4096 };

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

/*
 * Asks the mode how large its regions are and puts those of a kind of memory one behind the other, in the order of
 * their numbers. end: where the last of each kind ends.
 */
static xep_status_t lay_regions(const xep_plugin_t *plugin, const xep_shape_t *shape, xep_memory_t memory,
                                xep_region_t regions[XEP_REGIONS], uint64_t end[MEMORIES], uint64_t *recv_rows_p)
{
    xep_status_t status;
    for (int i = 0; i < MEMORIES; i++) end[i] = 0;
    for (int i = 0; i < XEP_REGIONS; i++) regions[i] = (xep_region_t){0};
    status = plugin->heap_size(shape, regions, recv_rows_p);
    for (int i = 0; i < XEP_REGIONS && status == XEP_OK; i++) status = lay_region(plugin, memory, &regions[i], end);
    if (status == XEP_ERR_PLUGIN) return status;
    if (status != XEP_OK)
        return xep_fail(status, "mode \"%s\" cannot serve this shape: %s", plugin->name,
                        status == XEP_ERR_NO_MEMORY ? "its size does not fit into 64 bits" : xep_status_text(status));
    return XEP_OK;
}

/* Puts an area at a cache line behind the others, of which *end_p is the end. */
static uint64_t place(uint64_t *end_p, uint64_t bytes)
{
    const uint64_t begin = (*end_p + 63) / 64 * 64;
    if (bytes != 0) *end_p = begin + bytes;
    return begin;
}

/* The lines begin behind what is the mode's. */
xep_status_t xep_buffer_measure_shape(const xep_config_t *config, const xep_plugin_t *plugin, const xep_shape_t *shape,
                                      const xep_buffer_params_t *params, xep_region_t regions[XEP_REGIONS],
                                      xep_areas_t *areas, xep_buffer_size_t *size)
{
    const xep_memory_t memory = xep_buffer_memory_of_mode(params, shape->nodes);
    const int masks = params->on_failure == XEP_ON_FAILURE_MASK, is_served = (params->flags & XEP_BUFFER_SERVED) != 0;
    uint64_t end[MEMORIES];
    xep_status_t status = lay_regions(plugin, shape, memory, regions, end, &size->recv_rows);
    if (status != XEP_OK) return status;
    size->bytes = end[XEP_MEMORY_HOST];
    areas->lines = place(&size->bytes, (uint64_t)shape->nranks * sizeof(xep_buffer_line_t));
    areas->members = place(&size->bytes, masks ? xep_members_bytes(shape) : 0);
    areas->balance = place(&size->bytes, xep_balance_bytes(params, shape->nranks));
    areas->announce = place(&size->bytes, is_served ? xep_announce_bytes(shape) : 0);
    size->device_bytes = end[XEP_MEMORY_CUDA];
    if (memory == params->memory) return XEP_OK;
    status = xep_staging_measure(shape, size->recv_rows, &areas->staging, &size->bytes, &size->device_bytes);
    if (status == XEP_OK && xep_staging_wants_direct(config, plugin, shape, params))
        size->device_bytes += regions[XEP_REGION_ROWS].bytes; /* the twin */
    return status;
}

/* group: NULL where there is none, and its ranks are spread evenly over the nodes. */
static xep_status_t measure_params(const xep_config_t *config, const xep_plugin_t *plugin,
                                   const xep_buffer_params_t *params, const xep_group_t *group, uint32_t nranks,
                                   uint32_t nodes, const uint32_t *sends, xep_buffer_size_t *size)
{
    xep_shape_t shape;
    xep_region_t regions[XEP_REGIONS];
    xep_areas_t areas;
    xep_status_t status = xep_mode_check_buffer(plugin, params, xep_buffer_memory_of_mode(params, nodes));
    if (status == XEP_OK) status = xep_shape_open(params, group, nranks, nodes, sends, &shape);
    if (status != XEP_OK) return status;
    if (nodes != 1) xep_path_imagine(params, plugin, &shape);
    status = xep_buffer_measure_shape(config, plugin, &shape, params, regions, &areas, size);
    xep_shape_close(&shape);
    return status;
}

static xep_status_t measure_nodes(const xep_config_t *config, const xep_buffer_params_t *params, uint32_t nranks,
                                  uint32_t nodes, xep_buffer_size_t *size)
{
    xep_plugin_ref_t ref;
    xep_status_t status = xep_plugin_load(config, params->mode, xep_buffer_memory_of_mode(params, nodes), &ref);
    if (status != XEP_OK) return status;
    status = measure_params(config, ref.plugin, params, NULL, nranks, nodes, NULL, size);
    xep_plugin_unload(&ref);
    return status;
}

xep_status_t xep_buffer_measure(const xep_config_t *config, const xep_buffer_params_t *params, uint32_t nranks,
                                xep_buffer_size_t *size)
{
    xep_buffer_size_t node = XEP_BUFFER_SIZE_INIT;
    /*
     * the nodes are not known here: asks for one node for each rank, then for one of all ranks; in device memory, with
     * masks, for the latter alone, as what is staged has none, and with several instances of experts for the former
     */
    const int on_device = params->memory != XEP_MEMORY_HOST,
              is_mapped = on_device && params->on_failure == XEP_ON_FAILURE_MASK,
              is_staged = on_device && (params->nreplicas != 0 || params->balance != XEP_BALANCE_NONE);
    xep_status_t status = measure_nodes(config, params, nranks, is_mapped ? 1 : nranks, size);
    if (status == XEP_OK) status = measure_nodes(config, params, nranks, is_staged ? nranks : 1, &node);
    size->node_bytes = node.bytes;
    if (size->device_bytes < node.device_bytes) size->device_bytes = node.device_bytes;
    return status;
}

/*
 * Whether less memory would do: recv_rows was not given, and with pieces room for an even load is enough, which is less
 * unless all ranks get all rows. A shape that cannot be measured cannot be made.
 */
int xep_buffer_may_be_smaller(const xep_buffer_t *buffer, const xep_buffer_params_t *params, uint64_t bytes)
{
    const xep_group_t *group = buffer->group;
    xep_buffer_params_t smaller = *params;
    xep_buffer_size_t size = XEP_BUFFER_SIZE_INIT;
    if (params->recv_rows != 0 || (params->flags & XEP_BUFFER_PIECES) != 0) return 0;
    smaller.flags |= XEP_BUFFER_PIECES;
    return measure_params(&group->config, buffer->plugin.plugin, &smaller, group, group->nranks, group->nnodes,
                          buffer->shape.sends, &size) == XEP_OK &&
           size.bytes < bytes;
}
