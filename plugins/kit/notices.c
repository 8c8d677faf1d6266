/* SPDX-License-Identifier: BSD-3-Clause */

#include "notices.h"

#include <string.h>

enum { WORD = sizeof(uint64_t) };

/* The same in every heap: source's line in the entry of this turn. It is the only one that writes there. */
static uint64_t offset_of(const xep_kit_t *kit, const xep_op_t *op, uint32_t source)
{
    return kit->layout->notices + xep_notices_entry_of(kit, op->turn, source) * XEP_NOTICE_BYTES;
}

const _Atomic uint64_t *xep_notices_word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const xep_kit_t *kit = mode;
    *value_p = op->epoch;
    return xep_kit_own(kit, offset_of(kit, op, rank));
}

/* All but the first word by plain stores, then that word with release: whoever sees the epoch sees the rest. */
static void store_line(const xep_kit_t *kit, const xep_op_t *op, uint64_t offset, const char *line, uint32_t rank)
{
    memcpy(kit->base[rank] + offset + WORD, line + WORD, XEP_NOTICE_BYTES - WORD);
    xep_kit_signal(kit, rank, offset, op->epoch);
}

void xep_notices_store(const xep_kit_t *kit, const xep_op_t *op, uint32_t rank, const void *notice)
{
    store_line(kit, op, offset_of(kit, op, kit->shape->rank), notice, rank);
}

void xep_notices_relay(const xep_kit_t *kit, const xep_op_t *op, uint32_t source, uint32_t rank)
{
    uint64_t offset = offset_of(kit, op, source);
    store_line(kit, op, offset, xep_kit_own(kit, offset), rank);
}

/*
 * The same over the wire: the word is its signal, and so comes after every put before it, those of the rows included.
 */
void xep_notices_transfer(const xep_kit_t *kit, const xep_op_t *op, const void *notice, xep_transfer_t *transfer)
{
    uint64_t offset = offset_of(kit, op, kit->shape->rank);
    *transfer = (xep_transfer_t){.signal = 1,
                                 .src = (const char *)notice + WORD,
                                 .bytes = XEP_NOTICE_BYTES - WORD,
                                 .offset = offset + WORD,
                                 .signal_offset = offset,
                                 .value = op->epoch};
}

/* A rank does not read its own line in the heap, where a peer that went wrong could have written. */
void xep_notices_take(const xep_kit_t *kit, const xep_op_t *op, uint32_t source, const void *own, void *notice)
{
    const void *said = source == kit->shape->rank ? own : xep_kit_own(kit, offset_of(kit, op, source));
    memcpy(notice, said, XEP_NOTICE_BYTES);
}
