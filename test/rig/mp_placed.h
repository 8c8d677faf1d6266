/* SPDX-License-Identifier: BSD-3-Clause */

/** Dispatches whose rows are read in place, in any mode: are rows where they should be, and what they should be? */
#ifndef TEST_MP_PLACED_H
#define TEST_MP_PLACED_H

#include "mp_job.h"

/** Rows of mapped sources are in their memory, all others in this rank's. */
void mp_placed_check(xep_group_t *group, const mp_job_t *job, const xep_recv_t *recv);

/** xep_handle_gather() of them, or of copied ones. */
void mp_placed_check_gather(const mp_job_t *job, const xep_handle_t *handle);

/** One dispatch of that payload, its rows in place as the case says, checked; group NULL: not where they are. */
xep_handle_t *mp_placed_dispatch(xep_group_t *group, mp_job_t *job, uint64_t payload);

/** Sums them, checked. */
void mp_placed_combine(mp_job_t *job, xep_handle_t *handle);

/** All of it some times, with cached dispatches, with handles that overlap, and with rows that are copied. */
void mp_placed_shape(xep_group_t *group, const mp_case_t *c);

#endif
