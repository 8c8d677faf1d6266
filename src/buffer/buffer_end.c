/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The end of a buffer, and its new beginning after an error. Both wait until no peer's bytes can arrive any more: a
 * mapped peer stores into this rank's memory, and UCX puts into it by address, whatever is there by then.
 *
 * Leaving together: what is in flight ends here; then all ranks quiesce; then each frees what it has. A rank that is
 * late or dead, or an abort, ends the wait, and the memory is freed nevertheless: a rank that writes into it later is
 * not one of those that go on. A buffer that is broken, here or on another rank, waits 2 s at most, as some rank is
 * probably the reason.
 *
 * A reset:
 *  1. each writes into its line (buffer_give_up.h) in every heap what it has reached, and then that it has come to
 *     reset n. When all have, epochs, turns and quiesces go on from the highest: some may have begun more operations.
 *     The epoch after that is the reset's own.
 *  2. all quiesce, so that nothing of the old operations is under way.
 *  3. each closes and opens its mode, on the memory as it is: epochs only grow, so what is left there ends no wait.
 *  4. all quiesce again: no rank may write into a heap whose mode is not open yet.
 * A reset that has failed is called again: it is still n where step 1 had not ended, with what was written first, as
 * others may have read that; else it is n + 1. What a rank wrote for n it does not overwrite before all have come to
 * n + 1, and so have read it. A rank whose reset succeeded hears in its first operation that others have failed.
 *
 * A rank that has given up n by an abort, behind its word for it, takes part in step 1 of n once more, and then goes on
 * with n + 1: the others have given n up because of it, or do so in step 2. The abort has an epoch behind what the rank
 * had reached; the reset's own is no smaller from n + 1 on.
 *
 * A rank may leave, or give up a reset, while others come to it. So it says in words of its line, which only it writes:
 * how often it was quiet in resets; that it leaves; and the reset's epoch, if it gives that up.
 * A wait of one kind counts words of that kind alone. A reset ends at once where another rank will not come: in step 1
 * if one leaves; in steps 2 and 4 if one that has not been quiet so often leaves, or has given up this reset. What it
 * did before it left it had flushed, so nobody who came is taken for one who does not. Those that leave wait until the
 * others leave, too.
 */

#include "buffer.h"

#include <stdio.h>
#include <stdlib.h>

#include "announce.h"
#include "backoff.h"
#include "balance.h"
#include "buffer_give_up.h"
#include "group_abort.h"
#include "group_out.h"
#include "group_signal.h"
#include "group_wait.h"
#include "log.h"
#include "members.h"
#include "mode.h"
#include "owners.h"
#include "request.h"
#include "staging.h"
#include "staging_graph.h"

enum { BROKEN_WAIT_MS = 2000 }; /* for ranks that may be gone */

static const char RESET[] = "xep_buffer_reset";

/* ---- memory ---- */

/* All but the heap: the mode first, as it knows that; then what the device knows; then what no other process sees. */
static void release(void *arg)
{
    xep_buffer_t *buffer = arg;
    if (buffer->mode != NULL) buffer->plugin.plugin->close(buffer->mode);
    xep_staging_close(buffer);
    if (buffer->device != NULL) buffer->device->ops->close(buffer->device);
    if (buffer->pointers != NULL) buffer->pointers->close(buffer->pointers);
    xep_team_destroy(buffer->team);
    xep_wait_times_close(&buffer->waits);
    xep_members_close(buffer);
    xep_announce_close(buffer->announce);
    xep_balance_close(buffer->balancer);
    xep_owners_close(buffer->owners);
    free(buffer->peer_pages.ranges);
    free(buffer->states);
    free((uint32_t *)buffer->everybody.rank);
    free(buffer->requests);
    free(buffer->handles);
    xep_shape_close(&buffer->shape);
    xep_plugin_unload(&buffer->plugin);
    free(buffer);
}

/* UCX may still send what modes have in memory of their own: counts, records. So that goes once the heap has ended. */
void xep_buffer_free(xep_buffer_t *buffer)
{
    xep_heap_wire_t *heap = buffer->heap;
    xep_heap_forget(buffer);
    if (heap == NULL) {
        release(buffer);
        return;
    }
    heap->release = release;
    heap->release_arg = buffer;
    buffer->group->transport->ops->heap_close(heap);
}

