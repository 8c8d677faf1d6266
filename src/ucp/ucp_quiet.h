/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What UCX prints of failures that xep expects and has an answer to is not printed: between these two, for this thread.
 * Only a few calls at a time: other threads that want the same wait.
 */
#ifndef XEP_UCP_QUIET_H
#define XEP_UCP_QUIET_H

void xep_ucp_quiet_begin(void);
void xep_ucp_quiet_end(void);

#endif
