/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Grants: each receiver says where it has room for the rows of each source. Only where ranks may be left out and some
 * are not mapped: normal_masks.h says why.
 */
#include <stddef.h>

#include "normal.h"

/* This rank's line in the heaps of others. */
static uint64_t line_there(const normal_t *mode, const xep_op_t *op)
{
    return normal_mail_offset(mode, normal_index(mode, op), mode->kit.shape->rank);
}

/*
 * After an error nobody waits for them, unless ranks were told different things: then the digests say so. A copy, as
 * the places change when gaps are closed.
 */
static void make_grants(const normal_t *mode, const xep_op_t *op)
{
    normal_slot_t *slot = normal_slot(mode, op->slot);
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++)
        slot->grants[r] = xep_kit_state(op)->verdict == XEP_OK ? slot->routing->src_begin[r] : 0;
}

static void store_grant(const void *opaque, const xep_op_t *op, uint32_t rank)
{
    const normal_t *mode = opaque;
    uint64_t line = line_there(mode, op);
    *(uint64_t *)(void *)(mode->kit.base[rank] + line + offsetof(normal_mail_t, begin)) =
        normal_slot(mode, op->slot)->grants[rank];
    xep_kit_signal(&mode->kit, rank, line + offsetof(normal_mail_t, granted), op->epoch);
}

static int grant_part(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number, xep_part_t *part)
{
    const normal_t *mode = opaque;
    uint64_t line = line_there(mode, op);
    *part = (xep_part_t){.signal = 1,
                         .src = (const char *)&normal_slot(mode, op->slot)->grants[rank],
                         .bytes = sizeof(uint64_t),
                         .offset = line + offsetof(normal_mail_t, begin),
                         .signal_offset = line + offsetof(normal_mail_t, granted),
                         .value = op->epoch};
    return number == 0;
}

const _Atomic uint64_t *normal_granted_word(const void *opaque, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const normal_t *mode = opaque;
    *value_p = op->epoch;
    return &normal_mail(mode, normal_index(mode, op), rank)->granted;
}

xep_status_t normal_check_grant(const normal_t *mode, xep_op_t *op, uint32_t rank, uint64_t begin)
{
    normal_slot_t *slot = normal_slot(mode, op->slot);
    const uint64_t room = mode->layout.common.recv_rows, rows = slot->routing->rows[rank];
    if (begin > room || rows > room - begin)
        return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
                                   "rank %u has room for %llu rows at row %llu of %llu", rank, (unsigned long long)rows,
                                   (unsigned long long)begin, (unsigned long long)room);
    slot->granted[rank] = begin;
    return XEP_OK;
}

/* Copied, then checked: a peer may still write. */
static xep_status_t take_grants(normal_t *mode, xep_op_t *op)
{
    xep_status_t status = XEP_OK;
    for (uint32_t r = 0; r < mode->kit.shape->nranks && status == XEP_OK; r++)
        if (!xep_op_is_without(op, r))
            status = normal_check_grant(mode, op, r, normal_mail(mode, normal_index(mode, op), r)->begin);
    return status;
}

xep_status_t normal_exchange_grants(normal_t *mode, xep_op_t *op)
{
    if (!xep_kit_state(op)->told) make_grants(mode, op);
    xep_status_t status = xep_send(&mode->kit, op, store_grant, grant_part);
    if (status != XEP_OK || xep_kit_state(op)->verdict != XEP_OK) return status;
    status = xep_step_wait(mode, op);
    return status == XEP_OK ? take_grants(mode, op) : status;
}