/* ---- leaving ---- */

typedef struct leaving {
    const xep_buffer_t *buffer;
    uint64_t until_ns; /* for ranks that have given it up; 0: none has */
} leaving_t;

/* A rank that has given the buffer up may still come here, or never. */
static xep_status_t hope_for_all(void *arg)
{
    leaving_t *leaving = arg;
    xep_status_t status = xep_buffer_check_given_up(leaving->buffer, UINT64_MAX);
    if (status == XEP_INPROGRESS) return status;
    if (leaving->until_ns == 0) leaving->until_ns = xep_deadline(BROKEN_WAIT_MS);
    return xep_clock_ns() < leaving->until_ns ? XEP_INPROGRESS : status;
}

/*
 * Each rank says it to all others, and waits for it from them: a word of its line, and bytes of it that come before, by
 * their offsets in a line. The signal comes after every put of this wire to that rank: all of them are there when all
 * ranks have come.
 */
static xep_status_t meet(xep_buffer_t *buffer, xep_group_signal_t signal, int32_t timeout_ms)
{
    xep_group_t *group = buffer->group;
    const uint64_t deadline_ns = xep_deadline(timeout_ms),
                   own = buffer->areas.lines + (uint64_t)group->rank * sizeof(xep_buffer_line_t);
    signal.word += own;
    signal.offset += own;
    signal.stride = sizeof(xep_buffer_line_t);
    signal.buffer = buffer->number;
    xep_status_t status = xep_group_check_peers(group, buffer->goes_on);
    if (status == XEP_OK) status = xep_group_signal_all(group, buffer->heap, &signal, deadline_ns);
    if (status == XEP_OK) status = xep_group_flush(group, buffer->heap, deadline_ns, signal.what);
    return status == XEP_OK ? xep_group_wait_words(group, buffer->heap, &signal, deadline_ns) : status;
}

/* Another thread of this rank has called xep_buffer_abort(). */
static xep_status_t check_aborted(const xep_buffer_t *buffer)
{
    if (!atomic_load_explicit(&buffer->abort_called, memory_order_relaxed)) return XEP_INPROGRESS;
    return xep_fail(XEP_ERR_BROKEN, "this rank called xep_buffer_abort()");
}

/* For a rank that does not come to the reset any more. */
static xep_status_t hope_for_quiet(void *arg)
{
    const xep_buffer_t *buffer = arg;
    xep_status_t status = check_aborted(buffer);
    if (status == XEP_INPROGRESS) status = xep_buffer_check_given_up(buffer, buffer->epoch);
    return status == XEP_INPROGRESS ? xep_buffer_check_left(buffer, buffer->quiesces) : status;
}

/* Nothing of any rank will arrive any more: until then none may reuse memory that others write into. */
static xep_status_t quiesce(xep_buffer_t *buffer)
{
    const xep_group_signal_t quiet = {.word = offsetof(xep_buffer_line_t, quiet),
                                      .value = ++buffer->quiesces,
                                      .what = RESET,
                                      .kind = XEP_WAITS_END,
                                      .hope = {hope_for_quiet, buffer}};
    return meet(buffer, quiet, buffer->timeout_ms);
}

/*
 * What kernels of this rank still do must have ended before it may say that nothing of its will arrive any more. Those
 * of a buffer that goes on end by themselves; others may wait for ranks that are gone.
 */
static void quiesce_device(xep_buffer_t *buffer, int goes_on)
{
    xep_heap_device_t *device = buffer->device;
    if (device == NULL) return;
    if (buffer->goes_on) (void)xep_members_bury(buffer); /* of whom they wait for */
    xep_members_look_at_device(buffer);
    if (!goes_on) device->ops->stop(device, 1);
    if (device->device.ops->sync(&device->device) != XEP_OK)
        xep_log(XEP_LOG_WARN, "ending the work of a device: %s", xep_last_error());
    device->ops->stop(device, 0);
}

/* As quiesce(), before this rank frees its memory. */
static xep_status_t leave(xep_buffer_t *buffer, int32_t timeout_ms, xep_hope_t hope)
{
    const xep_group_signal_t end = {.word = offsetof(xep_buffer_line_t, left),
                                    .value = 1,
                                    .what = "end of the buffer",
                                    .kind = XEP_WAITS_END,
                                    .hope = hope};
    return meet(buffer, end, timeout_ms);
}

