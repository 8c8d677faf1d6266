/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A rank signals itself, too: the waiting loop then needs no exception for it. What was missing is told with the error,
 * since a deadline that only says that it has passed helps nobody.
 */
#include "group_signal.h"

#include <stdio.h>

#include "error.h"
#include "group_out.h"
#include "group_wait.h"

/* What the wait was for, behind why it ended; an abort is nobody's fault. */
__attribute__((format(printf, 3, 4))) static xep_status_t explain(xep_status_t status, const char *what,
                                                                  const char *format, ...)
{
    char detail[320];
    va_list args;
    if (status != XEP_ERR_TIMEOUT && status != XEP_ERR_PEER) return status;
    va_start(args, format);
    vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    return xep_fail(status, "%s: %.400s; %s", what, xep_last_error(), detail);
}

/* ---- sending ---- */

typedef struct sending {
    xep_heap_wire_t *heap;
    const xep_group_signal_t *signal;
    uint32_t rank;
    size_t bytes;
} sending_t;

/* XEP_INPROGRESS from the wire is what a look says when it has to be made again. */
static xep_status_t try_signal(void *arg)
{
    const sending_t *sending = arg;
    const xep_group_signal_t *signal = sending->signal;
    xep_wire_t *wire = &sending->heap->wire;
    return wire->ops->put_signal(wire, sending->rank, signal->offset, (char *)sending->heap->base + signal->offset,
                                 sending->bytes, signal->word, signal->value);
}

xep_status_t xep_group_signal_all(xep_group_t *group, xep_heap_wire_t *heap, const xep_group_signal_t *signal,
                                  uint64_t deadline_ns)
{
    for (uint32_t i = 0; i < group->nranks; i++) {
        sending_t sending = {.heap = heap, .signal = signal, .rank = (group->rank + i) % group->nranks};
        xep_wait_t wait = {.look = try_signal, .arg = &sending, .deadline_ns = deadline_ns, .spares = 1};
        if (xep_group_is_out(group, sending.rank)) continue;
        sending.bytes = sending.rank == group->rank ? 0 : signal->bytes; /* ours are there already */
        xep_status_t status = xep_group_wait(group, &wait);
        if (status != XEP_OK) return explain(status, signal->what, "rank %u takes no signal", sending.rank);
    }
    return XEP_OK;
}

static xep_status_t try_flush(void *arg)
{
    xep_wire_t *wire = arg;
    return wire->ops->flush(wire);
}

xep_status_t xep_group_flush(xep_group_t *group, xep_heap_wire_t *heap, uint64_t deadline_ns, const char *what)
{
    xep_wait_t wait = {.look = try_flush, .arg = &heap->wire, .deadline_ns = deadline_ns};
    return explain(xep_group_wait(group, &wait), what, "bytes to peers have not left");
}

/* ---- receiving ---- */

typedef struct receiving {
    const xep_group_t *group;
    const xep_group_words_t *words;
    uint32_t missing; /* ranks before this one are here */
} receiving_t;

static uint64_t word_of(const xep_group_words_t *words, uint32_t rank)
{
    const char *at = (const char *)words->first + rank * words->stride;
    return atomic_load_explicit((const _Atomic uint64_t *)(const void *)at, memory_order_acquire);
}

/* the first rank at or after from whose word is too small, or nranks */
static uint32_t find_missing(const receiving_t *receiving, uint32_t from)
{
    const xep_group_words_t *words = receiving->words;
    while (from < receiving->group->nranks &&
           (word_of(words, from) >= words->value || xep_group_is_out(receiving->group, from)))
        from++;
    return from;
}

static xep_status_t look_for_words(void *arg)
{
    receiving_t *receiving = arg;
    receiving->missing = find_missing(receiving, receiving->missing);
    return receiving->missing == receiving->group->nranks ? XEP_OK : XEP_INPROGRESS;
}

/* "still missing: rank 1 5" */
static void list_missing(const receiving_t *receiving, char *text, size_t bytes)
{
    uint32_t nranks = receiving->group->nranks, r = receiving->missing;
    size_t used = (size_t)snprintf(text, bytes, "still missing: rank");
    for (; r < nranks && used + 24 < bytes; r = find_missing(receiving, r + 1))
        used += (size_t)snprintf(text + used, bytes - used, " %u", r);
    if (r < nranks) snprintf(text + used, bytes - used, " ...");
}

static xep_status_t name_missing(const receiving_t *receiving, xep_status_t status)
{
    char list[256];
    list_missing(receiving, list, sizeof list);
    return explain(status, receiving->words->what, "%s", list);
}

static void explain_words(void *arg, char *text, size_t bytes)
{
    char list[256];
    list_missing(arg, list, sizeof list);
    snprintf(text, bytes, "%s: %s", ((const receiving_t *)arg)->words->what, list);
}

/* Ranks are looked at in order and not again: words only grow. */
xep_status_t xep_group_wait_words(xep_group_t *group, const xep_group_words_t *words, uint64_t deadline_ns)
{
    receiving_t receiving = {.group = group, .words = words};
    xep_wait_t wait = {.look = look_for_words,
                       .arg = &receiving,
                       .deadline_ns = deadline_ns,
                       .spares = 1,
                       .explain = explain_words};
    xep_status_t status = xep_group_wait(group, &wait);
    return status == XEP_OK ? XEP_OK : name_missing(&receiving, status);
}
