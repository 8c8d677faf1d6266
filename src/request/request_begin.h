/* SPDX-License-Identifier: BSD-3-Clause */

/** How operations begin. */
#ifndef XEP_REQUEST_BEGIN_H
#define XEP_REQUEST_BEGIN_H

#include "request.h"

/**
 * Begins a dispatch or combine. args are checked, defaults filled in. On success *req_p is
 * the caller's and the buffer's epoch (and turn) is used; on error nothing has changed.
 */
xep_status_t xep_request_dispatch(xep_buffer_t *buffer, const xep_dispatch_args_t *args, xep_request_t **req_p);
xep_status_t xep_request_combine(xep_handle_t *handle, const xep_combine_args_t *args, xep_request_t **req_p);

/** The next piece of a handle; outputs: of the one that it shows, or NULL. timeout_ms: as in args. */
xep_status_t xep_request_next(xep_handle_t *handle, const xep_combine_args_t *outputs, int32_t timeout_ms,
                              xep_request_t **req_p);

#endif
