/* SPDX-License-Identifier: BSD-3-Clause */

/** The result for people, on stdout. */
#ifndef PERF_REPORT_H
#define PERF_REPORT_H

#include <stdio.h>

#include "perf.h"
#include "perf_time.h"

void perf_report(const perf_t *perf);

/** What a run and a simulated one have in common: the begin of a line. */
void perf_print_shape(const perf_options_t *options, uint64_t tokens);

/** Bytes an operation moves, all ranks together but for deepep: a rank's average. */
typedef struct perf_bytes {
    double logical, dedup, wire, deepep;
} perf_bytes_t;

void perf_bytes_of(const perf_t *perf, perf_op_t op, perf_bytes_t *bytes_p);

/** How rows of an operation are cast on their way, and the bytes that one has then, with its scales. */
xep_quant_t perf_quant_of(const perf_t *perf, perf_op_t op);
size_t perf_row_bytes(const perf_t *perf, perf_op_t op);

/** Rows received by all ranks. */
uint64_t perf_rows_of(const perf_t *perf);

/* ---- perf_report_json.c ---- */

/* The result for programs, in a file. */

/** Of what --json writes: grows when a reader of the old one would go wrong (docs/reference/formats.md). */
enum { PERF_JSON_FORMAT = 1 };

/** Before a long run: NULL, or why rank 0 cannot write the file. */
const char *perf_json_complaint(const perf_t *perf, char *text, size_t bytes);

/** Where --json asks for it, lets write() fill the file, opened how fopen() says, or stdout. 0 or the exit status. */
int perf_json_file(const perf_options_t *options, const char *how, int (*write)(FILE *file, const void *arg),
                   const void *arg);

/** Likewise, the result of the run. */
int perf_json_write(const perf_t *perf);

#endif
