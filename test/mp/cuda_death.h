/* SPDX-License-Identifier: BSD-3-Clause */

/** A rank dies while others use its memory, and one of them frees its own while another still does. */
#ifndef TEST_CUDA_DEATH_H
#define TEST_CUDA_DEATH_H

#include <xep/xep.h>

/** The last of at least two ranks dies by SIGKILL; the others find it out, and their devices go on. */
int cuda_death(xep_group_t *group, const char *mode, void *stream);

#endif
