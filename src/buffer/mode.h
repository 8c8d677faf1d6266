/* SPDX-License-Identifier: BSD-3-Clause */

/** What a mode can for a kind of memory, as its table says, and the refusals that follow from that. */
#ifndef XEP_BUFFER_MODE_H
#define XEP_BUFFER_MODE_H

#include <xep/inspect.h>
#include <xep/plugin.h>

/** Whether bit is in a set of xep_mode_info_t. */
#define XEP_MODE_HAS(_set, _bit) (((_set) >> (_bit)&1u) != 0)

/** The types of rows that can be cast, and of rows that can be summed. */
#define XEP_MODE_FLOATS (1u << XEP_BF16 | 1u << XEP_FP16 | 1u << XEP_FP32)

/** All but XEP_CAN_NODES, which needs a shape to ask with. */
xep_mode_info_t xep_mode_tell(const xep_plugin_t *plugin, xep_memory_t memory);

/** With it. XEP_ERR_NO_MEMORY. */
xep_status_t xep_mode_tell_all(const xep_plugin_t *plugin, xep_memory_t memory, xep_mode_info_t *info);

/* XEP_ERR_UNSUPPORTED: something is asked for that the mode does not have. */

/** rows: the memory of the rows as the mode sees it. */
xep_status_t xep_mode_check_buffer(const xep_plugin_t *plugin, const xep_buffer_params_t *params, xep_memory_t rows);
xep_status_t xep_mode_check_dispatch(const xep_plugin_t *plugin, const xep_mode_info_t *can,
                                     const xep_dispatch_args_t *args);
xep_status_t xep_mode_check_combine(const xep_plugin_t *plugin, const xep_mode_info_t *can,
                                    const xep_combine_args_t *args);

#endif
