/* SPDX-License-Identifier: BSD-3-Clause */

#include "perf_report.h"

/*
 * Four ways to count, as they are used by others: logical is every selection as if it travelled alone; dedup is a row
 * once for each rank; wire leaves out what stays on its rank; deepep is what DeepEP's benchmarks print, so that figures
 * can be laid beside theirs.
 */
void perf_bytes_of(const perf_t *perf, perf_op_t op, perf_bytes_t *bytes_p)
{
    const oracle_traffic_t *traffic = &perf->traffic;
    const double row = (double)(op == PERF_DISPATCH ? perf->placed_bytes + perf->placed_scales : perf->sum_bytes);
    const int by_selection = perf->options.by_expert && op == PERF_COMBINE; /* every output comes back */

    bytes_p->logical = row * (double)traffic->selections;
    bytes_p->dedup = row * (double)(by_selection ? traffic->selections : traffic->rows);
    bytes_p->wire = row * (double)(by_selection ? traffic->selections - traffic->own_selections
                                                : traffic->rows - traffic->own_rows);
    bytes_p->deepep = bytes_p->dedup / perf->info.nranks;
    if (perf->options.by_expert) /* DeepEP counts every selection, with a header of 16 bytes */
        bytes_p->deepep = (row + (op == PERF_DISPATCH ? 16 : 0)) * (double)traffic->selections / perf->info.nranks;
}

uint64_t perf_rows_of(const perf_t *perf)
{
    return perf->options.by_expert ? perf->traffic.selections : perf->traffic.rows;
}
