/* SPDX-License-Identifier: BSD-3-Clause */

/** Operations that are captured into CUDA graphs and replayed. */
#ifndef TEST_CUDA_GRAPHS_H
#define TEST_CUDA_GRAPHS_H

#include <xep/xep.h>

/**
 * Replays with other rows and other routings, of several operations, beside operations that are called, by ranks that
 * have lost step, with what is wrong in them, and after a reset. mode: "normal" or "ll".
 */
void cuda_graphs(xep_group_t *group, const char *mode, void *stream);

/** Mode normal: what the host waits for cannot be captured; a combine of it can. */
void cuda_graphs_exact(xep_group_t *group, void *stream);

#endif
