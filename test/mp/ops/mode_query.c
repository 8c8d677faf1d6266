/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 4 */

/*
 * What xep_mode_query() says of a mode is what happens: all that it can is done, and all else is refused. Two nodes are
 * drawn, so that there is a path by nodes.
 */
#include <stdlib.h>
#include <string.h>

#include "mp_rig.h"

enum { TOKENS = 4, EXPERTS = 4, TOPK = 2, HIDDEN = 64, SCALES = 64 };

static int64_t idx[TOKENS][TOPK];
static double x[TOKENS][HIDDEN], out[TOKENS][HIDDEN];
static float weights[TOKENS][TOPK], out_weights[TOKENS][TOPK];
static uint8_t missing[TOKENS][TOPK];

static xep_buffer_params_t params_of(const char *mode)
{
    xep_buffer_params_t p = XEP_BUFFER_PARAMS_INIT;
    p.mode = mode;
    p.experts = EXPERTS, p.topk = TOPK, p.hidden = HIDDEN, p.scales = SCALES, p.tokens = TOKENS;
    p.dtype = XEP_FP64, p.combine_dtype = XEP_FP32;
    return p;
}

/* What is said, and what happened: done, or refused as what the mode lacks. */
static void compare(const char *mode, const char *what, int value, int said, xep_status_t status)
{
    if (status == (said ? XEP_OK : XEP_ERR_UNSUPPORTED)) return;
    mp_fail(__FILE__, __LINE__, "mode %s, %s %d: said %d, and it was %s: %s", mode, what, value, said,
            xep_status_name(status), xep_last_error());
}

static int has(uint32_t set, uint32_t value)
{
    return (set >> value & 1) != 0;
}

/* ---- buffers ---- */

static void compare_buffer(xep_group_t *group, const xep_buffer_params_t *p, const char *what, int said)
{
    xep_buffer_t *buffer = NULL;
    compare(p->mode, what, 1, said, xep_buffer_create(group, p, &buffer));
    MP_OK(xep_buffer_destroy(buffer));
}

static void compare_path(xep_group_t *group, const xep_buffer_params_t *p, int said)
{
    xep_buffer_t *buffer;
    MP_OK(xep_buffer_create(group, p, &buffer));
    MP_CHECK((mp_buffer_info(buffer).path == XEP_PATH_NODES) == said);
    MP_OK(xep_buffer_destroy(buffer));
}

static void compare_buffers(xep_group_t *group, const char *mode, uint32_t features)
{
    static const uint32_t owners[EXPERTS] = {1, 0, 3, 2};
    xep_buffer_params_t p = params_of(mode);
    p.on_failure = XEP_ON_FAILURE_MASK;
    compare_buffer(group, &p, "masks", (features & XEP_CAN_MASK) != 0);
    p = params_of(mode), p.flags = XEP_BUFFER_PIECES;
    compare_buffer(group, &p, "pieces", (features & XEP_CAN_PIECES) != 0);
    p = params_of(mode), p.flags = XEP_BUFFER_SEND_MEMORY;
    compare_buffer(group, &p, "in place", (features & XEP_CAN_IN_PLACE) != 0);
    p = params_of(mode), p.owners = owners;
    compare_buffer(group, &p, "owners", (features & XEP_CAN_OWNERS) != 0);
    p = params_of(mode), p.path = XEP_PATH_NODES;
    compare_path(group, &p, (features & XEP_CAN_NODES) != 0);
}

/* ---- dispatches ---- */

static xep_dispatch_args_t dispatch_args(void)
{
    xep_dispatch_args_t a = XEP_DISPATCH_ARGS_INIT;
    a.tokens = TOKENS, a.x = x, a.topk_idx = idx, a.dtype = XEP_FP32;
    return a;
}

static void compare_dispatch(xep_buffer_t *buffer, const xep_dispatch_args_t *a, const char *mode, const char *what,
                             int value, int said)
{
    xep_handle_t *handle = NULL;
    compare(mode, what, value, said, xep_dispatch(buffer, a, &handle, NULL));
    xep_handle_release(handle);
}

static int is_quant(int quant)
{
    return strcmp(xep_quant_name((xep_quant_t)quant), "unknown") != 0;
}

static void compare_dispatches(xep_buffer_t *buffer, const char *mode, const xep_mode_info_t *info)
{
    int32_t stats[EXPERTS];
    for (int quant = XEP_QUANT_NONE; is_quant(quant); quant++) {
        xep_dispatch_args_t a = dispatch_args();
        a.quant = (xep_quant_t)quant, a.quant_scale = quant == XEP_QUANT_E4M3_STATIC ? 1 : 0;
        compare_dispatch(buffer, &a, mode, "quant", quant, has(info->casts, a.quant));
    }
    for (int rows = XEP_ROWS_DEFAULT; rows <= XEP_ROWS_BY_EXPERT_PADDED; rows++) {
        xep_dispatch_args_t a = dispatch_args();
        a.arrangement = (xep_rows_t)rows;
        compare_dispatch(buffer, &a, mode, "arrangement", rows, has(info->arrangements, a.arrangement));
    }
    for (int dtype = XEP_BF16; dtype <= XEP_E2M1X2; dtype++) {
        xep_dispatch_args_t a = dispatch_args();
        a.dtype = (xep_dtype_t)dtype;
        compare_dispatch(buffer, &a, mode, "dtype", dtype, has(info->dtypes, a.dtype));
    }
    xep_dispatch_args_t a = dispatch_args();
    a.flags = XEP_DISPATCH_SCALES_BY_COLUMN;
    compare_dispatch(buffer, &a, mode, "columns", 1, (info->features & XEP_CAN_SCALES_BY_COLUMN) != 0);
    a = dispatch_args(), a.expert_stats = stats;
    compare_dispatch(buffer, &a, mode, "expert_stats", 1, (info->features & XEP_CAN_EXPERT_STATS) != 0);
    xep_payload_t payload = {.data = x, .bytes = 4};
    a = dispatch_args(), a.payloads = &payload, a.npayloads = 1;
    compare_dispatch(buffer, &a, mode, "payloads", 1, (info->features & XEP_CAN_PAYLOADS) != 0);
}

