/* SPDX-License-Identifier: BSD-3-Clause */

/** Waiting for requests. Called between xep_buffer_enter() and leave. */
#ifndef XEP_CORE_REQUEST_WAIT_H
#define XEP_CORE_REQUEST_WAIT_H

#include "request.h"

/** Blocks until the request is done; its status, and its reason as this thread's. */
xep_status_t xep_request_finish(xep_request_t *req);

/**
 * An operation whose request was freed is nobody's to wait for, so the next call on its handle does. XEP_ERR_INVALID:
 * the handle has one whose request the user still has; else as xep_buffer_usable().
 */
xep_status_t xep_request_settle(xep_handle_t *handle);

/** Blocks until a dispatch's rows are counted. XEP_OK, or how it ended. Of a combine: as finish. */
xep_status_t xep_request_finish_counts(xep_request_t *req);

/** XEP_INPROGRESS, or as finish. Does not block, but has a wait's rules for deadline and deaths. */
xep_status_t xep_request_poll(xep_request_t *req);

/** xep_buffer_send_memory(), likewise. */
xep_status_t xep_request_wait_memory(xep_buffer_t *buffer, void **base_p, size_t *stride_p);

/** xep_handle_combine_input(), arguments checked: blocks until peers have read what an earlier combine left there. */
xep_status_t xep_request_wait_input(xep_handle_t *handle, void **base_p, size_t *stride_p);

#endif
