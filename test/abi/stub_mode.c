/* SPDX-License-Identifier: BSD-3-Clause */

/** The least that loads as a mode: loader.sh builds it under many names, changed. It is never opened. */
#include <xep/plugin.h>

static xep_status_t stub_heap_size(const xep_shape_t *shape, xep_region_t *regions, uint64_t *recv_rows_p)
{
    regions[XEP_REGION_ROWS] = (xep_region_t){.bytes = 4096 * shape->feed_rows, .alignment = 64};
    *recv_rows_p = shape->tokens;
    return XEP_OK;
}

/* Traffic as no other mode has it: by nodes a dispatch has a row for each selection, and a combine has none. */
static void stub_traffic(const xep_shape_t *shape, xep_traffic_t *dispatch, xep_traffic_t *combine)
{
    *dispatch = (xep_traffic_t){.by_nodes = shape->by_nodes, .by_selection = shape->by_nodes, .rounds = 3};
    dispatch->row_bytes = dispatch->sent_bytes = shape->by_nodes ? 10 : 1000000;
    dispatch->pass_rows = shape->by_nodes ? 12 : 48;
    *combine = (xep_traffic_t){.by_nodes = shape->by_nodes, .rounds = 1, .row_bytes = 1, .sent_bytes = 1};
}

static xep_status_t stub_open(const xep_env_t *env, void **mode_p)
{
    (void)mode_p;
    return env->fail(env, NULL, XEP_ERR_UNSUPPORTED, "a stub");
}

static void stub_close(void *mode)
{
    (void)mode;
}

static xep_status_t stub_run(void *mode, xep_op_t *op)
{
    (void)mode, (void)op;
    return XEP_OK;
}

static xep_status_t stub_input(void *mode, uint32_t slot, void **base_p, size_t *stride_p)
{
    (void)mode, (void)slot, (void)base_p, (void)stride_p;
    return XEP_OK;
}

static void stub_explain(void *mode, const xep_op_t *op, char *text, size_t bytes)
{
    (void)mode, (void)op, (void)text, (void)bytes;
}

__attribute__((visibility("default"))) const xep_plugin_t xep_plugin = {
    .abi = XEP_PLUGIN_ABI,
    .size = sizeof(xep_plugin_t),
    .env_size = sizeof(xep_env_t),
    .shape_size = sizeof(xep_shape_t),
    .op_struct_size = sizeof(xep_op_t),
    .wire_ops_size = sizeof(xep_wire_ops_t),
    .device_ops_size = sizeof(xep_device_ops_t),
    .name = "solo",
    .brief = "a stub",
    .heap_size = stub_heap_size,
    .open = stub_open,
    .close = stub_close,
    .dispatch = stub_run,
    .combine = stub_run,
    .progress = stub_run,
    .input = stub_input,
    .explain = stub_explain,
    .traffic = stub_traffic,
};