/* Types that cannot be cast are wrong, and not lacking: so are those that cannot be summed. */
static void compare_types(xep_buffer_t *buffer, const xep_mode_info_t *info)
{
    for (int dtype = XEP_BF16; dtype <= XEP_E2M1X2; dtype++) {
        xep_dispatch_args_t a = dispatch_args();
        xep_combine_args_t b = XEP_COMBINE_ARGS_INIT;
        xep_handle_t *handle = NULL;
        a.dtype = (xep_dtype_t)dtype, a.quant = XEP_QUANT_E4M3;
        MP_FAILS(has(info->cast_dtypes, a.dtype) ? XEP_OK : XEP_ERR_INVALID, xep_dispatch(buffer, &a, &handle, NULL));
        xep_handle_release(handle);
        a = dispatch_args();
        MP_OK(xep_dispatch(buffer, &a, &handle, NULL));
        b.dtype = (xep_dtype_t)dtype, b.out = out;
        b.x = calloc(mp_recv(handle)->rows + 1, sizeof x[0]);
        MP_FAILS(has(info->combine_dtypes, b.dtype) ? XEP_OK : XEP_ERR_INVALID, xep_combine(handle, &b, NULL));
        free((void *)(uintptr_t)b.x);
        xep_handle_release(handle);
    }
}

/* ---- combines ---- */

static xep_combine_args_t combine_args(xep_handle_t *handle)
{
    xep_combine_args_t b = XEP_COMBINE_ARGS_INIT;
    MP_CHECK(mp_input(handle, NULL) != NULL);
    b.dtype = XEP_BF16, b.out = out;
    return b;
}

static void compare_combines(xep_buffer_t *buffer, const char *mode, const xep_mode_info_t *info)
{
    xep_dispatch_args_t a = dispatch_args();
    xep_handle_t *handle;
    MP_OK(xep_dispatch(buffer, &a, &handle, NULL));
    float *back = calloc(mp_recv(handle)->rows + 1, sizeof weights[0]);
    for (int quant = XEP_QUANT_NONE; is_quant(quant); quant++) {
        xep_combine_args_t b = combine_args(handle);
        b.quant = (xep_quant_t)quant, b.quant_scale = quant == XEP_QUANT_E4M3_STATIC ? 1 : 0;
        compare(mode, "quant of a combine", quant, has(info->combine_casts, b.quant), xep_combine(handle, &b, NULL));
    }
    xep_combine_args_t b = combine_args(handle);
    b.flags = XEP_COMBINE_SUM_AT_OWNER;
    compare(mode, "sum at owner", 1, (info->features & XEP_CAN_SUM_AT_OWNER) != 0, xep_combine(handle, &b, NULL));
    b = combine_args(handle), b.missing = missing[0];
    compare(mode, "missing", 1, (info->features & XEP_CAN_MASK) != 0, xep_combine(handle, &b, NULL));
    b = combine_args(handle), b.weights = weights[0];
    compare(mode, "weights", 1, (info->features & XEP_CAN_WEIGH) != 0, xep_combine(handle, &b, NULL));
    b = combine_args(handle), b.topk_weights = back, b.out_weights = out_weights[0];
    compare(mode, "weights back", 1, (info->features & XEP_CAN_RETURN_WEIGHTS) != 0, xep_combine(handle, &b, NULL));
    free(back);
    xep_handle_release(handle);
}

int main(void)
{
    xep_mode_info_t info = XEP_MODE_INFO_INIT;
    setenv("XEP_NODE_RANKS", "2", 1);
    xep_group_t *group = mp_group();
    for (int t = 0; t < TOKENS * TOPK; t++) idx[t / TOPK][t % TOPK] = t % EXPERTS;
    MP_FAILS(XEP_ERR_PLUGIN, xep_mode_query("nothing", XEP_MEMORY_HOST, &info));
    MP_FAILS(XEP_ERR_INVALID, xep_mode_query("ll", (xep_memory_t)7, &info));
    for (int m = 0; m < 2; m++) {
        const xep_buffer_params_t p = params_of(mp_modes[m]);
        xep_buffer_t *buffer;
        MP_OK(xep_mode_query(mp_modes[m], XEP_MEMORY_HOST, &info));
        compare_buffers(group, mp_modes[m], info.features);
        MP_OK(xep_buffer_create(group, &p, &buffer));
        compare_dispatches(buffer, mp_modes[m], &info);
        compare_types(buffer, &info);
        compare_combines(buffer, mp_modes[m], &info);
        MP_OK(xep_buffer_destroy(buffer));
    }
    MP_OK(xep_group_destroy(group));
    return 0;
}
