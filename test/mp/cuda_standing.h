/* SPDX-License-Identifier: BSD-3-Clause */

/** Calls while the stream stands: in mode ll, and in mode normal with the counts there, none waits for it. */
#ifndef TEST_CUDA_STANDING_H
#define TEST_CUDA_STANDING_H

#include <xep/xep.h>

void cuda_standing(xep_group_t *group, const char *mode, void *stream);

#endif
