/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Payloads in device memory: they travel as words behind the scales of their row, so that kernels and copies see scales
 * alone, and are shown where they have arrived. Memory for what is sent so is the slot's.
 */
#ifndef XEP_REQUEST_BESIDE_H
#define XEP_REQUEST_BESIDE_H

#include "buffer.h"

/** How many words scales and payloads of args need beside a row, which is checked but for that. */
uint32_t xep_beside_words(const xep_dispatch_args_t *args);

/** Memory for payloads of all slots, of the device that the buffer has, which frees it; and buffer->take_dispatch. */
xep_status_t xep_beside_open(xep_buffer_t *buffer);

/** What take_dispatch does to a dispatch: copies are enqueued, and scales made of its payloads. */
xep_status_t xep_beside_take(xep_request_t *req);

/** Fills in what the user sees of a handle whose payloads have travelled so; else a no-op. */
void xep_beside_show(xep_handle_t *handle);

/** What the user sees of a handle. */
const xep_recv_t *xep_beside_recv(const xep_handle_t *handle);

#endif
