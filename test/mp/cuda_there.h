/* SPDX-License-Identifier: BSD-3-Clause */

/** Dispatches of normal whose counts stay on the device. */
#ifndef TEST_CUDA_THERE_H
#define TEST_CUDA_THERE_H

#include <xep/xep.h>

/** Rows and counts compared with the oracle; that no call waits for a rank; what is refused, at once and later. */
void cuda_there(xep_group_t *group, void *streams[2]);

#endif
