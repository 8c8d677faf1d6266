/* SPDX-License-Identifier: BSD-3-Clause */

/** Shared memory of processes that were killed while UCX made it. */
#ifndef XEP_UCP_LEFTOVERS_H
#define XEP_UCP_LEFTOVERS_H

/**
 * Removes the files that UCX has made in folder, as this user, and that no process has open or mapped any more. Before
 * this process looks how much room there is.
 */
void xep_ucp_leftovers_remove(const char *folder);

#endif
