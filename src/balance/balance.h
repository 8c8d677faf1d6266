/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Dispatches with XEP_DISPATCH_BALANCE: before one begins, the ranks exchange how many selections they have of each
 * expert, all compute the same plan, and topk_idx gets the numbers of instances that the plan says. The mode knows
 * nothing of it.
 *
 * In every heap, behind the lines: a word for each rank, and two areas with a share of each; shares of round n are in
 * area n % 2. As with the group's allgather (group_control.c), a rank writes its share of round n + 2 once round n + 1
 * is complete there, which has this rank's share of that round, sent when that of round n was read. A dispatch whose
 * plan is the caller's has a second round, in which ranks compare their plans. Words have the number of quiesces of the
 * buffer in their upper half: all ranks have the same after a reset, and count rounds anew.
 *
 * A round goes on without ranks that are out, which have no selections. One that dies in a round may be out for some
 * ranks only: then their plans differ, which evens loads out a little less in this dispatch and is all that it does, as
 * each rank's rows go where its own plan says. So ranks compare plans of the caller's if they are without the same.
 */
#ifndef XEP_BALANCE_H
#define XEP_BALANCE_H

#include "buffer.h"
#include "owners.h"
#include "plan.h"

/** What a rank says in a round; written by it, read by the others. */
typedef struct xep_share {
    int32_t status;   /* of this rank: without a plan it goes no further; words[0] has the expert, or E */
    uint32_t refused; /* as in xep_op_t */
    uint32_t without; /* digest of the ranks that the plan is without */
    uint32_t words[]; /* [E] selections of each expert; or a digest of the plan for each */
} xep_share_t;

struct xep_balancer {
    xep_planner_t planner;
    uint64_t share_bytes; /* a multiple of a cache line */
    uint32_t round;
    const uint32_t **counts; /* [R] those of the last first round: in the shares, or copies */
    uint32_t *nothing;       /* [E] zeros: of a rank that is out */
    uint32_t *all_counts;    /* [R][E] the same for a plan of the caller's */
    xep_loads_t loads;
};

/** Bytes in the heap behind the lines; 0 without balance. */
uint64_t xep_balance_bytes(const xep_buffer_params_t *params, uint32_t nranks);

/** For a buffer that has its shape and its instances. close(NULL) is a no-op. */
xep_status_t xep_balance_open(xep_buffer_t *buffer, const xep_buffer_params_t *params);
void xep_balance_close(xep_balancer_t *balancer);

/* ---- balance_round.c ---- */

/** This rank's share of the next round, to be filled. */
xep_share_t *xep_balance_share(xep_buffer_t *buffer);

/** The share of a rank in the round that was exchanged last. */
const xep_share_t *xep_balance_share_of(const xep_buffer_t *buffer, uint32_t rank);

/** Exchanges it. Errors: XEP_ERR_MISMATCH on all ranks; those of a wait, after which the buffer is broken. */
xep_status_t xep_balance_exchange(xep_request_t *req);

#endif
