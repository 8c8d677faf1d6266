/* SPDX-License-Identifier: BSD-3-Clause */

/** Rows in device memory of ranks that do not all map one another: what is the host's part of it. */
#ifndef TEST_CUDA_STAGED_H
#define TEST_CUDA_STAGED_H

#include <xep/xep.h>

/** Nothing where all ranks map one another. */
void cuda_staged(xep_group_t *group, const char *mode, void *streams[2]);

#endif
