/* SPDX-License-Identifier: BSD-3-Clause */

#include "wire_calls.h"

#include <sched.h>
#include <stdatomic.h>

void wire_progress(const wire_end_t *end)
{
    REQUIRE(end->wire->ops->progress(end->wire) == XEP_OK, "rank %u", end->self->rank);
    forked_check(end->self);
}

void wire_put(const wire_end_t *end, uint32_t rank, uint64_t offset, const void *src, size_t bytes)
{
    xep_status_t status;
    while ((status = end->wire->ops->put(end->wire, rank, offset, src, bytes)) == XEP_INPROGRESS) wire_progress(end);
    REQUIRE(status == XEP_OK, "put of %zu bytes to rank %u: %d", bytes, rank, status);
}

void wire_put_signal(const wire_end_t *end, uint32_t rank, uint64_t offset, const void *src, size_t bytes,
                     uint64_t word, uint64_t value)
{
    xep_status_t status;
    while ((status = end->wire->ops->put_signal(end->wire, rank, offset, src, bytes, word, value)) == XEP_INPROGRESS)
        wire_progress(end);
    REQUIRE(status == XEP_OK, "put_signal of %zu bytes to rank %u: %d", bytes, rank, status);
}

void wire_signal(const wire_end_t *end, uint32_t rank, uint64_t word, uint64_t value)
{
    wire_put_signal(end, rank, 0, NULL, 0, word, value);
}

void wire_signal_later(const wire_end_t *end, uint32_t rank, uint64_t word, uint64_t value)
{
    xep_status_t status;
    while ((status = end->wire->ops->signal_later(end->wire, rank, word, value)) == XEP_INPROGRESS) wire_progress(end);
    REQUIRE(status == XEP_OK, "signal_later to rank %u: %d", rank, status);
}

void wire_get(const wire_end_t *end, uint32_t rank, uint64_t offset, void *dst, size_t bytes)
{
    xep_status_t status;
    while ((status = end->wire->ops->get(end->wire, rank, offset, dst, bytes)) == XEP_INPROGRESS) wire_progress(end);
    REQUIRE(status == XEP_OK, "get of %zu bytes from rank %u: %d", bytes, rank, status);
}

void wire_flush(const wire_end_t *end)
{
    xep_status_t status;
    while ((status = end->wire->ops->flush(end->wire)) == XEP_INPROGRESS) wire_progress(end);
    REQUIRE(status == XEP_OK, "flush: %d", status);
}

void wire_flush_to(const wire_end_t *end, uint64_t mark)
{
    xep_status_t status;
    while ((status = end->wire->ops->flush_to(end->wire, mark)) == XEP_INPROGRESS) wire_progress(end);
    REQUIRE(status == XEP_OK, "flush_to: %d", status);
}

uint64_t wire_load(const wire_end_t *end, uint64_t word)
{
    return atomic_load_explicit((_Atomic uint64_t *)(void *)((uint8_t *)end->heap->base + word), memory_order_acquire);
}

void wire_await(const wire_end_t *end, uint64_t word, uint64_t value)
{
    uint64_t seen;
    for (unsigned spins = 1; (seen = wire_load(end, word)) != value; spins++) {
        REQUIRE(seen < value, "word %lu is %lu before %lu", (unsigned long)word, (unsigned long)seen,
                (unsigned long)value);
        wire_progress(end);
        if (spins % 64 == 0) sched_yield();
    }
}
