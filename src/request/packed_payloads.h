/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Payloads in device memory: those of a row are packed behind its scales, so that kernels and copies move scales alone,
 * and are shown there on arrival. Each slot has memory for what is sent.
 */
#ifndef XEP_REQUEST_PACKED_PAYLOADS_H
#define XEP_REQUEST_PACKED_PAYLOADS_H

#include "buffer.h"

/** How many words a row's scales and payloads take; args are checked but for that. */
uint32_t xep_packed_words(const xep_dispatch_args_t *args);

/** Allocates the memory of all slots, which the buffer's device frees; sets buffer->take_dispatch. */
xep_status_t xep_packed_open(xep_buffer_t *buffer);

/** Packs the payloads of a dispatch, if it has any: enqueues the copies, and makes args those of scales alone. */
xep_status_t xep_packed_take(xep_request_t *req);

/** Fills in what the user sees of a handle with packed payloads; of others a no-op. */
void xep_packed_show(xep_handle_t *handle);

/** What the user sees of a handle. */
const xep_recv_t *xep_packed_recv(const xep_handle_t *handle);

#endif
