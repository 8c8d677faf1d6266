/* SPDX-License-Identifier: BSD-3-Clause */

/** What operations in flight must do in every mode: requests, slots, order of ends, dependencies, cached routing. */
#ifndef TEST_MODE_OPS_H
#define TEST_MODE_OPS_H

#include "mp_job.h"

/** The case that these tests are made of. */
mp_case_t mode_ops_case(const char *mode);

void mode_ops_run(xep_group_t *group, const char *mode);

/** Combines of one dispatch by every quant: rows of mapped ranks stay as they are, those of others are encoded. */
void mode_ops_fewer_bits(xep_group_t *group, const mp_case_t *c, uint32_t flags);

/** Two buffers, each used by a thread of its own, at the same time; then by one thread in turn. */
void mode_ops_two_threads(xep_group_t *group, const mp_case_t *mine, const mp_case_t *of_thread);

#endif
