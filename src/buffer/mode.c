/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Modes are asked for nothing that is refused here. A call that asks for nothing special is asked one question: the
 * bits that it needs and the mode lacks.
 */
#include "mode.h"

#include <stdio.h>

#include "error.h"

/* ---- what there is ---- */

#define EACH_DTYPE_(_name, _value, _bytes, _text) | 1u << _name

xep_mode_info_t xep_mode_tell(const xep_plugin_t *plugin, xep_memory_t memory)
{
    const int on_host = memory == XEP_MEMORY_HOST;
    xep_mode_info_t can = XEP_MODE_INFO_INIT;
    can.features = plugin->can | XEP_CAN_OWNERS;
    if (on_host && plugin->masks != NULL) can.features |= XEP_CAN_MASK;
    if (on_host && plugin->next != NULL) can.features |= XEP_CAN_PIECES;
    if (on_host && plugin->place != NULL) can.features |= XEP_CAN_IN_PLACE;
    if (plugin->expand != NULL) can.features |= XEP_CAN_EXPAND;
    can.memory = memory;
    can.casts = plugin->casts | 1u << XEP_QUANT_NONE;
    can.combine_casts = plugin->combine_casts | 1u << XEP_QUANT_NONE;
    can.arrangements = plugin->arrangements | 1u << XEP_ROWS_DEFAULT;
    can.dtypes = 0 XEP_DTYPE_LIST(EACH_DTYPE_);
    can.cast_dtypes = can.combine_dtypes = XEP_MODE_FLOATS;
    return can;
}

/* ---- what is refused ---- */

static const char *where(xep_memory_t memory)
{
    return memory == XEP_MEMORY_HOST ? "" : " in device memory";
}

/* A rank that is out would never release rows that it reads, and leaves holes between two pieces that nobody knows. */
static xep_status_t check_pairs(const xep_buffer_params_t *params)
{
    const int masks = params->on_failure == XEP_ON_FAILURE_MASK;
    if (masks && (params->flags & XEP_BUFFER_SEND_MEMORY) != 0)
        return xep_fail(XEP_ERR_UNSUPPORTED, "invalid flags: XEP_BUFFER_SEND_MEMORY with XEP_ON_FAILURE_MASK");
    if (masks && (params->flags & XEP_BUFFER_PIECES) != 0)
        return xep_fail(XEP_ERR_UNSUPPORTED, "invalid flags: XEP_BUFFER_PIECES with XEP_ON_FAILURE_MASK");
    return XEP_OK;
}

xep_status_t xep_mode_check_buffer(const xep_plugin_t *plugin, const xep_buffer_params_t *params, xep_memory_t rows)
{
    const uint32_t features = xep_mode_tell(plugin, params->memory).features;
    const char *name = plugin->name, *memory = where(params->memory);
    if (params->on_failure == XEP_ON_FAILURE_MASK && !(features & XEP_CAN_MASK))
        return xep_fail(XEP_ERR_UNSUPPORTED, "invalid on_failure: XEP_ON_FAILURE_MASK (mode %s%s needs all ranks)",
                        name, memory);
    if ((params->flags & XEP_BUFFER_SEND_MEMORY) != 0 && !(features & XEP_CAN_IN_PLACE))
        return xep_fail(XEP_ERR_UNSUPPORTED, "invalid flags: XEP_BUFFER_SEND_MEMORY (mode %s%s copies every row)", name,
                        memory);
    if ((params->flags & XEP_BUFFER_PIECES) != 0 && !(features & XEP_CAN_PIECES))
        return xep_fail(XEP_ERR_UNSUPPORTED,
                        "invalid flags: XEP_BUFFER_PIECES (mode %s%s brings all rows in one piece)", name, memory);
    if ((params->nreplicas != 0 || params->balance != XEP_BALANCE_NONE) && rows != XEP_MEMORY_HOST)
        return xep_fail(XEP_ERR_UNSUPPORTED,
                        "invalid %s: %u (0 in device memory where all ranks map one another: no host sees topk_idx)",
                        params->nreplicas != 0 ? "nreplicas" : "balance",
                        params->nreplicas != 0 ? params->nreplicas : (uint32_t)params->balance);
    return check_pairs(params);
}

