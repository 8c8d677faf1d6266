/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Rows that are copied to the experts while others still come (XEP_DISPATCH_WILL_EXPAND). The links fill a dispatch
 * and leave the device's memory idle; the kernels of xep_handle_expand() begin beside it, as soon as its rows may move.
 *
 * who                       writes                                          for
 * a warp of the dispatch    passed[0], + 1: what belongs to its rows is     the teller, a warp of block 0
 *                           stored; passed[p], + 1: its chunks of part p
 * the teller of rank s      told by s in each heap = epoch << 32 | tokens:  the kernels of the owner of the heap
 *                           what belongs to all of its rows is there, and
 *                           the rows of its first so many tokens
 * block 0 of the dispatch   x, then begun = epoch                           the same
 *                           at its very end ended = epoch, after passed     the same; the next dispatch
 *                           is 0 again
 * block 0 of the slots      numbered = epoch: all selections have slots     the kernel that copies rows
 *
 * Blocks begin when there is room for them: one may find that rows come, and another that all are there. So they share
 * the work in the same way, and only what they wait for differs.
 *
 * Each word is a release of what its writer did or saw before, and is acquired by who reads it. A reader that does not
 * see begun > ended, or another x, has nothing to wait for but the kernel before it on its stream: that is how it is
 * where something else was enqueued between. No reader needs a deadline: a dispatch that waits in vain ends by its own
 * and says so (ended), and what a rank has not told is there, or will never be, when it has. The last part is not told:
 * "ended" comes at the same time.
 *
 * The kernel that copies rows ends after the dispatch, so what is enqueued behind it comes after both.
 */
#ifndef XEP_CUDA_COMING_H
#define XEP_CUDA_COMING_H

#include <stdint.h>

enum { XEP_CUDA_PASSED = 40 /* what belongs to rows, and parts: cuda_coming.cuh */ };

/** In device memory, of a buffer. */
typedef struct xep_cuda_coming {
    const char *x; /* where the rows of this rank come */
    uint64_t begun, ended, numbered;
    uint64_t passed[XEP_CUDA_PASSED];
} xep_cuda_coming_t;

#endif
