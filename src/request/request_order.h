/* SPDX-License-Identifier: BSD-3-Clause */

/** The order of operations of several buffers on a device. */
#ifndef XEP_REQUEST_ORDER_H
#define XEP_REQUEST_ORDER_H

#include "request.h"

/**
 * What is enqueued on stream, of the device of req's buffer, from now on comes behind req's operation and all of its
 * buffer that were enqueued before; what is left of them is enqueued, which with staging waits for its end. Enters that
 * buffer: the caller is in none.
 */
xep_status_t xep_request_order_stream(xep_request_t *req, void *stream);

#endif
