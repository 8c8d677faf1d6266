/* SPDX-License-Identifier: BSD-3-Clause */

/** Operations that come after those of another buffer on the device. */
#ifndef TEST_CUDA_AFTER_H
#define TEST_CUDA_AFTER_H

#include <xep/xep.h>

/** Sums of one buffer are the rows of another one, on streams that know nothing of each other; and what is refused. */
void cuda_after(xep_group_t *group, void *streams[2]);

#endif
