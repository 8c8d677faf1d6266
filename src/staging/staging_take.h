/* SPDX-License-Identifier: BSD-3-Clause */

/** What an operation in device memory is given, on its way to the host. */
#ifndef XEP_STAGING_TAKE_H
#define XEP_STAGING_TAKE_H

#include "buffer.h"

/**
 * The arguments of req, which are checked, become those of the mode. An error: the operation cannot begin, and where it
 * was waited for the stream in vain the buffer is broken.
 */
xep_status_t xep_staging_take(xep_request_t *req);

#endif
