/* SPDX-License-Identifier: BSD-3-Clause */

/** xep_layout() in device memory where the host counts. */
#ifndef XEP_STAGING_LAYOUT_H
#define XEP_STAGING_LAYOUT_H

#include "buffer.h"

/** args are checked. Waits for the stream. */
xep_status_t xep_staging_layout(xep_buffer_t *buffer, const xep_layout_args_t *args, const xep_layout_t *out);

#endif
