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
#include "shape.h"
#include "staging.h"

/* The members begin at a cache line behind the lines. */
uint64_t xep_buffer_members_offset(uint64_t lines_offset, uint32_t nranks)
{
    return (lines_offset + nranks * sizeof(xep_buffer_line_t) + 63) / 64 * 64;
}

uint64_t xep_buffer_balance_offset(uint64_t lines_offset, const xep_shape_t *shape, const xep_buffer_params_t *params)
{
    const uint64_t offset = xep_buffer_members_offset(lines_offset, shape->nranks);
    return params->on_failure == XEP_ON_FAILURE_MASK ? offset + xep_members_bytes(shape) : offset;
}

/* The memory of the rows as the mode sees it. */
xep_memory_t xep_buffer_memory_of_mode(const xep_buffer_params_t *params, uint32_t nodes)
{
    return xep_staging_is_needed(params->memory, nodes) ? XEP_MEMORY_HOST : params->memory;
}

/* The lines begin at a cache line behind what is the mode's. */
xep_status_t xep_buffer_measure_shape(const xep_plugin_t *plugin, const xep_shape_t *shape,
                                      const xep_buffer_params_t *params, xep_region_t regions[XEP_REGIONS],
                                      uint64_t *lines_offset_p, xep_buffer_size_t *size)
{
    uint64_t end[XEP_MEMORIES];
    xep_memory_t memory = xep_buffer_memory_of_mode(params, shape->nodes);
    xep_status_t status = xep_shape_measure(plugin, shape, memory, regions, end, &size->recv_rows);
    if (status != XEP_OK) return status;
    *lines_offset_p = (end[XEP_MEMORY_HOST] + 63) / 64 * 64;
    size->bytes = *lines_offset_p + (uint64_t)shape->nranks * sizeof(xep_buffer_line_t);
    if (params->on_failure == XEP_ON_FAILURE_MASK)
        size->bytes = xep_buffer_members_offset(*lines_offset_p, shape->nranks) + xep_members_bytes(shape);
    if (params->balance != XEP_BALANCE_NONE)
        size->bytes =
            xep_buffer_balance_offset(*lines_offset_p, shape, params) + xep_balance_bytes(params, shape->nranks);
    if (params->flags & XEP_BUFFER_SERVED) size->bytes = (size->bytes + 63) / 64 * 64 + xep_announce_bytes(shape);
    size->device_bytes = end[XEP_MEMORY_CUDA];
    if (memory == params->memory) return XEP_OK;
    return xep_staging_measure(shape, size->recv_rows, &size->bytes, &size->device_bytes);
}

static xep_status_t measure_nodes(const xep_config_t *config, const xep_buffer_params_t *params, uint32_t nranks,
                                  uint32_t nodes, xep_buffer_size_t *size)
{
    xep_plugin_ref_t ref;
    xep_shape_t shape;
    xep_region_t regions[XEP_REGIONS];
    uint64_t lines_offset;
    const xep_memory_t memory = xep_buffer_memory_of_mode(params, nodes);
    xep_status_t status = xep_plugin_load(config, params->mode, memory, &ref);
    if (status != XEP_OK) return status;
    status = xep_mode_check_buffer(ref.plugin, params, memory);
    if (status == XEP_OK) status = xep_shape_imagine(params, nranks, nodes, &shape);
    if (status == XEP_OK) {
        if (nodes != 1) xep_path_imagine(params, ref.plugin, &shape);
        status = xep_buffer_measure_shape(ref.plugin, &shape, params, regions, &lines_offset, size);
        xep_shape_close(&shape);
    }
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
    const xep_plugin_t *plugin = buffer->plugin.plugin;
    xep_buffer_params_t smaller = *params;
    xep_buffer_size_t size = XEP_BUFFER_SIZE_INIT;
    xep_region_t regions[XEP_REGIONS];
    xep_shape_t shape;
    uint64_t lines_offset;
    if (params->recv_rows != 0 || (params->flags & XEP_BUFFER_PIECES) != 0) return 0;
    smaller.flags |= XEP_BUFFER_PIECES;
    if (xep_mode_check_buffer(plugin, &smaller, xep_buffer_memory_of_mode(params, group->nnodes)) != XEP_OK ||
        xep_shape_open(&smaller, group, buffer->shape.sends, &shape) != XEP_OK)
        return 0;
    if (group->nnodes != 1) xep_path_imagine(&smaller, plugin, &shape);
    xep_status_t status = xep_buffer_measure_shape(plugin, &shape, &smaller, regions, &lines_offset, &size);
    xep_shape_close(&shape);
    return status == XEP_OK && size.bytes < bytes;
}
