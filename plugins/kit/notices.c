/* SPDX-License-Identifier: BSD-3-Clause */

#include "notices.h"

#include <string.h>

enum { WORD = sizeof(uint64_t) };

static uint64_t offset_of(const xep_kit_t *kit, const xep_op_t *op, uint32_t source)
{
    return kit->notices + xep_notices_entry_of(kit, op->turn, source) * XEP_NOTICE_BYTES;
}

const _Atomic uint64_t *xep_notices_word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const xep_kit_t *kit = mode;
    *value_p = op->epoch;
    return xep_kit_own(kit, offset_of(kit, op, rank));
}

void xep_notices_store(const xep_kit_t *kit, const xep_op_t *op, uint32_t rank, const void *notice)
{
    uint64_t offset = offset_of(kit, op, kit->shape->rank);
    memcpy(kit->base[rank] + offset + WORD, (const char *)notice + WORD, XEP_NOTICE_BYTES - WORD);
    xep_send_word(kit, rank, offset, op->epoch);
}

void xep_notices_part(const xep_kit_t *kit, const xep_op_t *op, const void *notice, xep_part_t *part)
{
    uint64_t offset = offset_of(kit, op, kit->shape->rank);
    *part = (xep_part_t){.signal = 1,
                         .src = (const char *)notice + WORD,
                         .bytes = XEP_NOTICE_BYTES - WORD,
                         .offset = offset + WORD,
                         .signal_offset = offset,
                         .value = op->epoch};
}

void xep_notices_take(const xep_kit_t *kit, const xep_op_t *op, uint32_t source, const void *own, void *notice)
{
    const void *said = source == kit->shape->rank ? own : xep_kit_own(kit, offset_of(kit, op, source));
    memcpy(notice, said, XEP_NOTICE_BYTES);
}
