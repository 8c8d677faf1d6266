/* SPDX-License-Identifier: BSD-3-Clause */

/** Messages from rank to rank that belong to no heap. */
#ifndef XEP_UCP_MAIL_H
#define XEP_UCP_MAIL_H

#include "ucp_objects.h"

/** Of the transport's table; they take the lock themselves. */
xep_status_t xep_ucp_mail(xep_transport_t *base, uint32_t rank, const void *data, size_t bytes);
int xep_ucp_mail_has_left(xep_transport_t *base);

#endif
