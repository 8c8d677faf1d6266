/* SPDX-License-Identifier: BSD-3-Clause */

/** What a heap is that nothing was stored in yet, and where others' are. */
#ifndef TEST_WIRE_HEAP_H
#define TEST_WIRE_HEAP_H

#include "wire_calls.h"

/** The address of a rank's heap, if it has one here: always the same, and as XEP_MAP and describe() say. */
void wire_check_map(const wire_end_t *end, uint32_t rank);

/** All bytes are 0. Then a barrier: others may store. */
void wire_check_zeroed(const wire_end_t *end);

#endif
