/* SPDX-License-Identifier: BSD-3-Clause */

/** What an even load of a shape costs on both paths. */
#ifndef XEP_BUFFER_PATH_COST_H
#define XEP_BUFFER_PATH_COST_H

#include <xep/plugin.h>

#include "cost_model.h"

typedef struct xep_path_cost {
    double seconds; /* of a dispatch and its combine */
    double copies;  /* of a dispatched row that leave its node, on an average over all ranks */
} xep_path_cost_t;

/** cost: of each path, as the mode tells its traffic. The same on all ranks, if their rates are. XEP_ERR_NO_MEMORY. */
xep_status_t xep_path_find_costs(const xep_shape_t *shape, const xep_plugin_t *plugin, const xep_cost_rates_t *rates,
                                 xep_path_cost_t cost[XEP_COST_PATHS]);

#endif
