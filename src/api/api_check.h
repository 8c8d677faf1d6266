/* SPDX-License-Identifier: BSD-3-Clause */

/** Checks of what users pass: shapes, types, strides; defaults filled in. */
#ifndef XEP_API_CHECK_H
#define XEP_API_CHECK_H

#include "buffer.h"

xep_status_t xep_check_layout(xep_layout_args_t *args);
xep_status_t xep_check_buffer(const xep_config_t *config, uint32_t nranks, xep_buffer_params_t *params);
xep_status_t xep_check_dispatch(const xep_buffer_t *buffer, xep_dispatch_args_t *args);
xep_status_t xep_check_combine(xep_handle_t *handle, xep_combine_args_t *args);

/** A part of the last one: what goes back, and the bytes of a row of it. */
xep_status_t xep_check_outputs(const xep_handle_t *handle, xep_combine_args_t *args, uint64_t *row_p);

#endif
