/* SPDX-License-Identifier: BSD-3-Clause */

#include "unit_mirror.h"

#include <stdlib.h>
#include <string.h>

#include "buffer_give_up.h"
#include "error.h"
#include "group.h"
#include "unit.h"

enum { LINE = 64, SHARE = 4096 };

typedef struct fake_heap {
    xep_heap_wire_t super; /* first: the core's pointer is ours */
    char *regions[MIRROR_RANKS];
    int control;
} fake_heap_t;

struct unit_mirror unit_mirror;
static int nheaps;

/* ---- wire and transport ---- */

static void *fake_map(xep_wire_t *wire, uint32_t rank)
{
    return ((fake_heap_t *)wire)->regions[rank];
}

static xep_status_t fake_put(xep_wire_t *wire, uint32_t rank, uint64_t offset, const void *src, size_t bytes)
{
    memmove(((fake_heap_t *)wire)->regions[rank] + offset, src, bytes);
    return XEP_OK;
}

/* other threads may look at words meanwhile */
static void store(char *word, uint64_t value)
{
    atomic_store_explicit((_Atomic uint64_t *)(void *)word, value, memory_order_release);
}

/* what rank 0 tells rank 1, rank 1 tells rank 0: its share of an allgather lies behind ours, its word too */
static void answer(fake_heap_t *heap, uint64_t offset, size_t bytes, uint64_t word, uint64_t value)
{
    char *own = heap->regions[0];
    if (bytes != 0 && heap->control) memcpy(own + offset + SHARE, own + offset, bytes);
    store(own + word + (heap->control ? LINE : sizeof(xep_buffer_line_t)), value);
}

static xep_status_t fake_put_signal(xep_wire_t *wire, uint32_t rank, uint64_t offset, const void *src, size_t bytes,
                                    uint64_t word, uint64_t value)
{
    fake_heap_t *heap = (fake_heap_t *)wire;
    if (unit_mirror.how == MIRROR_TAKES_NO_SIGNAL && rank == 1) return XEP_INPROGRESS;
    if (unit_mirror.how == MIRROR_UNREACHABLE && rank == 1) return xep_fail(XEP_ERR_PEER, "rank 1 cannot be reached");
    if (bytes != 0) memmove(heap->regions[rank] + offset, src, bytes);
    store(heap->regions[rank] + word, value);
    if (rank == 1 && unit_mirror.how != MIRROR_SILENT) answer(heap, offset, bytes, word, value);
    if (rank == 1 && unit_mirror.silent_after != 0 && --unit_mirror.silent_after == 0) unit_mirror.how = MIRROR_SILENT;
    return XEP_OK;
}

static xep_status_t fake_flush(xep_wire_t *wire)
{
    (void)wire;
    if (unit_mirror.how != MIRROR_NEVER_FLUSHED) return XEP_OK;
    atomic_store(&unit_mirror.unflushed, 1);
    return XEP_INPROGRESS;
}

static xep_status_t fake_wire_progress(xep_wire_t *wire)
{
    (void)wire;
    return XEP_OK;
}

static const xep_wire_ops_t wire_ops = {.size = sizeof(xep_wire_ops_t),
                                        .map = fake_map,
                                        .put = fake_put,
                                        .put_signal = fake_put_signal,
                                        .flush = fake_flush,
                                        .progress = fake_wire_progress};

static xep_status_t fake_connect(xep_transport_t *transport, uint32_t rank, uint32_t nranks,
                                 const void *const *addresses, const size_t *bytes, const uint8_t *peers)
{
    (void)transport, (void)rank, (void)nranks, (void)addresses, (void)bytes, (void)peers;
    return XEP_OK;
}

static void fake_shared_room(xep_transport_t *transport, uint64_t bytes, xep_shared_room_t rooms[XEP_SHARED_KINDS])
{
    (void)transport, (void)bytes;
    memset(rooms, 0, XEP_SHARED_KINDS * sizeof *rooms);
}

static void fake_shared_look(uint64_t ranks[XEP_SHARED_KINDS])
{
    memset(ranks, 0, XEP_SHARED_KINDS * sizeof *ranks);
}

static xep_status_t fake_start(xep_transport_t *transport, const xep_neighbours_t *neighbours,
                               const xep_whereabouts_t *where)
{
    (void)transport, (void)neighbours, (void)where;
    return XEP_OK;
}

