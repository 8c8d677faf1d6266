/* SPDX-License-Identifier: BSD-3-Clause */

/* The end of a buffer, and its new beginning after an error: both wait until no peer's bytes can arrive any more. */

#include <stdio.h>
#include <stdlib.h>

#include "buffer.h"
#include "log.h"
#include "request.h"

enum { BROKEN_WAIT_MS = 2000 }; /* for ranks that may be gone */

/*
 * Tells every peer that nothing of ours will arrive any more, and waits until all have said so:
 * the signal comes after every put of this wire to that rank.
 */
static xep_status_t fence(xep_buffer_t *buffer, int32_t timeout_ms)
{
    xep_group_t *group = buffer->group;
    xep_wire_t *wire = &buffer->heap->wire;
    uint64_t value = ++buffer->fences, mine = buffer->fence_offset + (uint64_t)group->rank * sizeof value;
    xep_waiting_t waiting;
    xep_status_t status = xep_group_check_peers(group);
    if (status != XEP_OK) return status;
    xep_waiting_begin(&waiting, group->spins, xep_deadline(timeout_ms));
    for (uint32_t i = 0; i < group->nranks; i++) {
        uint32_t r = (group->rank + i) % group->nranks;
        while ((status = wire->ops->put_signal(wire, r, 0, NULL, 0, mine, value)) == XEP_INPROGRESS) {
            xep_group_progress(group);
            if (!xep_group_rest(group, &waiting)) return xep_fail(XEP_ERR_TIMEOUT, "rank %u takes no signal", r);
        }
        if (status != XEP_OK) return status;
    }
    while ((status = wire->ops->flush(wire)) == XEP_INPROGRESS) {
        xep_group_progress(group);
        if (!xep_group_rest(group, &waiting)) return xep_fail(XEP_ERR_TIMEOUT, "bytes to peers do not leave");
    }
    if (status != XEP_OK) return status;
    return xep_group_wait_words(group, (char *)buffer->heap->base + buffer->fence_offset, sizeof value, value, timeout_ms,
                                "end of the buffer");
}

static int32_t end_timeout(const xep_buffer_t *buffer)
{
    int32_t t = buffer->timeout_ms;
    return buffer->broken && (t < 0 || t > BROKEN_WAIT_MS) ? BROKEN_WAIT_MS : t;
}

static int is_followed(const xep_buffer_t *buffer)
{
    for (uint32_t i = 0; i < buffer->nrequests; i++)
        if (atomic_load_explicit(&buffer->requests[i].followers, memory_order_acquire) != 0) return 1;
    return 0;
}

/* Requests of other buffers that come after one of this see here how it ended; its memory is theirs to read until then. */
static int part_from_followers(xep_buffer_t *buffer)
{
    xep_group_t *group = buffer->group;
    xep_waiting_t waiting;
    xep_waiting_begin(&waiting, group->spins, xep_deadline(BROKEN_WAIT_MS));
    while (is_followed(buffer)) {
        xep_group_progress(group);
        if (!xep_group_rest(group, &waiting)) return 0;
    }
    return 1;
}

void xep_buffer_close(xep_buffer_t *buffer)
{
    xep_group_t *group = buffer->group;
    xep_buffer_enter(buffer);
    xep_request_end_all(buffer, XEP_ERR_ABORTED, "the buffer was destroyed");
    xep_group_remove_buffer(group, buffer);
    int alone = part_from_followers(buffer);
    if (!atomic_load(&group->aborted) && fence(buffer, end_timeout(buffer)) != XEP_OK)
        xep_log(XEP_LOG_WARN, "destroying a buffer without all ranks: %s", xep_last_error());
    if (alone)
        xep_buffer_free(buffer);
    else
        xep_log(XEP_LOG_ERROR, "xep_buffer_destroy: a thread in another buffer still comes after this one; its memory is left");
}

/* the largest epoch, turn and fence any rank has reached: all go on from there */
static xep_status_t agree_epoch(xep_buffer_t *buffer)
{
    xep_group_t *group = buffer->group;
    uint64_t *own[] = {&buffer->epoch, &buffer->turn, &buffer->fences};
    uint64_t mine[] = {buffer->epoch, buffer->turn, buffer->fences};
    uint64_t *all = calloc(group->nranks, sizeof mine);
    xep_status_t status;
    if (all == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for %u ranks", group->nranks);
    status = xep_group_exchange(group, mine, all, sizeof mine);
    for (uint32_t i = 0; status == XEP_OK && i < group->nranks * 3; i++)
        if (all[i] > *own[i % 3]) *own[i % 3] = all[i];
    free(all);
    return status;
}

static xep_status_t reopen(xep_buffer_t *buffer)
{
    xep_status_t status;
    if ((status = agree_epoch(buffer)) != XEP_OK) return status;
    if ((status = fence(buffer, buffer->timeout_ms)) != XEP_OK) return status;
    buffer->plugin.plugin->close(buffer->mode);
    buffer->mode = NULL;
    status = buffer->plugin.plugin->open(&buffer->env, &buffer->mode);
    if (status != XEP_OK) return status;
    /* nobody may write into a region whose mode is not open again */
    return fence(buffer, buffer->timeout_ms);
}

xep_status_t xep_buffer_restart(xep_buffer_t *buffer)
{
    xep_status_t status = xep_group_usable(buffer->group);
    if (status != XEP_OK) return status;
    xep_request_end_all(buffer, XEP_ERR_ABORTED, "the buffer was reset");
    for (uint32_t s = 0; s < buffer->shape.slots; s++) xep_handle_give_back(&buffer->handles[s]);
    status = reopen(buffer);
    buffer->broken = status != XEP_OK; /* what peers have of the operations that were ended is not known */
    if (buffer->broken) snprintf(buffer->broken_reason, sizeof buffer->broken_reason, "a reset that failed: %.900s", xep_last_error());
    return status;
}
