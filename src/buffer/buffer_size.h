/* SPDX-License-Identifier: BSD-3-Clause */

/** How much memory a buffer takes, and what of its params decides that. */
#ifndef XEP_BUFFER_SIZE_H
#define XEP_BUFFER_SIZE_H

#include "buffer.h"

/** xep_buffer_size(). */
xep_status_t xep_buffer_measure(const xep_config_t *config, const xep_buffer_params_t *params, uint32_t nranks,
                                xep_buffer_size_t *size);

/** For a known shape: also where the mode's regions lie in the heap, and the areas behind them. */
xep_status_t xep_buffer_measure_shape(const xep_config_t *config, const xep_plugin_t *plugin, const xep_shape_t *shape,
                                      const xep_buffer_params_t *params, xep_region_t regions[XEP_REGIONS],
                                      xep_areas_t *areas, xep_buffer_size_t *size);

/** Whether a buffer of these params, of so many bytes, would take less with pieces, which the params do not ask for. */
int xep_buffer_may_be_smaller(const xep_buffer_t *buffer, const xep_buffer_params_t *params, uint64_t bytes);

/** The memory of the rows as the mode sees it: the host's, where those in another memory are staged (staging.h). */
static inline xep_memory_t xep_buffer_memory_of_mode(const xep_buffer_params_t *params, uint32_t nodes)
{
    return nodes != 1 ? XEP_MEMORY_HOST : params->memory;
}

#endif
