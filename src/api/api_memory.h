/* SPDX-License-Identifier: BSD-3-Clause */

/** Checks that arrays which the host reads and writes are its memory, and outputs no memory of a buffer. */
#ifndef XEP_API_MEMORY_H
#define XEP_API_MEMORY_H

#include "buffer.h"

/** XEP_ERR_INVALID: one is a device's. Of a buffer in device memory the mode says what it can use. */
xep_status_t xep_check_dispatch_memory(const xep_buffer_t *buffer, const xep_dispatch_args_t *args);
xep_status_t xep_check_combine_memory(const xep_handle_t *handle, const xep_combine_args_t *args);
xep_status_t xep_check_gather_memory(const xep_handle_t *handle, const void *out);

xep_status_t xep_check_layout_memory(const xep_layout_args_t *args, const xep_layout_t *out);

/** XEP_ERR_INVALID: an output, called name in the sentence, is memory of a buffer of this process. */
xep_status_t xep_check_output(const char *name, const void *address);
xep_status_t xep_check_waits_memory(const xep_waits_t *out);

#endif
