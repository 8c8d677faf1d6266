/* SPDX-License-Identifier: BSD-3-Clause */

/** Rows in device memory on their way to the host while their operation goes on. */
#ifndef XEP_STAGING_LOOK_H
#define XEP_STAGING_LOOK_H

#include "buffer.h"

/** Before a request's mode takes it further: which of the rows that were on their way are there now. */
xep_status_t xep_staging_look(xep_request_t *req);

#endif
