/* SPDX-License-Identifier: BSD-3-Clause */

/** The result for people, on stdout. */
#ifndef PERF_REPORT_H
#define PERF_REPORT_H

#include "perf.h"
#include "perf_time.h"

void perf_report(const perf_t *perf, const perf_times_t *times);

/* ---- perf_report_json.c ---- */

/* The result for programs, in a file. */

/** Of what --json writes: grows when a reader of the old one would go wrong (docs/reference/formats.md). */
enum { PERF_JSON_FORMAT = 1 };

/** Before a long run: NULL, or why rank 0 cannot write the file. */
const char *perf_json_complaint(const perf_t *perf, char *text, size_t bytes);

/** 0, or -1 and said why. */
int perf_json_write(const perf_t *perf, const perf_times_t *times);

/* ---- perf_report_bytes.c ---- */

/* What the operations of a routing move. */

/** Bytes an operation moves, all ranks together but for deepep: a rank's average. */
typedef struct perf_bytes {
    double logical, dedup, wire, deepep;
} perf_bytes_t;

void perf_bytes_of(const perf_t *perf, perf_op_t op, perf_bytes_t *bytes_p);

/** Rows received by all ranks. */
/** How rows of an operation are cast on their way, and the bytes that one has then, with its scales. */
xep_quant_t perf_quant_of(const perf_t *perf, perf_op_t op);
size_t perf_row_bytes(const perf_t *perf, perf_op_t op);

/** What the cast loses: the root of the mean square by which channels are off, by that of the channels. 0: no cast. */
double perf_error_of(const perf_t *perf, perf_op_t op);

uint64_t perf_rows_of(const perf_t *perf);

#endif
