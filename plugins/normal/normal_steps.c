/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The steps of a plain buffer, those where some ranks are not mapped, and which features a buffer has: each has its own
 * steps in its own file.
 */
#include "normal_steps.h"

#include "normal_coded.h"
#include "normal_masks.h"
#include "normal_nodes.h"
#include "normal_pieces.h"

const xep_step_t normal_dispatch_steps[] = {
    {.at = XEP_AT_TELL,
     .name = "records to go out",
     .does = "send records",
     .run = xep_step_store,
     .store = normal_store_record},
    {.at = XEP_AT_HEAR, .name = "counts", .does = "wait for counts", .run = xep_step_wait, .word = normal_counts_word},
    {.at = XEP_AT_AGREE, .name = "agreement", .does = "agree", .run = normal_agree},
    {.at = XEP_AT_PLACES, .name = "places", .does = "find places", .run = normal_find_mapped_places, .agreed = 1},
    {.at = XEP_AT_MOVE,
     .name = "rows to go out",
     .does = "rows",
     .run = normal_move_mapped,
     .store = normal_store_done},
    {.at = XEP_AT_ROWS,
     .name = "rows",
     .does = "wait for rows",
     .run = xep_step_wait,
     .word = normal_done_word,
     .announced = {.offset = offsetof(normal_line_t, digest) - offsetof(normal_line_t, done),
                   .bytes = sizeof(normal_digest_t)}},
    {.at = XEP_AT_COMPARE, .name = "digests", .does = "compare digests", .run = normal_compare_digests},
    {.at = XEP_AT_END,
     .name = "the end",
     .does = "end",
     .run = normal_tell_rows,
     .kinds = XEP_KIND_PLAIN | XEP_KIND_CASTS},
    {0},
};

const xep_step_t normal_combine_steps[] = {
    {.at = XEP_AT_DRAIN, XEP_COMBINE_STEP_DRAIN},
    {.at = XEP_AT_INPUT, .name = "input", .does = "copy in", .run = normal_fill},
    {.at = XEP_AT_OFFER,
     .name = "rows to go out",
     .does = "offer",
     .run = xep_step_store,
     .store = xep_combine_store_offer},
    {.at = XEP_AT_READY, .name = "offers", .does = "wait for outputs", XEP_COMBINE_STEP_READY},
    {.at = XEP_AT_READY, XEP_COMBINE_STEP_AGREE},
    {.at = XEP_AT_SUM, .name = "sums", .does = "sum", .run = normal_sum, .agreed = 1},
    {.at = XEP_AT_READ, XEP_COMBINE_STEP_TELL_READ},
    {0},
};

/* Where some ranks are not mapped. */
static const xep_step_t wired[] = {
    {.at = XEP_AT_LISTS, .name = "rows to put", .does = "list them", .run = normal_list_puts},
    {.at = XEP_AT_TELL, .run = xep_step_send, .transfers = normal_record_transfer},
    {.at = XEP_AT_PLACES, .run = normal_find_places},
    {.at = XEP_AT_MOVE, .run = normal_move, .transfers = normal_dispatch_transfer},
    {.at = XEP_AT_ROWS, .run = normal_wait_rows},
    {.at = XEP_AT_FLUSH, XEP_STEP_FLUSH},
    {.at = XEP_AT_OFFER, .run = xep_step_send, .transfers = normal_combine_transfer},
    {.at = XEP_AT_LEAVE, XEP_STEP_FLUSH},
    {0},
};

static const xep_step_t by_selection[] = {
    {.at = XEP_AT_ORDER,
     .name = "sums",
     .does = "order them",
     .run = normal_order_by_selection,
     .kinds = XEP_KIND_PLAIN | XEP_KIND_CASTS},
    {0},
};

/* The later ones replace steps of those before; nodes, masks and pieces exclude one another, and a device all three. */
void normal_choose_steps(normal_t *mode)
{
    const xep_shape_t *shape = mode->kit.shape;
    const xep_env_t *env = mode->kit.env;
    const int wires = !mode->kit.all_mapped;
    const xep_step_t *const features[] = {
        wires ? wired : NULL,
        shape->sums_by_selection ? by_selection : NULL,
        normal_casts_steps,
        normal_coded_steps,
        shape->sends_in_place ? normal_in_place_steps : NULL,
        env->out != NULL ? normal_without_steps : NULL,
        env->out != NULL && wires ? normal_granting_steps : NULL,
        shape->in_pieces ? normal_in_pieces_steps : NULL,
        env->direct != NULL ? normal_direct_steps : NULL,
        shape->by_nodes ? normal_by_nodes_steps : NULL,
    };
    xep_steps_choose(mode, features, sizeof features / sizeof features[0],
                     shape->by_nodes ? mode->nodes->who.through : NULL);
}
