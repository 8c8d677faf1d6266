/* SPDX-License-Identifier: BSD-3-Clause */

/* Steps where ranks may be left out (XEP_ON_FAILURE_MASK): normal_masks.h and normal_grants.c say why. */
#include "normal_grants.h"
#include "normal_masks.h"
#include "normal_steps.h"

/* ---- dispatch ---- */

/*
 * Step 3, only once ranks that are out no longer store: they may count records that no survivor has, and so use other
 * places. A verdict that was taken over is not compared again. A rank that knows more than this one may have put rows
 * behind those that it shows already: then the tail waits for the last of them.
 */
xep_status_t normal_agree_masked(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    if (!normal_is_quiesced(mode, op)) return XEP_INPROGRESS;
    normal_imagine_records(mode, op);
    xep_status_t status = normal_take_records(mode, op, normal_find_left_record);
    if (status != XEP_OK) return status;
    if (!op->is_ruled) normal_judge_room(mode, op);
    if (mode->grants) normal_state(op)->changed = normal_count_outs(mode) != normal_state(op)->outs;
    normal_conclude(mode, op);
    if (xep_kit_state(op)->verdict == XEP_OK && !normal_must_ask(mode, op)) normal_show_tail(op);
    return XEP_OK;
}

void normal_store_done_masked(const void *opaque, const xep_op_t *op, uint32_t rank)
{
    const normal_t *mode = opaque;
    normal_line_t *there = (normal_line_t *)(void *)(mode->kit.base[rank] + normal_line_there(mode, op));
    if (mode->grants) there->begin = normal_slot(mode, op->slot)->granted[rank];
    normal_store_done(mode, op, rank);
}

/* "storing" is set from before the first row until after the last one, over all turns, and cleared before any done. */
xep_status_t normal_move_masked(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    uint64_t tokens = xep_kit_state(op)->verdict == XEP_OK ? normal_slot(mode, op->slot)->routing->tokens : 0;
    int fenced = normal_state(op)->moved < tokens;
    if (fenced && !normal_begin_storing(mode, op)) return XEP_INPROGRESS; /* the core will end it */
    xep_status_t status = normal_move_rows(mode, op);
    if (status != XEP_OK) return status;
    if (fenced) normal_end_storing(mode);
    return xep_step_send(mode, op);
}

/* A rank that asks may be one whose rows this rank waits for: it sends none before it was granted room. */
xep_status_t normal_wait_rows_masked(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    xep_status_t status = normal_wait_rows(mode, op);
    if (!mode->grants || status != XEP_INPROGRESS) return status;
    xep_status_t served = normal_serve_grants(mode, op);
    return served != XEP_OK ? served : status;
}

/* Step 6. Closes the gaps of excluded ranks only once no late store of theirs can arrive. */
xep_status_t normal_compare_masked(void *opaque, xep_op_t *op)
{
    normal_t *mode = opaque;
    if (!normal_is_quiesced(mode, op)) return XEP_INPROGRESS;
    xep_status_t status = normal_compare_digests(mode, op);
    if (status != XEP_OK || xep_kit_state(op)->verdict != XEP_OK) return status;
    if (normal_state(op)->placed) status = normal_check_begins(mode, op);
    if (status != XEP_OK) return status;
    if (op->out != NULL || normal_state(op)->placed) normal_close_gaps(mode, op);
    return XEP_OK;
}

/* ---- combine ---- */

normal_terms_t normal_list_terms(const normal_t *mode, const xep_op_t *op)
{
    const normal_routing_t *routing = normal_slot(mode, op->slot)->routing;
    uint64_t end = 0;
    if (op->out == NULL) return (normal_terms_t){routing->first, routing->dests, NORMAL_ALIKE};
    for (uint64_t t = 0; t < routing->tokens; t++) {
        mode->term_first[t] = end;
        for (uint64_t i = routing->first[t]; i < routing->first[t + 1]; i++)
            if (op->out[routing->dests[i].rank] == 0) mode->terms[end++] = routing->dests[i];
    }
    mode->term_first[routing->tokens] = end;
    return (normal_terms_t){mode->term_first, mode->terms, NORMAL_ALIKE};
}

xep_status_t normal_sum_masked(void *mode, xep_op_t *op)
{
    if (op->coming != 0) return XEP_INPROGRESS;
    const normal_terms_t terms = normal_list_terms(mode, op);
    return normal_sum_terms(mode, op, &terms);
}
