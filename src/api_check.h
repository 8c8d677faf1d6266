/* SPDX-License-Identifier: BSD-3-Clause */

/** Checks of what users pass: structs by size, shapes, types, strides; defaults filled in. */
#ifndef XEP_API_CHECK_H
#define XEP_API_CHECK_H

#include "buffer.h"

/**
 * Copies a caller's struct that begins with its size into the library's own: what the caller does
 * not have is 0, what the library does not know must be 0. name is for the reason.
 */
xep_status_t xep_check_struct(const char *name, const void *user, void *own, size_t own_size);

/** Copies the library's struct out to a caller's that may be shorter or longer; its size stays. */
xep_status_t xep_fill_struct(const char *name, void *user, const void *own, size_t own_size);

xep_status_t xep_check_layout(xep_layout_args_t *args);
xep_status_t xep_check_buffer(const xep_config_t *config, uint32_t nranks, xep_buffer_params_t *params);
xep_status_t xep_check_dispatch(const xep_buffer_t *buffer, xep_dispatch_args_t *args);
xep_status_t xep_check_combine(const xep_handle_t *handle, xep_combine_args_t *args);

/** Parts of the last one: the handle; what goes back, and the bytes of a row of it. */
xep_status_t xep_check_handle(const xep_handle_t *handle);
xep_status_t xep_check_outputs(const xep_handle_t *handle, xep_combine_args_t *args, uint64_t *row_p);

#endif
