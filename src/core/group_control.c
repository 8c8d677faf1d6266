/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What the ranks of a connected group tell one another: the barrier and the allgather, over the control heap.
 *
 * The heap has a line for each rank, which that rank alone writes, and behind them two areas with a part for each.
 * Every word only grows.
 *
 * barrier n: line[self].barriers = n at every rank; done when own line[r].barriers >= n for all r.
 *
 * allgather, for part n of all that the group has ever exchanged, in the area n % 2:
 *  1. to every rank: the part, then  line[self].parts = n.
 *  2. when own line[r].parts >= n for all r: the parts are checked and copied out.
 *
 * Why a part is never overwritten before it is read: r writes part n + 2 once part n + 1 is complete there. That took
 * part n + 1 of this rank, which it sends after it has copied part n out. The same holds for the part as the source of
 * puts. A rank that gives up in the middle breaks this, so it takes part in no later allgather.
 */

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "error.h"
#include "group.h"

/** Of one rank; written by it at every rank. */
typedef struct line {
    uint64_t barriers, parts; /* entered, sent so far */
    uint64_t pad[6];
} line_t;
static_assert(sizeof(line_t) == 64, "one writer a cache line");

enum { PART_BYTES = 4080 };

/** Some bytes of an allgather; written by one rank, read by the others. */
typedef struct part {
    uint64_t call;  /* which allgather, from 1 */
    uint64_t bytes; /* that each rank gives, in all parts together */
    uint8_t data[PART_BYTES];
} part_t;
static_assert(sizeof(part_t) == 4096, "wire format");

static uint64_t word_offset(uint32_t rank, size_t word)
{
    return rank * sizeof(line_t) + word;
}

static uint64_t part_offset(const xep_group_t *group, uint64_t number, uint32_t rank)
{
    return group->nranks * sizeof(line_t) + (number % 2 * group->nranks + rank) * sizeof(part_t);
}

static part_t *own_part(const xep_group_t *group, uint64_t number, uint32_t rank)
{
    return (part_t *)(void *)((char *)group->control->base + part_offset(group, number, rank));
}

static uint64_t control_bytes(const xep_group_t *group)
{
    return part_offset(group, 1, group->nranks);
}

xep_status_t xep_group_open_control(xep_group_t *group)
{
    xep_blobs_t blobs;
    xep_status_t status = group->transport->ops->heap_open(group->transport, control_bytes(group), &group->control);
    if (status != XEP_OK) return status;
    status = xep_group_exchange_blobs(group, group->control->key, group->control->key_bytes, &blobs);
    if (status != XEP_OK) return status;
    status = group->transport->ops->heap_connect(group->control, blobs.blob, blobs.bytes);
    xep_blobs_free(&blobs);
    return status;
}

/* bytes of this rank's part, then the word, at every rank */
static xep_status_t tell_all(xep_group_t *group, uint64_t part, size_t bytes, size_t word, uint64_t value, const char *what)
{
    xep_wire_t *wire = &group->control->wire;
    const char *src = (const char *)group->control->base + part;
    uint64_t at = word_offset(group->rank, word);
    xep_waiting_t waiting;
    xep_waiting_begin(&waiting, group->spins, xep_deadline(group->timeout_ms));
    for (uint32_t i = 0; i < group->nranks; i++) {
        uint32_t r = (group->rank + i) % group->nranks;
        xep_status_t status;
        while ((status = wire->ops->put_signal(wire, r, part, src, i == 0 ? 0 : bytes, at, value)) == XEP_INPROGRESS) {
            xep_group_progress(group);
            if (!xep_group_rest(group, &waiting)) return xep_fail(XEP_ERR_TIMEOUT, "%s: could not signal rank %u in time", what, r);
        }
        if (status != XEP_OK) return status;
    }
    return XEP_OK;
}

/* The last signals should be on their way before this rank stops making progress. A peer that has
 * them all may be gone by now, so an error here says nothing about what was told. */
static void flush_control(xep_group_t *group)
{
    xep_wire_t *wire = &group->control->wire;
    xep_waiting_t waiting;
    xep_waiting_begin(&waiting, group->spins, xep_deadline(group->timeout_ms));
    while (wire->ops->flush(wire) == XEP_INPROGRESS && xep_group_rest(group, &waiting)) xep_group_progress(group);
}

static xep_status_t wait_all(xep_group_t *group, size_t word, uint64_t value, const char *what)
{
    const char *words = (const char *)group->control->base + word;
    xep_status_t status = xep_group_wait_words(group, words, sizeof(line_t), value, group->timeout_ms, what);
    if (status == XEP_OK) flush_control(group);
    return status;
}

xep_status_t xep_group_barrier_run(xep_group_t *group)
{
    xep_status_t status = xep_group_usable(group);
    if (status != XEP_OK) return status;
    uint64_t value = ++group->barriers;
    status = tell_all(group, 0, 0, offsetof(line_t, barriers), value, "barrier");
    return status == XEP_OK ? wait_all(group, offsetof(line_t, barriers), value, "barrier") : status;
}

static xep_status_t check_part(const xep_group_t *group, uint32_t rank, const part_t *part, size_t bytes)
{
    if (part->call != group->gathers)
        return xep_fail(XEP_ERR_PROTOCOL, "rank %u is in allgather %" PRIu64 ", this rank in %" PRIu64, rank, part->call, group->gathers);
    if (part->bytes != bytes)
        return xep_fail(XEP_ERR_MISMATCH, "rank %u gave %" PRIu64 " bytes to an allgather of %zu", rank, part->bytes, bytes);
    return XEP_OK;
}

static xep_status_t take_parts(const xep_group_t *group, uint8_t *recv, size_t bytes, size_t done, size_t count)
{
    for (uint32_t r = 0; r < group->nranks; r++) {
        const part_t *part = own_part(group, group->parts, r);
        xep_status_t status = check_part(group, r, part, bytes);
        if (status != XEP_OK) return status;
        memcpy(recv + r * bytes + done, part->data, count);
    }
    return XEP_OK;
}

static xep_status_t exchange_part(xep_group_t *group, const uint8_t *send, uint8_t *recv, size_t bytes, size_t done)
{
    size_t count = bytes - done < PART_BYTES ? bytes - done : PART_BYTES;
    uint64_t number = ++group->parts;
    part_t *mine = own_part(group, number, group->rank);
    xep_status_t status;
    mine->call = group->gathers;
    mine->bytes = bytes;
    memcpy(mine->data, send + done, count);
    status = tell_all(group, part_offset(group, number, group->rank), offsetof(part_t, data) + count, offsetof(line_t, parts), number,
                      "allgather");
    if (status == XEP_OK) status = wait_all(group, offsetof(line_t, parts), number, "allgather");
    return status == XEP_OK ? take_parts(group, recv, bytes, done, count) : status;
}

xep_status_t xep_group_gather(xep_group_t *group, const void *send, void *recv, size_t bytes)
{
    xep_status_t status = xep_group_usable(group);
    if (status == XEP_OK && group->gave_up)
        status = xep_fail(XEP_ERR_BOOT, "an earlier allgather of the group was given up, and with it all others");
    if (status != XEP_OK) return status;
    group->gathers++;
    for (size_t done = 0; done < bytes && status == XEP_OK; done += PART_BYTES)
        status = exchange_part(group, send, recv, bytes, done);
    /* that sizes differ, all ranks see in the first part */
    group->gave_up = status != XEP_OK && status != XEP_ERR_MISMATCH;
    return status;
}
