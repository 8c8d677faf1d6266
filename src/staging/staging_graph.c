/* SPDX-License-Identifier: BSD-3-Clause */

/* What launches ask. */
#include "staging_graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backoff.h"
#include "log.h"
#include "staging.h"
#include "staging_slots.h"

static const xep_captured_record_t *record_of(const xep_graphs_t *graphs)
{
    return &graphs->records[graphs->now - graphs->first];
}

/*
 * The list is there, and all else that the device will read. The thread takes it for something that has moved, and
 * looks sharply for the next ask: it may not see that an operation has begun, which ends in the same round on the last
 * rank.
 */
static void answer(xep_graphs_t *graphs, uint32_t number, uint32_t count)
{
    graphs->answered = number;
    __atomic_store_n(&graphs->board->count, count, __ATOMIC_RELAXED);
    __atomic_store_n(&graphs->board->answered, number, __ATOMIC_RELEASE);
    atomic_fetch_add_explicit(&graphs->buffer->group->transport->moves, 1, memory_order_relaxed);
}

/* What later calls are told; the reason may be one that this has to replace. */
static void break_buffer(const xep_graphs_t *graphs, xep_status_t status)
{
    char text[XEP_REASON_BYTES];
    snprintf(text, sizeof text, "a CUDA graph: %.900s",
             status == XEP_ERR_MISMATCH ? "ranks launch the buffer's graphs in other orders" : xep_last_error());
    if (status == XEP_ERR_ABORTED || graphs->buffer->broken) return;
    xep_log(XEP_LOG_ERROR, "%s", text);
    xep_request_give_up_all(graphs->buffer, status, text);
}

/* Not later: by then a program may have launched one from before, which has to be an error. */
void xep_graphs_forget(xep_buffer_t *buffer)
{
    xep_graphs_t *graphs = buffer->staging->graphs;
    if (graphs == NULL) return;
    if (graphs->state == GRAPHS_RUN) xep_request_drop(graphs->req);
    graphs->state = GRAPHS_WAIT;
    graphs->until_ns = 0;
    graphs->first += graphs->nrecords;
    graphs->nrecords = graphs->numbered = 0;
    answer(graphs, __atomic_load_n(&graphs->board->asked, __ATOMIC_ACQUIRE), 0);
}

/* Copies go to the list meanwhile. */
xep_status_t xep_graphs_take(xep_graphs_t *graphs, xep_request_t *req, int is_capture)
{
    xep_staging_t *staging = graphs->buffer->staging;
    staged_slot_t *slot = &staging->slots[req->op.slot];
    graphs->list.count = 0;
    graphs->list.is_capture = is_capture;
    graphs->list.is_shown = 0;
    staging->to = &graphs->list.as;
    xep_status_t status = xep_staging_take_copies(req);
    staging->to = graphs->buffer->device;
    req->op.coming = slot->coming = slot->parts = slot->parts_here = 0; /* none comes later */
    if (req->op.kind == XEP_OP_DISPATCH) req->dispatch.stream = graphs;
    else req->combine.stream = graphs;
    return status;
}

static xep_status_t take(xep_graphs_t *graphs)
{
    const xep_captured_record_t *record = record_of(graphs);
    xep_request_t *req = &graphs->taken;
    memset(req, 0, sizeof *req);
    req->buffer = graphs->buffer;
    req->handle = record->handle;
    req->dispatch = record->dispatch;
    req->combine = record->combine;
    req->op.kind = record->kind;
    req->op.slot = record->handle->slot;
    graphs->list.rows_on_device = record->rows_on_device;
    return xep_graphs_take(graphs, req, 0);
}

/* The mark says which launch it is; sums and rows of the slot are free, as the device has asked. */
static xep_status_t begin(xep_graphs_t *graphs)
{
    xep_buffer_t *buffer = graphs->buffer;
    const xep_request_t *taken = &graphs->taken;
    xep_request_t *req = xep_request_take(taken->op.kind, taken->handle);
    if (req == NULL) return XEP_ERR_BUSY;
    const int is_dispatch = taken->op.kind == XEP_OP_DISPATCH;
    const uint32_t mark = record_of(graphs)->number << XEP_REFUSED_BITS;
    req->dispatch = taken->dispatch;
    req->combine = taken->combine;
    if (is_dispatch) req->handle->recv = (xep_recv_t){0};
    xep_status_t status = XEP_OK;
    if (is_dispatch && buffer->staging->take_on_host != NULL) status = buffer->staging->take_on_host(req);
    graphs->list.count = 0;
    graphs->list.kept_bytes = 0;
    graphs->list.is_capture = 0;
    graphs->list.is_shown = 1;
    graphs->req = req;
    buffer->refused += mark;
    if (status == XEP_OK) status = xep_request_replay(req);
    buffer->refused -= mark;
    if (status != XEP_OK) return status;
    graphs->state = GRAPHS_RUN;
    return XEP_OK;
}

