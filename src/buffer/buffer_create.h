/* SPDX-License-Identifier: BSD-3-Clause */

/** How a buffer comes to be: all ranks agree on it, map its memory and open its mode. Arguments are checked. */
#ifndef XEP_BUFFER_CREATE_H
#define XEP_BUFFER_CREATE_H

#include "buffer.h"

/**
 * xep_buffer_create(). status: what this rank has come to so far; params is looked at only when XEP_OK. device is the
 * buffer's from then on, also after an error; NULL: host memory.
 */
xep_status_t xep_buffer_open(xep_group_t *group, const xep_buffer_params_t *params, xep_heap_device_t *device,
                             xep_status_t status, xep_buffer_t **buffer_p);

/** Frees everything a buffer has, as far as it was made. Sends nothing to peers. */
void xep_buffer_free(xep_buffer_t *buffer);

#endif
