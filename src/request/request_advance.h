/* SPDX-License-Identifier: BSD-3-Clause */

/** Takes the requests of a buffer as far as they go. */
#ifndef XEP_REQUEST_ADVANCE_H
#define XEP_REQUEST_ADVANCE_H

#include "group.h"
#include "request.h"

/** Calls the mode for an operation that begins; a dispatch has a turn from then on. */
xep_status_t xep_request_call_mode(xep_request_t *req);

/** All that are in flight; they end where the group was aborted. Inside xep_buffer_enter(). */
void xep_request_advance_all(xep_buffer_t *buffer);

/** The same as the task of a buffer: nothing where another thread is in the buffer. */
void xep_request_run_task(xep_group_task_t *task);

#endif
