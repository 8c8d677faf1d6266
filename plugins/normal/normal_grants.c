/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Grants: where ranks may be left out and some are not mapped, a rank that was left out while a dispatch was in flight
 * may have announced rows to some and not to others, which then find different places. normal_masks.h says why what is
 * here is enough.
 *
 *  1. A rank whose dispatch is with all that were in when it began, as nearly always, knows where its rows go: it sends
 *     them at once, and says where with its done. All such ranks have the same records, and so the same places.
 *  2. Any other one asks all ranks for room: its word "asked" = n.
 *  3. A rank that is of the first kind grants what it has found: room, then granted = n. One of the second kind waits
 *     until each rank has either told it where its rows are (done) or asks. Those that ask come between the others, in
 *     the order of ranks: there is room, as those that know have left some for them. And nobody waits in a circle, as
 *     those that know wait for none of this.
 *  4. A rank that has asked sends its rows when all have granted it room.
 */
#include <stddef.h>

#include "normal_masks.h"
#include "normal_steps.h"

static uint64_t asked_offset(const normal_t *mode, const xep_op_t *op, uint32_t rank)
{
    return mode->layout.asked + ((uint64_t)normal_index(mode, op) * mode->kit.shape->nranks + rank) * sizeof(uint64_t);
}

static int has_asked(const normal_t *mode, const xep_op_t *op, uint32_t rank)
{
    const _Atomic uint64_t *word = xep_kit_own(&mode->kit, asked_offset(mode, op, rank));
    return atomic_load_explicit(word, memory_order_acquire) == op->epoch;
}

/* ---- to ask ---- */

static void store_question(const void *opaque, const xep_op_t *op, uint32_t rank)
{
    const normal_t *mode = opaque;
    xep_kit_signal(&mode->kit, rank, asked_offset(mode, op, mode->kit.shape->rank), op->epoch);
}

static int question_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                             xep_transfer_t *transfer)
{
    const normal_t *mode = opaque;
    (void)rank;
    *transfer = (xep_transfer_t){.signal = 1,
                                 .signal_offset = asked_offset(mode, op, mode->kit.shape->rank),
                                 .value = op->epoch};
    return number == 0;
}

static xep_status_t ask_for_grants(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    return normal_must_ask(mode, op) ? xep_send(&mode->kit, op, store_question, question_transfer) : XEP_OK;
}

/* A rank that is out may have said all that it had to say: it grants nothing, and needs no rows. */
static const _Atomic uint64_t *granted_word(const void *opaque, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const normal_t *mode = opaque;
    *value_p = xep_kit_is_out(&mode->kit, rank) ? 0 : op->epoch;
    return &normal_line(mode, normal_index(mode, op), rank)->granted;
}

/* Rank has this rank's rows from begin on. XEP_ERR_PROTOCOL: it has no such rows. */
static xep_status_t check_grant(const normal_t *mode, xep_op_t *op, uint32_t rank, uint64_t begin)
{
    normal_slot_t *slot = normal_slot(mode, op->slot);
    const uint64_t room = mode->layout.common.recv_rows, rows = slot->routing->rows[rank];
    if (begin > room || rows > room - begin)
        return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
                                   "invalid room at rank %u: %llu rows from row %llu on (of %llu)", rank,
                                   (unsigned long long)rows, (unsigned long long)begin, (unsigned long long)room);
    slot->left->granted[rank] = begin;
    return XEP_OK;
}

/* Copied, then checked: a peer may still write. */
static xep_status_t take_grants(normal_t *mode, xep_op_t *op)
{
    const uint64_t *there = normal_slot(mode, op->slot)->routing->there;
    xep_status_t status = XEP_OK;
    for (uint32_t i = 0; i < op->with.count && status == XEP_OK; i++) {
        const uint32_t r = op->with.rank[i];
        const normal_line_t *line = normal_line(mode, normal_index(mode, op), r);
        status = check_grant(mode, op, r, xep_kit_is_out(&mode->kit, r) ? there[r] : line->room);
    }
    return status;
}

