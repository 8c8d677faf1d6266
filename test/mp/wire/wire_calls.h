/* SPDX-License-Identifier: BSD-3-Clause */

/** The calls of a wire as tests make them: again until they are taken, with progress between, and no failure. */
#ifndef TEST_WIRE_CALLS_H
#define TEST_WIRE_CALLS_H

#include <stddef.h>
#include <stdint.h>

#include "forked.h"

/** A heap of a forked rank and its wire. */
typedef struct wire_end {
    forked_rank_t *self;
    xep_heap_wire_t *heap;
    xep_wire_t *wire;
} wire_end_t;

void wire_progress(const wire_end_t *end);
void wire_put(const wire_end_t *end, uint32_t rank, uint64_t offset, const void *src, size_t bytes);
void wire_put_signal(const wire_end_t *end, uint32_t rank, uint64_t offset, const void *src, size_t bytes,
                     uint64_t word, uint64_t value);

/** The signal alone. */
void wire_signal(const wire_end_t *end, uint32_t rank, uint64_t word, uint64_t value);
void wire_signal_later(const wire_end_t *end, uint32_t rank, uint64_t word, uint64_t value);
void wire_get(const wire_end_t *end, uint32_t rank, uint64_t offset, void *dst, size_t bytes);
void wire_flush(const wire_end_t *end);
void wire_flush_to(const wire_end_t *end, uint64_t mark);

/** A signal word of this rank's heap; until it has a value, never passing that. */
uint64_t wire_load(const wire_end_t *end, uint64_t word);
void wire_await(const wire_end_t *end, uint64_t word, uint64_t value);

/* ---- what a heap is that nothing was stored in yet, and where others' are ---- */

/** The address of a rank's heap, if it has one here: always the same, and as XEP_MAP and describe() say. */
void wire_check_map(const wire_end_t *end, uint32_t rank);

/** All bytes are 0. Then a barrier: others may store. */
void wire_check_zeroed(const wire_end_t *end);

#endif
