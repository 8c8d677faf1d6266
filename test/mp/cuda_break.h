/* SPDX-License-Identifier: BSD-3-Clause */

/** What breaks a buffer of normal in device memory. */
#ifndef TEST_CUDA_BREAK_H
#define TEST_CUDA_BREAK_H

#include <xep/xep.h>

/** A rank that does not come, and ranks that combine different things: the buffer is broken until a reset. */
void cuda_break(xep_group_t *group, void *stream);

/** Without a deadline a kernel waits as long as it takes; giving up on the group ends that, and nothing hangs. */
void cuda_give_up(xep_group_t *group, void *stream);

#endif