static xep_status_t refuse(const xep_plugin_t *plugin, const xep_mode_info_t *can, const char *what)
{
    return xep_fail(XEP_ERR_UNSUPPORTED, "mode %s%s does not support %s (xep_mode_query() tells what it supports)",
                    plugin->name, where(can->memory), what);
}

static xep_status_t refuse_quant(const xep_plugin_t *plugin, const xep_mode_info_t *can, const char *operation,
                                 xep_quant_t quant)
{
    char what[64];
    snprintf(what, sizeof what, "quant %s%s", xep_quant_name(quant), operation);
    return refuse(plugin, can, what);
}

/* Names the first of the fields that need what the mode lacks. */
static xep_status_t refuse_feature(const xep_plugin_t *plugin, const xep_mode_info_t *can, uint32_t lacks)
{
    static const struct {
        uint32_t feature;
        const char *field;
    } fields[] = {{XEP_CAN_SCALES_BY_COLUMN, "XEP_DISPATCH_SCALES_BY_COLUMN"},
                  {XEP_CAN_EXPERT_STATS, "expert_stats"},
                  {XEP_CAN_PAYLOADS, "payloads"},
                  {XEP_CAN_WEIGH, "weights of a combine"},
                  {XEP_CAN_RETURN_WEIGHTS, "topk_weights and out_weights of a combine"},
                  {XEP_CAN_SUM_AT_OWNER, "XEP_COMBINE_SUM_AT_OWNER"},
                  {XEP_CAN_MASK, "missing"},
                  {XEP_CAN_EXPAND, "slots"}};
    uint32_t i = 0;
    while ((fields[i].feature & lacks) == 0) i++;
    return refuse(plugin, can, fields[i].field);
}

xep_status_t xep_mode_check_dispatch(const xep_plugin_t *plugin, const xep_mode_info_t *can,
                                     const xep_dispatch_args_t *args)
{
    static const char *const arrangements[] = {[XEP_ROWS_BY_RANK] = "XEP_ROWS_BY_RANK",
                                               [XEP_ROWS_BY_EXPERT_COMPACT] = "XEP_ROWS_BY_EXPERT_COMPACT",
                                               [XEP_ROWS_BY_EXPERT_PADDED] = "XEP_ROWS_BY_EXPERT_PADDED"};
    const uint32_t needs = (args->flags & XEP_DISPATCH_SCALES_BY_COLUMN) * XEP_CAN_SCALES_BY_COLUMN |
                           (args->expert_stats != NULL) * XEP_CAN_EXPERT_STATS |
                           (args->npayloads != 0) * XEP_CAN_PAYLOADS;
    const uint32_t lacks = needs & ~can->features;
    if ((lacks | (1u << args->quant & ~can->casts) | (1u << args->arrangement & ~can->arrangements)) == 0)
        return XEP_OK;
    if (!XEP_MODE_HAS(can->casts, args->quant)) return refuse_quant(plugin, can, " of a dispatch", args->quant);
    if (!XEP_MODE_HAS(can->arrangements, args->arrangement))
        return refuse(plugin, can, arrangements[args->arrangement]);
    return refuse_feature(plugin, can, lacks);
}

xep_status_t xep_mode_check_combine(const xep_plugin_t *plugin, const xep_mode_info_t *can,
                                    const xep_combine_args_t *args)
{
    const uint32_t needs = (args->weights != NULL) * XEP_CAN_WEIGH |
                           (args->topk_weights != NULL || args->out_weights != NULL) * XEP_CAN_RETURN_WEIGHTS |
                           (args->flags & XEP_COMBINE_SUM_AT_OWNER) * XEP_CAN_SUM_AT_OWNER |
                           (args->missing != NULL) * XEP_CAN_MASK | (args->slots != NULL) * XEP_CAN_EXPAND;
    const uint32_t lacks = needs & ~can->features;
    if ((lacks | (1u << args->quant & ~can->combine_casts)) == 0) return XEP_OK;
    if (!XEP_MODE_HAS(can->combine_casts, args->quant)) return refuse_quant(plugin, can, " of a combine", args->quant);
    return refuse_feature(plugin, can, lacks);
}
_Static_assert(XEP_DISPATCH_SCALES_BY_COLUMN == 1 && XEP_COMBINE_SUM_AT_OWNER == 1, "multiplied by what they need");
