/* SPDX-License-Identifier: BSD-3-Clause */

/** Every call of the driver that a buffer is made with, or that moves its rows, fails once. */
#ifndef TEST_CUDA_FAULTS_H
#define TEST_CUDA_FAULTS_H

#include <xep/xep.h>

/**
 * Of a create, on rank 0, which says why; the others are told of it, and nothing is left. Of operations, on all ranks;
 * a reset mends it. Nothing where there is no stand-in.
 */
void cuda_faults(xep_group_t *group, const char *mode, void *stream);

#endif
