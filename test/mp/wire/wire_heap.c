/* SPDX-License-Identifier: BSD-3-Clause */

#include "wire_heap.h"

#include <string.h>

#include "config.h"

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
