/* SPDX-License-Identifier: BSD-3-Clause */

#include "perf_report.h"

#include <math.h>
#include <stdlib.h>

#include "oracle_alloc.h"
#include "oracle_cast.h"
#include "oracle_number.h"

/* Whether outputs take another way than as they are, and one by one: only to ranks that are not mapped. */
static int travels(const perf_t *perf)
{
    return perf->mapped < perf->info.nranks;
}

xep_quant_t perf_quant_of(const perf_t *perf, perf_op_t op)
{
    if (op == PERF_DISPATCH) return perf->options.quant;
    return travels(perf) ? perf->options.combine_quant : XEP_QUANT_NONE;
}

size_t perf_row_bytes(const perf_t *perf, perf_op_t op)
{
    if (op == PERF_DISPATCH) return perf->placed_bytes + perf->placed_scales;
    return travels(perf) ? oracle_travel_bytes(&perf->shape) : perf->sum_bytes;
}

/* Adds what a row is, squared, and what it is off by. */
static void add_row(const oracle_shape_t *cast, const void *row, uint16_t *arrived, double *sum, double *off)
{
    oracle_cast_journey(cast, row, arrived);
    for (uint32_t h = 0; h < cast->hidden; h++) {
        const double value = oracle_element(row, cast->dtype, h), by = value - oracle_bf16_to_float(arrived[h]);
        *sum += value * value;
        *off += by * by;
    }
}

double perf_error_of(const perf_t *perf, perf_op_t op)
{
    enum { ROWS = 64 };
    const oracle_shape_t *shape = &perf->shape;
    const int dispatch = op == PERF_DISPATCH;
    const oracle_shape_t cast = {.hidden = shape->hidden,
                                 .dtype = dispatch ? shape->dtype : shape->combine_dtype,
                                 .quant = perf_quant_of(perf, op),
                                 .quant_scale = dispatch ? shape->quant_scale : shape->combine_scale};
    void *row = oracle_alloc(shape->hidden * oracle_element_bytes(cast.dtype));
    uint16_t *arrived = oracle_alloc(shape->hidden * sizeof *arrived);
    double sum = 0, off = 0;

    for (uint32_t i = 0; cast.quant != XEP_QUANT_NONE && i < ROWS && i < perf->tokens; i++) {
        if (dispatch) oracle_fill_row(shape, perf->info.rank, i, row);
        else oracle_fill_output(shape, i % (uint32_t)perf->options.experts, perf->info.rank, i, row);
        add_row(&cast, row, arrived, &sum, &off);
    }
    free(arrived);
    free(row);
    return sum > 0 ? sqrt(off / sum) : 0;
}

/*
 * Four ways to count, as they are used by others: logical is every selection as if it travelled alone; dedup is a row
 * once for each rank; wire leaves out what stays on its rank, and is in the bytes that rows have on their way; deepep
 * is what DeepEP's benchmarks print, so that figures can be laid beside theirs.
 */
void perf_bytes_of(const perf_t *perf, perf_op_t op, perf_bytes_t *bytes_p)
{
    const oracle_traffic_t *traffic = &perf->traffic;
    const double row = (double)(op == PERF_DISPATCH ? perf->placed_bytes + perf->placed_scales : perf->sum_bytes);
    const int by_selection = perf->options.by_expert && op == PERF_COMBINE; /* every output comes back */

    bytes_p->logical = row * (double)traffic->selections;
    bytes_p->dedup = row * (double)(by_selection ? traffic->selections : traffic->rows);
    const int each = by_selection && !(perf->options.sum_at_owner && (travels(perf) || perf->options.cuda));
    bytes_p->wire = (double)perf_row_bytes(perf, op) *
                    (double)(each ? traffic->selections - traffic->own_selections : traffic->rows - traffic->own_rows);
    bytes_p->deepep = bytes_p->dedup / perf->info.nranks;
    if (perf->options.by_expert) /* DeepEP counts every selection, with a header of 16 bytes */
        bytes_p->deepep = (row + (op == PERF_DISPATCH ? 16 : 0)) * (double)traffic->selections / perf->info.nranks;
}

uint64_t perf_rows_of(const perf_t *perf)
{
    return perf->options.by_expert ? perf->traffic.selections : perf->traffic.rows;
}
