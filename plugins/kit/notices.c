/* SPDX-License-Identifier: BSD-3-Clause */

#include "notices.h"

#include <string.h>

enum { WORD = sizeof(uint64_t) };

uint64_t xep_notices_ring(const xep_shape_t *shape)
{
    return 2 * (uint64_t)shape->slots;
}

uint64_t xep_notices_lay(const xep_shape_t *shape, xep_carve_t *control)
{
    return xep_carve_offset(control, xep_notices_ring(shape) * shape->nranks, XEP_NOTICE_BYTES);
}

uint64_t xep_notices_entry(const xep_kit_t *kit, uint64_t turn)
{
    return turn % xep_notices_ring(kit->shape);
}

uint64_t xep_notices_entry_of(const xep_kit_t *kit, uint64_t turn, uint32_t source)
{
    return xep_notices_entry(kit, turn) * kit->shape->nranks + source;
}

/* The same in every heap: source's line in the entry of this turn. It is the only one that writes there. */
static uint64_t offset_of(const xep_kit_t *kit, const xep_op_t *op, uint32_t source)
{
    return kit->layout->notices + xep_notices_entry_of(kit, op->turn, source) * XEP_NOTICE_BYTES;
}

const _Atomic uint64_t *xep_notices_word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p)
{
    const xep_kit_t *kit = mode;
    *value_p = xep_rows_word(op->epoch, 0);
    return (const void *)(kit->hears_in[rank] + offset_of(kit, op, rank));
}

/* All but the first word by plain stores, then that word with release: whoever sees the epoch sees the rest. */
void xep_notices_store(const xep_kit_t *kit, const xep_op_t *op, uint32_t rank, const void *notice)
{
    uint64_t offset = offset_of(kit, op, kit->shape->rank), word;
    memcpy(&word, notice, WORD);
    memcpy(kit->base[rank] + offset + WORD, (const char *)notice + WORD, XEP_NOTICE_BYTES - WORD);
    xep_kit_signal(kit, rank, offset, word);
}

/* The same over the wire: the word is a signal, and so comes after all earlier puts, those of the rows included. */
void xep_notices_more(const xep_kit_t *kit, const xep_op_t *op, uint64_t rows, xep_transfer_t *transfer)
{
    *transfer = (xep_transfer_t){.signal = 1,
                                 .signal_offset = offset_of(kit, op, kit->shape->rank),
                                 .value = xep_rows_word(op->epoch, rows)};
}

void xep_notices_transfer(const xep_kit_t *kit, const xep_op_t *op, const void *notice, uint64_t rows,
                          xep_transfer_t *transfer)
{
    xep_notices_more(kit, op, rows, transfer);
    transfer->src = (const char *)notice + WORD;
    transfer->bytes = XEP_NOTICE_BYTES - WORD;
    transfer->offset = transfer->signal_offset + WORD;
}

/*
 * A rank does not read its own line in the heap, where a faulty peer could have written. The word of another rank may
 * grow meanwhile.
 */
void xep_notices_take(const xep_kit_t *kit, const xep_op_t *op, uint32_t source, const void *own, void *notice)
{
    const char *line = source == kit->shape->rank ? own : kit->hears_in[source] + offset_of(kit, op, source);
    uint64_t word = atomic_load_explicit((const _Atomic uint64_t *)(const void *)line, memory_order_relaxed);
    memcpy(notice, &word, WORD);
    memcpy((char *)notice + WORD, line + WORD, XEP_NOTICE_BYTES - WORD);
}
