/* SPDX-License-Identifier: BSD-3-Clause */

/* The sentence names the first rank that gave up: the others did because of it. */
#include "buffer_give_up.h"

#include <stdio.h>
#include <time.h>

#include "error.h"

static uint64_t wall_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void xep_buffer_blame_expert(xep_buffer_t *buffer, uint32_t expert)
{
    xep_buffer_lines(buffer)[buffer->shape.rank].expert = expert + 1;
}

/*
 * Uses up an epoch that was not begun, so that a reset continues after it. Said once until then: a rank that waits in
 * the epoch that was given up, and has not looked yet, would not hear of it if a later one were said behind it. The
 * bytes end before came: others wait for that word, and only its own signal says that what belongs to it is there.
 */
void xep_buffer_give_up(xep_buffer_t *buffer, uint64_t epoch, xep_status_t why)
{
    const uint32_t rank = buffer->shape.rank;
    xep_buffer_line_t *own = &xep_buffer_lines(buffer)[rank];
    const uint64_t at = buffer->areas.lines + rank * sizeof *own, said = at + offsetof(xep_buffer_line_t, when_ms);
    if (buffer->goes_on || why == XEP_ERR_PEER) return;
    if (own->given_up > buffer->reset_epoch) {
        own->expert = 0;
        return;
    }
    own->given_up = epoch;
    if (epoch > buffer->epoch) buffer->epoch = epoch;
    own->when_ms = wall_ms();
    own->why = why;
    for (uint32_t r = 0; r < buffer->shape.nranks; r++)
        if (r != rank)
            (void)xep_heap_tell(buffer->heap, r, said,
                                offsetof(xep_buffer_line_t, came) - offsetof(xep_buffer_line_t, when_ms),
                                at + offsetof(xep_buffer_line_t, given_up), epoch);
    own->expert = 0;
}

/* acquire: what its rank wrote before it is here */
static uint64_t load(const uint64_t *word)
{
    return atomic_load_explicit((const _Atomic uint64_t *)word, memory_order_acquire);
}

xep_status_t xep_buffer_check_left(const xep_buffer_t *buffer, uint64_t quiet)
{
    for (uint32_t r = 0; r < buffer->shape.nranks; r++) {
        const xep_buffer_line_t *line = &xep_buffer_lines(buffer)[r];
        if (load(&line->left) != 0 && load(&line->quiet) < quiet)
            return xep_fail(XEP_ERR_BROKEN, "rank %u destroys the buffer", r);
    }
    return XEP_INPROGRESS;
}

/* Uses what a peer wrote as far as it makes sense; clocks of hosts may differ. */
static xep_status_t tell(const xep_buffer_line_t *line, uint32_t rank)
{
    const uint64_t now = wall_ms();
    const double ago_s = now < line->when_ms ? 0 : (double)(now - line->when_ms) / 1e3;
    const xep_status_t why = xep_status_told(line->why, XEP_ERR_BROKEN);
    if (line->expert == 0)
        return xep_fail(why, "given up by rank %u %.1f s ago (%s)", rank, ago_s, xep_status_text(why));
    return xep_fail(why, "given up by rank %u %.1f s ago (%s, expert %u)", rank, ago_s, xep_status_text(why),
                    line->expert - 1);
}

/* A death counts more: others give up because of it. */
xep_status_t xep_buffer_check_given_up(const xep_buffer_t *buffer, uint64_t epoch)
{
    const xep_buffer_line_t *lines = xep_buffer_lines(buffer);
    uint32_t first = buffer->shape.nranks;
    if (buffer->goes_on) return XEP_INPROGRESS;
    for (uint32_t r = 0; r < buffer->shape.nranks; r++) {
        const uint64_t word = load(&lines[r].given_up);
        if (word <= buffer->reset_epoch || word > epoch || r == buffer->shape.rank) continue;
        if (first == buffer->shape.nranks || lines[r].when_ms < lines[first].when_ms) first = r;
    }
    if (first == buffer->shape.nranks) return XEP_INPROGRESS;
    xep_status_t status = xep_group_check_peers(buffer->group, 0);
    return status == XEP_OK ? tell(&lines[first], first) : status;
}
