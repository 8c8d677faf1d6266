/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Captured operations whose rows are staged. A graph has four nodes of each: ask, copies, ask, copies. The rest is done
 * by the group's thread of progress, which makes no call of CUDA from a launch to its end: so nothing of it can stand
 * behind the graph in a queue of the device. One stream, or events, order all launches of a buffer: one ask at a time.
 *
 *  word      where   written by  what                                          ordered behind
 *  number    device  ask         how many asks there have been                 (an atomic add)
 *  record    pinned  ask         which operation asks                          number
 *  asked     pinned  ask         number. The first of an operation: what it    record, and all that copies has stored
 *                                is given is there; the second: in host memory
 *  copies    pinned  host        what is to be copied: first to the host,      asked: the last list has been read
 *                                then what came
 *  answered  pinned  host        asked, when the list is there                 copies, count, and rows that came
 *  go        device  ask         1: answered; 0: stopped, and the next copies  answered
 *                                node copies nothing
 *
 * The host answers every ask: the second one when its operation has ended, which has a deadline; after an error, with
 * no copies. It gives the operation the next epoch of the buffer when it has read that number. Where the buffer is
 * destroyed or reset it sets the device's stop word instead, and asks return without an answer.
 */
#ifndef XEP_CAPTURED_H
#define XEP_CAPTURED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Rows, from_stride and to_stride apart. */
typedef struct xep_captured_copy {
    char *to;
    const char *from;
    uint64_t to_stride, from_stride, bytes, rows;
} xep_captured_copy_t;

/** Pinned. Each side's words are in a line of their own. */
typedef struct xep_captured_board {
    uint32_t asked, record;
    uint32_t pad[30];
    uint32_t answered, count; /* of copies */
    uint32_t more[30];
} xep_captured_board_t;

/** In memory of the device, all 0 at first. */
typedef struct xep_captured_words {
    uint32_t number, go;
} xep_captured_words_t;

/** Kernels "xep_cuda_ask", one warp, and "xep_cuda_copies", of any number of warps. */
typedef struct xep_captured {
    xep_captured_board_t *board;
    const xep_captured_copy_t *copies; /* pinned, too */
    xep_captured_words_t *words;
    const uint32_t *stop; /* pinned */
    uint32_t record;
    uint32_t reserved;
} xep_captured_t;

#ifdef __cplusplus
}
#endif

#endif
