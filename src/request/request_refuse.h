/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Calls that a rank refuses: nothing of them is sent, and no epoch is used, so that what all ranks refuse alike costs
 * nothing. Where one rank alone refuses a call and goes on to its next one, that would pair with the call that the
 * others are in. So ranks say with every operation how many calls they have refused: with its epoch, that is the number
 * of the call.
 *
 * Where the counts differ, the operation is none: it ends with XEP_ERR_MISMATCH on all ranks. Those that have refused
 * fewer calls then refuse as many of their next ones as they are behind, and after that all are in the same call again.
 */
#ifndef XEP_REQUEST_REFUSE_H
#define XEP_REQUEST_REFUSE_H

#include "request.h"

/** XEP_ERR_MISMATCH: this call is one of those by which this rank is behind. */
xep_status_t xep_request_keep_pace(const xep_buffer_t *buffer);

/** Counts a call that has come to status before anything was sent, if that refuses it for good; returns status. */
xep_status_t xep_request_count_refused(xep_buffer_t *buffer, xep_status_t status);

/** Of an operation that ends with XEP_ERR_MISMATCH and a reason: notes whether this rank is behind. */
void xep_request_note_pace(const xep_request_t *req);

/** All ranks begin anew. */
void xep_request_forget_refused(xep_buffer_t *buffer);

#endif
