/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Dispatch where ranks may be left out (XEP_ON_FAILURE_MASK): what normal_masks.h and normal_grants.c say, around the
 * steps of any dispatch. Without grants the steps that are about these do nothing.
 */
#include "normal_grants.h"
#include "normal_masks.h"

/*
 * Step 3, not before a rank that is out stores nothing any more: it may count records that no survivor has, and so use
 * other places. Who knows more than this rank may have put rows behind those that it shows already: then the tail waits
 * for the last of them.
 */
static xep_status_t agree(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    if (!normal_is_quiet(mode, op)) return XEP_INPROGRESS;
    normal_imagine_records(mode, op);
    xep_status_t status = normal_take_records(mode, op, normal_find_left_record);
    if (mode->grants) normal_state(op)->changed = normal_count_outs(mode) != normal_state(op)->outs;
    if (status == XEP_OK) normal_show_agreed(mode, op, !normal_must_ask(mode, op));
    return status;
}

static xep_status_t find_places(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    xep_status_t status = mode->grants ? normal_await_grants(mode, op) : XEP_OK;
    if (status == XEP_OK && xep_kit_state(op)->verdict == XEP_OK) normal_fill_targets(mode, op);
    return status;
}

static void store_done(const void *opaque, const xep_op_t *op, uint32_t rank)
{
    const normal_t *mode = opaque;
    normal_line_t *there = (normal_line_t *)(void *)(mode->kit.base[rank] + normal_line_there(mode, op));
    if (mode->grants) there->begin = normal_slot(mode, op->slot)->granted[rank];
    normal_store_done(mode, op, rank);
}

/* "storing" is up from before the first row until behind the last one, over all turns, and down before any done. */
static xep_status_t move(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    uint64_t tokens = xep_kit_state(op)->verdict == XEP_OK ? normal_slot(mode, op->slot)->routing->tokens : 0;
    int fenced = normal_state(op)->moved < tokens;
    if (fenced && !normal_begin_storing(mode, op)) return XEP_INPROGRESS; /* the core will end it */
    xep_status_t status = normal_move_all(mode, op);
    if (status != XEP_OK) return status;
    if (fenced) normal_end_storing(mode);
    return xep_step_send(mode, op);
}

/* Who asks may be one of those whose rows this rank waits for, and sends none before it was granted room. */
static xep_status_t wait_rows(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    xep_status_t status = normal_wait_rows(mode, op);
    if (!mode->grants || status != XEP_INPROGRESS) return status;
    xep_status_t served = normal_serve_grants(mode, op);
    return served != XEP_OK ? served : status;
}

/* Step 6. The gaps that ranks have left that are out are closed only when no late store of theirs can come. */
static xep_status_t compare(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    if (!normal_is_quiet(mode, op)) return XEP_INPROGRESS;
    xep_status_t status = normal_compare_digests(mode, op);
    if (status != XEP_OK || xep_kit_state(op)->verdict != XEP_OK) return status;
    if (normal_state(op)->placed) status = normal_check_begins(mode, op);
    if (status != XEP_OK) return status;
    if (op->out != NULL || normal_state(op)->placed) normal_close_gaps(mode, op);
    return normal_show_received(mode, op);
}

const xep_step_t normal_masked_steps[] = {
    {.name = "records to go out",
     .does = "send records",
     .run = xep_step_send,
     .store = normal_store_record,
     .transfers = normal_record_transfer},
    {.name = "counts", .does = "wait for counts", .run = xep_step_wait, .word = normal_counts_word},
    {.name = "ranks that are out to store nothing any more", .does = "agree", .run = agree},
    {.name = "questions for room to go out", .does = "ask for room", .run = normal_ask_for_grants},
    {.name = "grants", .does = "find places", .run = find_places, .word = normal_granted_word},
    {.name = "rows to go out", .does = "rows", .run = move, .store = store_done, .transfers = normal_dispatch_transfer},
    {.name = "rows",
     .does = "wait for rows",
     .run = wait_rows,
     .word = normal_done_word,
     .announced = {.offset = offsetof(normal_line_t, digest) - offsetof(normal_line_t, done),
                   .bytes = sizeof(normal_digest_t)}},
    {.name = "ranks that are out to store nothing any more", .does = "compare digests", .run = compare},
    XEP_STEP_FLUSH,
    {.name = "the end", .does = "end", .run = normal_tell_rows},
    {0},
};
