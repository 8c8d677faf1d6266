/* SPDX-License-Identifier: BSD-3-Clause */

/** Errors of ll in device memory that show while kernels run. */
#ifndef TEST_CUDA_LL_LATER_H
#define TEST_CUDA_LL_LATER_H

#include <xep/xep.h>

/** Dispatches that all refuse, a rank that does not come, ranks that combine different things. */
void cuda_ll_told_later(xep_group_t *group, void *stream);

#endif
