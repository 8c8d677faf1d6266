/* SPDX-License-Identifier: BSD-3-Clause */

#include "wire_calls.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "config.h"

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
        if (spins % 8 == 0) sched_yield();
    }
}

/* ---- a new heap ---- */

void wire_check_map(const wire_end_t *end, uint32_t rank)
{
    const xep_transport_ops_t *ops = end->self->transport->ops;
    void *base = end->wire->ops->map(end->wire, rank);
    xep_config_t config;
    REQUIRE(xep_config_read(&config) == XEP_OK, "configuration");
    REQUIRE(end->wire->ops->map(end->wire, end->self->rank) == end->heap->base, "own region");
    REQUIRE(end->wire->ops->map(end->wire, rank) == base, "the answer changed");
    REQUIRE(config.map != XEP_MAP_NEVER || base == NULL, "mapped, though never was asked for");
    REQUIRE((strcmp(ops->describe(end->self->transport, rank), "mapped") == 0) == (base != NULL), "%s, map() %p",
            ops->describe(end->self->transport, rank), base);
    REQUIRE(strcmp(ops->describe(end->self->transport, end->self->rank), "self") == 0, "own rank");
}

void wire_check_zeroed(const wire_end_t *end)
{
    const uint8_t *here = end->heap->base;
    REQUIRE((uintptr_t)here % 4096 == 0, "at %p", (const void *)here);
    for (size_t i = 0; i < end->heap->bytes; i++) REQUIRE(here[i] == 0, "byte %zu of a new heap is not 0", i);
    forked_barrier(end->self);
}
