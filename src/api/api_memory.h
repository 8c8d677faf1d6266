/* SPDX-License-Identifier: BSD-3-Clause */

/** Checks that arrays which the host reads and writes are its memory. */
#ifndef XEP_API_MEMORY_H
#define XEP_API_MEMORY_H

#include "buffer.h"

/** XEP_ERR_INVALID: one is a device's. Of a buffer in device memory the mode says what it can use. */
xep_status_t xep_check_dispatch_memory(const xep_buffer_t *buffer, const xep_dispatch_args_t *args);
xep_status_t xep_check_combine_memory(const xep_handle_t *handle, const xep_combine_args_t *args);
xep_status_t xep_check_gather_memory(const xep_handle_t *handle, const void *out);

/** The same of a layout without a buffer. */
xep_status_t xep_check_layout_memory(const xep_layout_args_t *args, const xep_layout_t *out);

#endif
