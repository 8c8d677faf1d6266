/* SPDX-License-Identifier: BSD-3-Clause */

/** Waiting for a stream of the caller's. */
#ifndef XEP_STAGING_WAIT_H
#define XEP_STAGING_WAIT_H

#include "account.h"
#include "buffer.h"

/** Notes what was enqueued on the stream last, for xep_staging_wait(). */
xep_status_t xep_staging_note(xep_buffer_t *buffer, void *stream);

/** Waits until the stream has come to what was noted; breaks the buffer if it does not. Makes progress. */
xep_status_t xep_staging_wait(xep_buffer_t *buffer, xep_waits_kind_t kind, int32_t timeout_ms);

/**
 * Of a request that has begun while its rows were coming, in a mode that sends within the call: waits until they are
 * there, and the operation goes on with each part. If they do not come, the request ends with that.
 */
void xep_staging_stay(xep_request_t *req);

#endif