/* ---- to grant ---- */

/* Places of a rank that has asked itself: XEP_INPROGRESS as long as it does not know of somebody where its rows are. */
static xep_status_t fit_in(normal_t *mode, xep_op_t *op)
{
    normal_slot_t *slot = normal_slot(mode, op->slot);
    const uint64_t *begin = slot->routing->src_begin, room = mode->layout.common.recv_rows;
    uint64_t end = 0;
    for (uint32_t i = 0; i < op->with.count; i++) {
        const uint32_t r = op->with.rank[i];
        const normal_line_t *line = normal_line(mode, normal_index(mode, op), r);
        const uint64_t rows = begin[r + 1] - begin[r];
        slot->left->grants[r] = end;
        /* begin was written before done, in the same line */
        if (atomic_load_explicit(&line->done, memory_order_acquire) >= op->epoch) slot->left->grants[r] = line->begin;
        else if (!has_asked(mode, op, r)) return XEP_INPROGRESS;
        /* a begin within the rows of the rank before it would have rows stored on top of those */
        if (slot->left->grants[r] < end || slot->left->grants[r] > room || rows > room - slot->left->grants[r])
            return mode->kit.env
                ->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
                       "invalid place of rank %u: its %llu rows begin at row %llu (%llu, to end by %llu)", r,
                       (unsigned long long)rows, (unsigned long long)slot->left->grants[r], (unsigned long long)end,
                       (unsigned long long)room);
        end = slot->left->grants[r] + rows;
    }
    return XEP_OK;
}

/*
 * Once for each dispatch: all ranks that ask get answers from the same places, even after one more rank has gone out.
 * After an error no rank asks, unless ranks were told different things: then the digests say so.
 */
static xep_status_t find_room(normal_t *mode, xep_op_t *op)
{
    normal_slot_t *slot = normal_slot(mode, op->slot);
    xep_status_t status = XEP_OK;
    if (normal_left(mode, op)->placed) return XEP_OK;
    if (normal_must_ask(mode, op)) status = fit_in(mode, op);
    else
        for (uint32_t r = 0; r < mode->kit.shape->nranks; r++)
            slot->left->grants[r] = xep_kit_state(op)->verdict == XEP_OK ? slot->routing->src_begin[r] : 0;
    normal_left(mode, op)->placed = status == XEP_OK;
    return status;
}

/* A wire that takes nothing now is asked again in the next turn. */
static xep_status_t tell_grant(normal_t *mode, const xep_op_t *op, uint32_t rank)
{
    normal_slot_t *slot = normal_slot(mode, op->slot);
    xep_wire_t *wire = mode->kit.env->wire;
    const uint64_t line = normal_line_there(mode, op);
    xep_status_t status = XEP_OK;
    if (mode->kit.base[rank] != NULL) {
        *(uint64_t *)(void *)(mode->kit.base[rank] + line + offsetof(normal_line_t, room)) = slot->left->grants[rank];
        xep_kit_signal(&mode->kit, rank, line + offsetof(normal_line_t, granted), op->epoch);
    } else {
        /* the wire may read it until the flush: find_room() writes grants once in a dispatch */
        status = wire->ops->put_signal(wire, rank, line + offsetof(normal_line_t, room), &slot->left->grants[rank],
                                       sizeof(uint64_t), line + offsetof(normal_line_t, granted), op->epoch);
    }
    if (status == XEP_OK) slot->left->told[rank] = op->epoch;
    return status < 0 ? status : XEP_OK;
}

/* A rank that asks has decided with this one that some rank is out: this one knows that, too, when it goes on. */
static xep_status_t serve_grants(normal_t *mode, xep_op_t *op)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    xep_status_t status = XEP_OK;
    if (normal_count_outs(mode) == 0) return XEP_OK;
    for (uint32_t i = 0; i < op->with.count && status == XEP_OK; i++) {
        const uint32_t r = op->with.rank[i];
        if (!has_asked(mode, op, r) || slot->left->told[r] == op->epoch) continue;
        status = find_room(mode, op);
        if (status == XEP_OK) status = tell_grant(mode, op, r);
    }
    return status < 0 ? status : XEP_OK;
}

