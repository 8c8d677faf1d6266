/* SPDX-License-Identifier: BSD-3-Clause */

/** What a mode can for a kind of memory, as its table says, the refusals that follow from that, and what it is told. */
#ifndef XEP_BUFFER_MODE_H
#define XEP_BUFFER_MODE_H

#include <xep/inspect.h>
#include <xep/plugin.h>

#include "group.h"

/** Whether bit is in a set of xep_mode_info_t. */
#define XEP_MODE_HAS(_set, _bit) (((_set) >> (_bit)&1u) != 0)

/** The types of rows that can be cast, and of rows that can be summed. */
#define XEP_MODE_FLOATS (1u << XEP_BF16 | 1u << XEP_FP16 | 1u << XEP_FP32)

xep_mode_info_t xep_mode_tell(const xep_plugin_t *plugin, xep_memory_t memory);

/* XEP_ERR_UNSUPPORTED: something is asked for that the mode does not have. */

/** rows: the memory of the rows as the mode sees it. */
xep_status_t xep_mode_check_buffer(const xep_plugin_t *plugin, const xep_buffer_params_t *params, xep_memory_t rows);
xep_status_t xep_mode_check_dispatch(const xep_plugin_t *plugin, const xep_mode_info_t *can,
                                     const xep_dispatch_args_t *args);
xep_status_t xep_mode_check_combine(const xep_plugin_t *plugin, const xep_mode_info_t *can,
                                    const xep_combine_args_t *args);

/* ---- mode_shape.c: the shape that a mode gets ---- */

/**
 * From checked params; sends: [R], copied; NULL: all do. group NULL: for rank 0 of one that does not exist, spread
 * evenly over so many nodes. XEP_ERR_NO_MEMORY; free what it made with close.
 */
xep_status_t xep_shape_open(const xep_buffer_params_t *params, const xep_group_t *group, uint32_t nranks,
                            uint32_t nodes, const uint32_t *sends, xep_shape_t *shape);
void xep_shape_close(xep_shape_t *shape);

#endif