/*
 * Does not wait for ranks that are out, or that die now. Others may still have to agree on who is out of their last
 * operations, so this rank goes on answering: the buffer's task runs until all are here.
 */
static xep_status_t leave_members(xep_buffer_t *buffer, int32_t timeout_ms)
{
    xep_status_t status;
    if (buffer->group->left_out) return XEP_ERR_PEER;
    xep_buffer_leave(buffer);
    do status = leave(buffer, timeout_ms, (xep_hope_t){NULL, NULL});
    while (status == XEP_ERR_PEER && xep_members_bury(buffer) == XEP_OK);
    xep_buffer_enter(buffer);
    for (uint32_t r = 0; status == XEP_OK && r < buffer->shape.nranks; r++)
        if (xep_group_is_out(buffer->group, r)) status = xep_fail(XEP_ERR_PEER, "rank %u is out", r);
    return status;
}

/* XEP_OK: all ranks are done with its memory. */
static xep_status_t take_leave(xep_buffer_t *buffer, int32_t timeout_ms)
{
    leaving_t leaving = {.buffer = buffer};
    xep_status_t status = buffer->goes_on ? leave_members(buffer, timeout_ms)
                                          : leave(buffer, timeout_ms, (xep_hope_t){hope_for_all, &leaving});
    xep_group_remove_task(buffer->group, &buffer->task);
    return status;
}

/* For a broken buffer, whose peers may be gone: long enough for one that is only late. */
static int32_t end_timeout(const xep_buffer_t *buffer)
{
    int32_t t = buffer->timeout_ms;
    return buffer->broken && (t < 0 || t > BROKEN_WAIT_MS) ? BROKEN_WAIT_MS : t;
}

/* Acquire: what a follower has read of this buffer was read before it counted down. */
static xep_status_t look_for_followers(void *arg)
{
    const xep_buffer_t *buffer = arg;
    for (uint32_t i = 0; i < buffer->nrequests; i++)
        if (atomic_load_explicit(&buffer->requests[i].followers, memory_order_acquire) != 0) return XEP_INPROGRESS;
    return XEP_OK;
}

static void explain_followers(void *arg, char *text, size_t bytes)
{
    (void)arg;
    snprintf(text, bytes, "end of the buffer: a thread of this process has yet to see how its operations ended");
}

/* Requests of other buffers that come after one of this see here how it ended; its memory is theirs to read until
 * then. They are this process's, so neither a dead rank nor an abort keeps them from looking. */
static xep_status_t part_from_followers(xep_buffer_t *buffer)
{
    xep_wait_t wait = {.look = look_for_followers,
                       .arg = buffer,
                       .deadline_ns = xep_deadline(BROKEN_WAIT_MS),
                       .local = 1,
                       .explain = explain_followers};
    return xep_group_wait(buffer->group, &wait);
}

/* Frees it in any case but one. The status is that of leaving, unless there was a follower. */
xep_status_t xep_buffer_close(xep_buffer_t *buffer)
{
    xep_group_t *group = buffer->group;
    xep_buffer_enter(buffer);
    xep_request_end_all(buffer, XEP_ERR_ABORTED, "the buffer was destroyed");
    xep_status_t alone = part_from_followers(buffer), status = xep_group_usable(group);
    const int replays = buffer->staging != NULL && xep_graphs_stop(buffer);
    quiesce_device(buffer, !buffer->broken && status == XEP_OK && !replays);
    if (status != XEP_OK) xep_group_remove_task(group, &buffer->task);
    else status = take_leave(buffer, end_timeout(buffer));
    buffer->heap->exposed = status != XEP_OK;
    if (status != XEP_OK && !atomic_load(&group->aborted))
        xep_log(XEP_LOG_WARN, "destroying a buffer without all ranks: %s", xep_last_error());
    if (alone == XEP_OK) {
        xep_buffer_free(buffer);
        return status;
    }
    xep_log(XEP_LOG_ERROR,
            "xep_buffer_destroy: a thread in another buffer still comes after this one; its memory is left");
    return alone;
}

/* ---- a reset ---- */

static xep_status_t hope_for_reset(void *arg)
{
    const xep_status_t status = check_aborted(arg);
    return status == XEP_INPROGRESS ? xep_buffer_check_left(arg, UINT64_MAX) : status;
}