static xep_status_t await_grants(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    normal_slot_t *slot = normal_slot(mode, op->slot);
    /* the places that all know; this rank says them with its done, where others may need them to fit in theirs */
    if (!normal_must_ask(mode, op)) {
        int counted = xep_kit_state(op)->verdict == XEP_OK;
        for (uint32_t r = 0; r < mode->kit.shape->nranks; r++)
            slot->left->granted[r] = counted ? slot->routing->there[r] : 0;
        return XEP_OK;
    }
    xep_status_t status = serve_grants(mode, op);
    if (status == XEP_OK) status = xep_step_wait(mode, op);
    return status == XEP_OK ? take_grants(mode, op) : status;
}

/* A rank that asks may be one whose rows this rank waits for: it sends none before it was granted room. */
static xep_status_t wait_and_serve(void *mode, xep_op_t *op)
{
    xep_status_t status = normal_wait_rows(mode, op);
    if (status != XEP_INPROGRESS) return status;
    xep_status_t served = serve_grants(mode, op);
    return served != XEP_OK ? served : status;
}

/* ---- where rows were put: said with done ---- */

static void store_done_and_begin(const void *opaque, const xep_op_t *op, uint32_t rank)
{
    const normal_t *mode = opaque;
    normal_line_t *there = (normal_line_t *)(void *)(mode->kit.base[rank] + normal_line_there(mode, op));
    there->begin = normal_left(mode, op)->granted[rank];
    normal_store_done(mode, op, rank);
}

/* Begin follows the digest in the line, and goes along with it. */
static int dispatch_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                             xep_transfer_t *transfer)
{
    const normal_t *mode = opaque;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const int more = normal_dispatch_transfer(mode, op, rank, number, transfer);
    if (!more || !transfer->signal) return more;
    slot->left->endings[rank] = (normal_ending_t){slot->digest, slot->left->granted[rank]};
    transfer->src = (const char *)&slot->left->endings[rank];
    transfer->bytes = sizeof slot->left->endings[rank];
    return more;
}

/* ---- combine ---- */

/* A reader that maps this rank does not know which gaps were closed here. */
static void store_begin(const void *opaque, const xep_op_t *op, uint32_t rank)
{
    const normal_t *mode = opaque;
    xep_combine_store_begin(&mode->kit, op, rank, normal_slot(mode, op->slot)->routing->src_begin[rank]);
}

/*
 * A mapped owner says with its offer where in its slot the rows of this rank begin: it may have closed gaps there that
 * this rank knows nothing of. The number lies where that owner can write, so it is checked before addresses are made of
 * it.
 */
static xep_status_t take_begins(void *opaque, xep_op_t *op)
{
    const normal_t *mode = opaque;
    xep_status_t status = XEP_OK;
    for (uint32_t i = 0; i < op->with.count && status == XEP_OK; i++) {
        const uint32_t r = op->with.rank[i];
        if (mode->kit.base[r] != NULL) status = check_grant(mode, op, r, xep_combine_begin_at(&mode->kit, op, r));
    }
    return status;
}

const xep_step_t normal_granting_steps[] = {
    {.at = XEP_AT_ROOM, .name = "questions for room to go out", .does = "ask for room", .run = ask_for_grants},
    {.at = XEP_AT_ROOM, .name = "grants", .does = "wait for room", .run = await_grants, .word = granted_word},
    {.at = XEP_AT_MOVE, .run = normal_move_masked, .store = store_done_and_begin, .transfers = dispatch_transfer},
    {.at = XEP_AT_ROWS, .run = wait_and_serve},
    {.at = XEP_AT_BEGINS, .name = "places", .does = "tell places", .run = xep_step_store, .store = store_begin},
    {.at = XEP_AT_FOUND, .name = "places", .does = "find places", .run = take_begins, .agreed = 1},
    {0},
};
