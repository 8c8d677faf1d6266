/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Dispatch where all ranks are mapped: a parcel is read where its source has it, and a notice says that all of it is
 * there. Nor are rows still coming when it begins (xep_op_t.coming): those are staged, which a buffer on one node never
 * is.
 */
#include "ll.h"

static xep_status_t send(void *mode, xep_op_t *op)
{
    ll_fill_items(mode, op);
    xep_send_stores(mode, op, ll_store_notice);
    return XEP_OK;
}

static xep_status_t copy_rows(void *mode, xep_op_t *op)
{
    ll_unpack_rows(mode, op);
    return XEP_OK;
}

const xep_step_t ll_mapped_send[] = {
    {.name = "room to send rows", .does = "plan and send", .run = send},
    {.name = "rows",
     .does = "wait for rows",
     .run = xep_step_wait,
     .word = xep_notices_word,
     .announced = XEP_NOTICE_ANNOUNCED,
     .rows_bits = XEP_FEED_ROWS_BITS,
     .receives = 1},
    {0},
};

const xep_step_t ll_mapped_take[] = {{.name = "rows", .does = "copy rows", .run = copy_rows, .agreed = 1}, {0}};