static void keep_larger(uint64_t *value, uint64_t other)
{
    if (*value < other) *value = other;
}

/* Step 1. What this rank says of itself it says once: called again it waits for what was missing. */
static xep_status_t agree_epoch(xep_buffer_t *buffer)
{
    const uint64_t number = buffer->resets + 1;
    const size_t half = number % 2;
    xep_buffer_line_t *lines = xep_buffer_lines(buffer), *own = &lines[buffer->shape.rank];
    const xep_group_signal_t all = {.word = offsetof(xep_buffer_line_t, came),
                                    .value = number,
                                    .offset = offsetof(xep_buffer_line_t, reached) + half * sizeof own->reached[0],
                                    .bytes = sizeof own->reached[0],
                                    .what = RESET,
                                    .kind = XEP_WAITS_RESET,
                                    .hope = {hope_for_reset, buffer}};
    if (own->came < number) {
        own->reached[half].epoch = buffer->epoch;
        own->reached[half].turn = buffer->turn;
        own->reached[half].quiesces = buffer->quiesces;
    }
    /* others may have to wait for the buffer's timeout before they come */
    xep_status_t status = meet(buffer, all, buffer->group->timeout_ms);
    if (status != XEP_OK) return status;
    buffer->epoch = buffer->turn = buffer->quiesces = 0;
    for (uint32_t r = 0; r < buffer->shape.nranks; r++) {
        keep_larger(&buffer->epoch, lines[r].reached[half].epoch);
        keep_larger(&buffer->turn, lines[r].reached[half].turn);
        keep_larger(&buffer->quiesces, lines[r].reached[half].quiesces);
    }
    buffer->resets = number;
    buffer->reset_epoch = buffer->epoch++;
    return XEP_OK;
}

static int has_given_up(const xep_buffer_t *buffer)
{
    return xep_buffer_lines(buffer)[buffer->shape.rank].given_up > buffer->reset_epoch;
}

/* Steps 2 to 4 of a reset. */
static xep_status_t reopen(xep_buffer_t *buffer)
{
    xep_status_t status;
    if ((status = quiesce(buffer)) != XEP_OK) return status;
    buffer->plugin.plugin->close(buffer->mode);
    buffer->mode = NULL;
    status = buffer->plugin.plugin->open(&buffer->env, &buffer->mode);
    if (status != XEP_OK) return status;
    if (buffer->announce != NULL) xep_announce_reset(buffer);
    /* no rank may write into a region whose mode is not open again */
    status = quiesce(buffer);
    xep_heap_prefault_all(&buffer->peer_pages, &buffer->prefault_left);
    return status;
}

/* All ranks say what they have reached. */
static xep_status_t check_all_in(const xep_group_t *group)
{
    for (uint32_t r = 0; r < group->nranks; r++)
        if (xep_group_is_out(group, r))
            return xep_fail(XEP_ERR_UNSUPPORTED, "rank %u is out: a reset needs all ranks (make a new group)", r);
    return XEP_OK;
}

/* Handles end without the mode, which is made anew. A failed reset may be tried again. */
xep_status_t xep_buffer_restart(xep_buffer_t *buffer)
{
    xep_status_t status = xep_group_usable(buffer->group);
    if (status == XEP_OK) status = check_all_in(buffer->group);
    if (status != XEP_OK) return status;
    xep_request_end_all(buffer, XEP_ERR_ABORTED, "the buffer was reset");
    for (uint32_t s = 0; s < buffer->shape.slots; s++) xep_handle_give_back(&buffer->handles[s]);
    buffer->refused = buffer->refused_most = 0;
    if (buffer->balancer != NULL) buffer->balancer->round = 0;
    quiesce_device(buffer, 0);
    if (buffer->staging != NULL) xep_graphs_forget(buffer);
    status = agree_epoch(buffer);
    if (status == XEP_OK && has_given_up(buffer)) status = agree_epoch(buffer);
    if (status == XEP_OK && (status = reopen(buffer)) != XEP_OK)
        xep_buffer_give_up(buffer, buffer->epoch, status); /* others may be through */
    buffer->broken = status != XEP_OK; /* what peers have of the operations that were ended is not known */
    if (buffer->broken)
        snprintf(buffer->broken_reason, sizeof buffer->broken_reason, "a reset that failed: %.900s", xep_last_error());
    return status;
}
