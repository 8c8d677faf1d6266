/* SPDX-License-Identifier: BSD-3-Clause */

/** The control heap, by which the ranks of a connected group communicate without the bootstrap. */
#ifndef XEP_GROUP_CONTROL_H
#define XEP_GROUP_CONTROL_H

#include "group.h"

/** Makes the control heap of this rank; the peers' keys are the caller's to exchange. Local. */
xep_status_t xep_group_open_control(xep_group_t *group);

/** xep_group_barrier(). */
xep_status_t xep_group_run_barrier(xep_group_t *group);

/** A barrier; several if some rank writes a trace, so that the clocks can be aligned by the quickest of them. */
xep_status_t xep_group_sync_clocks(xep_group_t *group);

/** Allgather of a group that is connected. */
xep_status_t xep_group_gather(xep_group_t *group, const void *send, void *recv, size_t bytes);

/**
 * Of an allgather within another call that has ended with XEP_ERR_MISMATCH: whether all ranks are in that call, and
 * rank has just begun it, perhaps once more, as it had given it up.
 */
int xep_group_has_begun_anew(const xep_group_t *group, uint32_t rank);

/**
 * Ends an allgather that this rank has given up, if there is one, and waits for the ranks that it waited for. Then all
 * that they did before it has been done.
 */
xep_status_t xep_group_leave_gather(xep_group_t *group);

#endif
