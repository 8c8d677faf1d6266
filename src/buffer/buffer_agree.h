/* SPDX-License-Identifier: BSD-3-Clause */

/** The agreement of all ranks on a buffer that is being created: they want the same, and each can go on. */
#ifndef XEP_BUFFER_AGREE_H
#define XEP_BUFFER_AGREE_H

#include "group.h"
#include "room_together.h"

/** Of xep_buffer_params_t: what all ranks must agree on, and what a rank without a buffer takes from others. */
/* clang-format off */
#define XEP_BUFFER_TERMS(X) \
    X(experts) X(topk) X(hidden) X(scales) X(tokens) X(recv_rows) X(dtype) X(combine_dtype) X(slots) X(memory) \
    X(on_failure) X(flags) X(path) X(pass_rows) X(node_sums) X(balance)
/* clang-format on */

/** What a rank says of the buffer it wants to create. */
typedef struct xep_proposal {
    const xep_buffer_params_t *params; /* looked at only where status is XEP_OK */
    int by_nodes;                      /* the path it has chosen */
    uint64_t bytes;                    /* of its heap */
    const xep_room_view_t *room;       /* what there is for all heaps, before they are opened; NULL: checked before */
    int may_be_smaller;                /* recv_rows was not given, and fewer rows would take less memory */
    xep_status_t status;               /* the rank's own status; its reason is the thread's last */
} xep_proposal_t;

/**
 * Every rank learns whether all ranks may go on and, with room, whether all heaps of a host fit. XEP_ERR_MISMATCH names
 * the parameter, the ranks and both values; a rank with an error of its own keeps it. *is_short_p, always written and
 * the same on all ranks: they lack only memory, and all may do with less. Collective.
 */
xep_status_t xep_buffer_agree(xep_group_t *group, const xep_proposal_t *proposal, int *is_short_p);

#endif
