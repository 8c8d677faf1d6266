/* SPDX-License-Identifier: BSD-3-Clause */

/** What an operation in device memory has brought, on its way to the device. */
#ifndef XEP_STAGING_SHOW_H
#define XEP_STAGING_SHOW_H

#include "buffer.h"

/** Of an operation that the mode has ended so: the same, or an error of the device. */
xep_status_t xep_staging_show(xep_request_t *req, xep_status_t status);

/** Makes what is known of the rows that come, with the places that they will have on the device. */
void xep_staging_show_counts(const xep_request_t *req);

/** xep_env_t.rows_came. */
void xep_staging_rows_came(const xep_env_t *env, const xep_op_t *op, uint32_t rank);

/** xep_handle_recv() and xep_handle_combine_input(). */
const xep_recv_t *xep_staging_recv(const xep_handle_t *handle);
void *xep_staging_input(const xep_handle_t *handle, size_t *stride_p);

#endif
