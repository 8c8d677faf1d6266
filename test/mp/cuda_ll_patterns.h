/* SPDX-License-Identifier: BSD-3-Clause */

/** Casts and sums of ll in device memory, compared with those of ll in host memory. */
#ifndef TEST_CUDA_LL_PATTERNS_H
#define TEST_CUDA_LL_PATTERNS_H

#include <xep/xep.h>

void cuda_ll_patterns(xep_group_t *group, void *stream);

#endif