/* As a test does: with its deadline, and a look at the peers. */
static void go_on(xep_graphs_t *graphs)
{
    const xep_status_t status = xep_request_poll(graphs->req);
    if (status == XEP_INPROGRESS) return;
    xep_request_drop(graphs->req);
    graphs->state = GRAPHS_WAIT;
    if (status != XEP_OK) break_buffer(graphs, status);
    answer(graphs, graphs->answered + 1, status == XEP_OK ? graphs->list.count : 0);
}

/* A call may have released it between the two asks of an operation, and begun another in its slot. */
static xep_status_t check_handle(const xep_captured_record_t *record)
{
    const xep_handle_t *handle = record->handle;
    const int released = atomic_load_explicit(&handle->released, memory_order_acquire);
    if (released || handle->state == XEP_HANDLE_FREE || handle->times_free != record->times_free)
        return xep_fail(XEP_ERR_PROTOCOL, "the handle of an operation was released, which did nothing");
    return handle->in_flight == NULL ? XEP_OK : xep_fail(XEP_ERR_BUSY, "the handle has an operation in flight");
}

/* The next ask, of a buffer that can go on. XEP_ERR_BUSY: later. */
static xep_status_t hear(xep_graphs_t *graphs, uint32_t asked)
{
    const uint32_t record = __atomic_load_n(&graphs->board->record, __ATOMIC_RELAXED);
    if (record < graphs->first)
        return xep_fail(XEP_ERR_PROTOCOL, "one from before a reset was launched, and did nothing (capture it anew)");
    if (asked != graphs->answered + 1 || record - graphs->first >= graphs->nrecords ||
        (graphs->state == GRAPHS_HAVE_TAKEN && record != graphs->now))
        return xep_fail(XEP_ERR_PROTOCOL, "two of the buffer's run side by side (a stream or events order them)");
    graphs->now = record;
    if (record_of(graphs)->number == 0) {
        answer(graphs, asked, 0);
        return XEP_OK;
    }
    xep_status_t status = check_handle(record_of(graphs));
    if (status == XEP_OK && graphs->state == GRAPHS_HAVE_TAKEN) return begin(graphs);
    if (status == XEP_OK) status = take(graphs);
    if (status != XEP_OK) return status;
    graphs->state = GRAPHS_HAVE_TAKEN;
    answer(graphs, asked, graphs->list.count);
    return XEP_OK;
}

/* What others of the buffer's operations have to end first has deadlines of its own, unless nobody waits for it. */
static int may_still_go_on(xep_graphs_t *graphs)
{
    const uint64_t now = xep_clock_ns();
    if (graphs->until_ns == 0) graphs->until_ns = xep_deadline_from(now, graphs->buffer->timeout_ms);
    return now < graphs->until_ns;
}

void xep_graphs_look(xep_buffer_t *buffer)
{
    xep_graphs_t *graphs = buffer->staging->graphs;
    if (!graphs->is_open) return;
    if (graphs->state == GRAPHS_RUN) go_on(graphs);
    const uint32_t asked = __atomic_load_n(&graphs->board->asked, __ATOMIC_ACQUIRE);
    /* of two side by side the earlier may say it later: what was answered stays so, or the other would wait for ever */
    if (graphs->state == GRAPHS_RUN || (int32_t)(asked - graphs->answered) <= 0) return;
    xep_status_t status = xep_buffer_usable(buffer);
    if (status == XEP_OK) status = hear(graphs, asked);
    if (status == XEP_ERR_BUSY && may_still_go_on(graphs)) return;
    graphs->until_ns = 0;
    if (status == XEP_OK) return;
    break_buffer(graphs, status);
    graphs->state = GRAPHS_WAIT;
    answer(graphs, asked, 0);
}

/* A thread that holds the buffer looks itself where it waits for a stream. */
void xep_graphs_run_task(xep_group_task_t *task)
{
    xep_graphs_t *graphs = (xep_graphs_t *)(void *)((char *)task - offsetof(xep_graphs_t, task));
    xep_buffer_t *buffer = graphs->buffer;
    if (!xep_buffer_try_enter(buffer)) return;
    xep_graphs_look(buffer);
    xep_buffer_leave(buffer);
}
