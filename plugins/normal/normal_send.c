/* SPDX-License-Identifier: BSD-3-Clause */

/* Signals to everyone, puts to the ranks whose memory is not mapped, and waiting for theirs. */
#include "normal.h"

/* Contiguous rows are put together, but not in larger pieces than this: between two the wire may progress. */
enum { RUN_BYTES = 256 * 1024 };

xep_status_t normal_signal(normal_t *mode, uint32_t rank, uint64_t offset, uint64_t value)
{
    if (!mode->base[rank])
        return mode->env->wire->ops->put_signal(mode->env->wire, rank, 0, NULL, 0, offset, value);
    atomic_store_explicit((_Atomic uint64_t *)(mode->base[rank] + offset), value, memory_order_release);
    return XEP_OK;
}

static xep_status_t put(normal_t *mode, uint32_t rank, uint64_t offset, const void *src, size_t bytes)
{
    return bytes ? mode->env->wire->ops->put(mode->env->wire, rank, offset, src, bytes) : XEP_OK;
}

/* Rows from "row" on that lie one behind the other on both sides. */
static uint64_t run_length(const normal_part_t *part, uint64_t row)
{
    uint64_t most = part->bytes && part->bytes < RUN_BYTES ? RUN_BYTES / part->bytes : 1, run = 1;
    if (part->src_stride != part->bytes || part->stride != part->bytes) return 1;
    if (most > part->rows - row) most = part->rows - row;
    if (!part->index) return most;
    while (run < most && part->index[row + run] == part->index[row] + run) run++;
    return run;
}

static xep_status_t rows_put(normal_t *mode, uint32_t rank, const normal_part_t *part, uint64_t *row_p)
{
    while (*row_p < part->rows) {
        uint64_t run = run_length(part, *row_p), from = part->index ? part->index[*row_p] : *row_p;
        xep_status_t status = put(mode, rank, part->offset + *row_p * part->stride,
                                  part->src + from * part->src_stride, run * part->bytes);
        if (status != XEP_OK) return status;
        *row_p += run;
    }
    return XEP_OK;
}

xep_status_t normal_put_parts(normal_t *mode, xep_op_t *op, normal_part_fn describe)
{
    normal_cursor_t *cursor = &normal_state(op)->cursor;
    const xep_shape_t *shape = mode->shape;
    normal_part_t part;

    while (cursor->peer < shape->nranks) {
        uint32_t rank = (shape->rank + 1 + cursor->peer) % shape->nranks;
        for (; describe(mode, op, rank, cursor->part, &part); cursor->part++, cursor->row = 0) {
            if (part.blocked) return XEP_INPROGRESS;
            xep_status_t status = part.signal ? normal_signal(mode, rank, part.offset, part.value)
                                              : rows_put(mode, rank, &part, &cursor->row);
            if (status != XEP_OK) return status;
        }
        *cursor = (normal_cursor_t){.peer = cursor->peer + 1};
    }
    return XEP_OK;
}

xep_status_t normal_wait(normal_t *mode, xep_op_t *op)
{
    if (xep_words_arrived(mode->env, normal_step(op)->word, mode, op)) return XEP_OK;
    /* what the wire holds back may be what the others wait for */
    xep_status_t status = normal_flush(mode, op);
    return status < 0 ? status : XEP_INPROGRESS;
}

xep_status_t normal_flush(normal_t *mode, xep_op_t *op)
{
    (void)op;
    return mode->all_mapped ? XEP_OK : mode->env->wire->ops->flush(mode->env->wire);
}