static xep_status_t fake_heap_open(xep_transport_t *transport, uint64_t bytes, xep_heap_wire_t **heap_p)
{
    fake_heap_t *heap = calloc(1, sizeof *heap);
    uint64_t pages = (bytes + 4095) / 4096 * 4096;
    (void)transport;
    assert_non_null(heap);
    for (int r = 0; r < MIRROR_RANKS; r++) {
        heap->regions[r] = aligned_alloc(4096, pages);
        assert_non_null(heap->regions[r]);
        memset(heap->regions[r], 0, pages);
    }
    heap->super =
        (xep_heap_wire_t){.wire = {&wire_ops}, .base = heap->regions[0], .bytes = bytes, .key = "k", .key_bytes = 1};
    heap->control = nheaps++ == 0;
    *heap_p = &heap->super;
    return XEP_OK;
}

static xep_status_t fake_heap_connect(xep_heap_wire_t *heap, const void *const *keys, const size_t *bytes)
{
    (void)heap, (void)keys, (void)bytes;
    return XEP_OK;
}

static void fake_heap_close(xep_heap_wire_t *base)
{
    fake_heap_t *heap = (fake_heap_t *)base;
    if (base->release != NULL) base->release(base->release_arg);
    for (int r = 0; r < MIRROR_RANKS; r++) free(heap->regions[r]);
    free(heap);
}

static xep_status_t fake_progress(xep_transport_t *transport)
{
    (void)transport;
    return XEP_OK;
}

static xep_status_t fake_ctl(xep_transport_t *transport, uint32_t rank, const void *data, size_t bytes)
{
    (void)transport, (void)rank, (void)data, (void)bytes;
    return XEP_OK;
}

static int fake_ctl_has_left(xep_transport_t *transport)
{
    (void)transport;
    return 1;
}

static int fake_is_gone(xep_transport_t *transport, uint32_t rank, char *why, size_t bytes)
{
    (void)transport, (void)rank, (void)why, (void)bytes;
    return 0;
}

static void fake_close(xep_transport_t *transport)
{
    free(transport);
}

static const xep_transport_ops_t transport_ops = {.shared_look = fake_shared_look,
                                                  .start = fake_start,
                                                  .connect = fake_connect,
                                                  .shared_room = fake_shared_room,
                                                  .heap_open = fake_heap_open,
                                                  .heap_connect = fake_heap_connect,
                                                  .heap_close = fake_heap_close,
                                                  .progress = fake_progress,
                                                  .is_gone = fake_is_gone,
                                                  .ctl = fake_ctl,
                                                  .ctl_has_left = fake_ctl_has_left,
                                                  .close = fake_close};

/* ---- bootstrap ---- */

static xep_status_t boot_allgather(xep_boot_t *boot, const void *send, void *recv, size_t bytes)
{
    (void)boot;
    for (int r = 0; r < MIRROR_RANKS; r++) memcpy((char *)recv + (size_t)r * bytes, send, bytes);
    return XEP_OK;
}

static int was_interrupted(void *ctx)
{
    (void)ctx;
    return atomic_load(&unit_mirror.interrupted);
}

static xep_status_t open_transport(const xep_config_t *config, xep_transport_t **transport_p)
{
    (void)config;
    *transport_p = calloc(1, sizeof **transport_p);
    assert_non_null(*transport_p);
    **transport_p = (xep_transport_t){.ops = &transport_ops, .address = "a", .address_bytes = 1};
    return XEP_OK;
}

xep_group_t *unit_mirror_open_group(void)
{
    xep_boot_t *boot = xep_boot_new(sizeof *boot, (xep_boot_t){.name = "fake",
                                                               .allgather = boot_allgather,
                                                               .dead = &unit_mirror.dead,
                                                               .nranks = MIRROR_RANKS,
                                                               .timeout_ms = -1,
                                                               .interrupted = was_interrupted});
    xep_config_t config;
    xep_group_t *group = NULL;
    assert_non_null(boot);
    unit_mirror.how = MIRROR_FINE;
    atomic_store(&unit_mirror.dead, UINT32_MAX);
    atomic_store(&unit_mirror.interrupted, 0);
    nheaps = 0;
    assert_int_equal(xep_config_read(&config), XEP_OK);
    assert_int_equal(xep_group_open(&config, -1, boot, open_transport, &group), XEP_OK);
    return group;
}
