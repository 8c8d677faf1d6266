/* SPDX-License-Identifier: BSD-3-Clause */

/** Waiting for a stream of the caller's. */
#ifndef XEP_CORE_STAGING_WAIT_H
#define XEP_CORE_STAGING_WAIT_H

#include "account.h"
#include "buffer.h"

/** Waits until the stream has come to what was enqueued last; breaks the buffer if it does not. Makes progress. */
xep_status_t xep_staging_wait(xep_buffer_t *buffer, xep_waits_kind_t kind, void *stream, int32_t timeout_ms);

#endif
