/* SPDX-License-Identifier: BSD-3-Clause */

/** How requests end: each alone, or all of a buffer with one that cannot be ended properly. */
#ifndef XEP_REQUEST_END_H
#define XEP_REQUEST_END_H

#include "account.h"
#include "request.h"

/**
 * Ends a request with what its mode said: XEP_OK, an error that every rank gets and after which nothing is half done,
 * or any other, which breaks the buffer.
 */
void xep_request_end(xep_request_t *req, xep_status_t status);

/** Ends it without the mode's consent: what the peers have of the buffer is not known any more, so all others end. */
void xep_request_break(xep_request_t *req, xep_status_t status, const char *reason);

/** "dispatch 17 of mode normal", then before and what it waits for. */
void xep_request_explain(const xep_request_t *req, const char *before, char *text, size_t bytes);

/** The same for the others, if they ask. */
void xep_request_account(const xep_request_t *req, xep_account_t *account);

/** Breaks one that was waited for in vain, with what it waits for as reason, behind why. */
void xep_request_expire(xep_request_t *req, xep_status_t status, const char *why);

/** Ends all that is in flight, breaks the buffer, and leaves word of that (buffer_give_up.h). */
void xep_request_give_up_all(xep_buffer_t *buffer, const char *reason);

/** Ends all that is in flight with status and reason; marks the buffer broken unless status is XEP_ERR_ABORTED. */
void xep_request_end_all(xep_buffer_t *buffer, xep_status_t status, const char *reason);

/** Where the mode has given no reason it passes on an error of the wire, which has just told this thread. */
void xep_request_keep_reason(xep_request_t *req);

#endif
