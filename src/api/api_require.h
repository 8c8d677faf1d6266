/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What every call asks of the object it is given: XEP_OK, or XEP_ERR_INVALID, as it is NULL or was made by the process
 * that this one was forked from.
 */
#ifndef XEP_API_REQUIRE_H
#define XEP_API_REQUIRE_H

#include <xep/xep.h>

xep_status_t xep_require_group(const xep_group_t *group);
xep_status_t xep_require_buffer(const xep_buffer_t *buffer);
xep_status_t xep_require_handle(const xep_handle_t *handle);
xep_status_t xep_require_request(const xep_request_t *req);

/** The handle is not released and has nothing in flight; waits for an operation whose request was freed. */
xep_status_t xep_require_idle(xep_handle_t *handle);

#endif
