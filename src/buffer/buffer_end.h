/* SPDX-License-Identifier: BSD-3-Clause */

/** The end of a buffer, and its new beginning after an error. */
#ifndef XEP_BUFFER_END_H
#define XEP_BUFFER_END_H

#include "buffer.h"

/** xep_buffer_destroy(). */
void xep_buffer_close(xep_buffer_t *buffer);

/** xep_buffer_reset(), inside xep_buffer_enter(). */
xep_status_t xep_buffer_restart(xep_buffer_t *buffer);

#endif
