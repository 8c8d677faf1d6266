/* SPDX-License-Identifier: BSD-3-Clause */

/** Whether rows go once to each node or once to each rank (xep_path_t), and what room there is for rows in passing. */
#ifndef XEP_BUFFER_PATH_H
#define XEP_BUFFER_PATH_H

#include <xep/plugin.h>

#include "config.h"
#include "cost_model.h"

/**
 * Sets by_nodes, upstream ranks and feed_rows of a shape whose nodes are known, and logs which path and why. The same
 * on all ranks, if they have the same params and configuration. XEP_ERR_INVALID: pass_rows are too few.
 * XEP_ERR_NO_MEMORY.
 */
xep_status_t xep_path_choose(const xep_config_t *config, const xep_buffer_params_t *params, const xep_plugin_t *plugin,
                             xep_shape_t *shape);

/** For xep_buffer_size(): the most room that this shape may need for rows in passing, on any nodes. */
void xep_path_imagine(const xep_buffer_params_t *params, const xep_plugin_t *plugin, xep_shape_t *shape);

#endif
