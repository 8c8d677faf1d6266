/* SPDX-License-Identifier: BSD-3-Clause */

/** Operations: begun, taken further, ended. All but test, wait and free are called inside xep_buffer_enter(). */
#ifndef XEP_CORE_REQUEST_H
#define XEP_CORE_REQUEST_H

#include "buffer.h"

/**
 * Begins a dispatch or combine. args are checked, defaults filled in. On success *req_p is
 * the caller's and the buffer's epoch (and turn) is used; on error nothing has changed.
 */
xep_status_t xep_request_dispatch(xep_buffer_t *buffer, const xep_dispatch_args_t *args, xep_request_t **req_p);
xep_status_t xep_request_combine(xep_handle_t *handle, const xep_combine_args_t *args, xep_request_t **req_p);

/** Takes every request of the buffer as far as it goes. */
void xep_request_advance_all(xep_buffer_t *buffer);

/** Blocks until the request is done; its status, and its reason as this thread's. */
xep_status_t xep_request_finish(xep_request_t *req);

/** Drops the user's reference. */
void xep_request_drop(xep_request_t *req);

/** Ends all that is in flight with status and reason; marks the buffer broken unless status is XEP_ERR_ABORTED. */
void xep_request_end_all(xep_buffer_t *buffer, xep_status_t status, const char *reason);

/** XEP_OK, or why the buffer takes no operation: aborted group, broken buffer. */
xep_status_t xep_request_admit(const xep_buffer_t *buffer);

#endif
