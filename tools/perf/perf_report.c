/* SPDX-License-Identifier: BSD-3-Clause */

/* The table for people, printed by rank 0 alone. perf_report_json.c writes the same numbers for programs. */
#include "perf_report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "oracle_cast.h"
#include "perf_ops.h"
#include "perf_time.h"

static const char *const op_names[] = {[PERF_DISPATCH] = "dispatch", [PERF_COMBINE] = "combine"};

/* ---- what the operations of a routing move ---- */

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

/* ---- the table ---- */

void perf_print_shape(const perf_options_t *options, uint64_t tokens)
{
    printf("%" PRIu64 " tokens a rank, hidden %" PRIu64 " %s, top %" PRIu64 " of %" PRIu64
           " experts, routing %s, seed %" PRIu64,
           tokens, options->hidden, options->dtype_name, options->topk, options->experts, options->routing,
           options->seed);
    if (options->mask) printf(", %" PRIu64 " of 1000 masked", options->mask);
}

/*
 * The mode, the path and the type of sums are those of the buffer: where no option names them, variables or the library
 * have decided.
 */
static void print_head(const perf_t *perf)
{
    const perf_options_t *options = &perf->options;
    xep_library_info_t library = XEP_LIBRARY_INFO_INIT;
    xep_buffer_info_t buffer = XEP_BUFFER_INFO_INIT;

    xep_library_query(&library);
    xep_buffer_query(perf->buffer, &buffer);
    printf("xep %s, mode %s, %" PRIu32 " rank%s on %" PRIu32 " node%s (%" PRIu32 " mapped), ucx %s\n", library.version,
           buffer.mode, perf->info.nranks, perf->info.nranks == 1 ? "" : "s", perf->info.nnodes,
           perf->info.nnodes == 1 ? "" : "s", perf->mapped, library.ucx_version);
    perf_print_shape(options, perf->routing->tokens);
    if (options->by_expert) printf(", %s", options->layout);
    if (options->by_expert || options->quant != XEP_QUANT_NONE) printf(", quant %s", options->quant_name);
    if (options->npayloads != 0) printf(", payloads %s", options->payloads_text);
    if (options->combine_quant != XEP_QUANT_NONE) printf(", combine %s", options->combine_quant_name);
    if (options->sum_at_owner) printf(", sums at owners");
    printf("%s%s", options->cached ? ", cached" : "", options->copy_in ? ", copied in" : "");
    if (perf->info.nnodes > 1) printf(", path %s", buffer.path == XEP_PATH_NODES ? "nodes" : "flat");
    if (options->slots > 1) printf(", %" PRIu64 " in flight", options->slots);
    if (!options->check_only) printf(", %" PRIu64 " iterations", options->iters);
    printf("\n");
}

/* The columns are explained in man/xep_perf.1 and in docs/, under these names. */
static void print_columns(void)
{
    printf("%-8s %8s %10s %10s %10s %10s %11s %8s %7s %7s %7s %10s %6s\n", "op", "rows", "median", "p10", "p90", "p99",
           "cpu us", "logical", "dedup", "wire", "deepep", "us", "ratio");
}

/* Times in us. Bytes of all ranks together over microseconds over 1000 are GB/s. */
static void print_op(const perf_t *perf, perf_op_t op, const perf_time_t *time)
{
    perf_bytes_t bytes;

    perf_bytes_of(perf, op, &bytes);
    printf("%-8s %8" PRIu64 " %10.1f %10.1f %10.1f %10.1f %11.1f %8.2f %7.2f %7.2f %7.2f %10.1f %6.2f\n", op_names[op],
           perf_rows_of(perf), time->median, time->p10, time->p90, time->p99, time->cpu,
           bytes.logical / time->median / 1e3, bytes.dedup / time->median / 1e3, bytes.wire / time->median / 1e3,
           bytes.deepep / time->median / 1e3, time->limit, perf_time_ratio(time));
}

/* What a cast makes of a row. */
static void print_quant(const perf_t *perf, perf_op_t op, const perf_time_t *time)
{
    (void)time;
    const xep_quant_t quant = perf_quant_of(perf, op);
    const size_t whole = op == PERF_DISPATCH ? perf->row_bytes : perf->sum_bytes;

    if (quant == XEP_QUANT_NONE) return;
    printf("%-8s by %s: %zu bytes a row, not %zu\n", op_names[op],
           op == PERF_DISPATCH ? perf->options.quant_name : perf->options.combine_quant_name, perf_row_bytes(perf, op),
           whole);
}

/*
 * What the operation is without the calls and waits of the host. Here bandwidth is that of one device, so that it can
 * be compared with what its links can do: bytes to other ranks, over the number of ranks.
 */
static void print_device(const perf_t *perf, perf_op_t op, const perf_time_t *time)
{
    xep_buffer_info_t buffer = XEP_BUFFER_INFO_INIT;
    perf_bytes_t bytes;

    if (!perf->options.cuda) return;
    xep_buffer_query(perf->buffer, &buffer);
    perf_bytes_of(perf, op, &bytes);
    printf("%-8s on the device %.1f us, %" PRIu32 " SMs, %.1f GB/s from each device to the others\n", op_names[op],
           time->device, buffer.multiprocessors, bytes.wire / perf->info.nranks / time->device / 1e3);
}

/* Each phase is that of its slowest rank, which need not be the same one: both together may be more than the median. */
static void print_phases(const perf_t *perf, perf_op_t op, const perf_time_t *time)
{
    if (perf->options.split) printf("%-8s send %.1f us, receive %.1f us\n", op_names[op], time->send, time->receive);
    if (!perf->options.overlap) return;
    printf("%-8s with %" PRIu64 " us of computing between send and receive", op_names[op], perf->options.overlap);
    if (perf->options.slots > 1)
        printf(" of %" PRIu64 " operations, %.1f us for each", perf->options.slots, time->computed);
    printf(": %.1f us, %.0f %% of the communication hidden\n", time->overlapped, perf_time_hidden(time));
}

/* Below 1: xep is faster than what a program for one machine would do by hand. */
static void print_peer(const perf_t *perf, perf_op_t op, const perf_time_t *time)
{
    if (!perf->options.peer) return;
    printf("%-8s by hand %.1f us, ratio to it %.2f\n", op_names[op], time->peer, time->median / time->peer);
}

/* Times in us; the ratio is to beside, 0 where there is nothing to compare with. */
static void print_in_place_line(const char *what, double us, double cpu, double beside)
{
    printf("%-24s %10.1f us, cpu %10.1f, ratio %.2f\n", what, us, cpu, beside > 0 ? us / beside : 0);
}

/* The last line is what both others are compared with: copying pays only for who reads rows more than once. */
static void print_in_place(const perf_time_t *time)
{
    print_in_place_line("in place, not read", time->in_place, time->in_place_cpu, time->limit);
    print_in_place_line("in place, and one read", time->in_place_read, time->in_place_read_cpu, time->read);
    print_in_place_line("copied, and one read", time->read, time->read_cpu, time->read);
}

/* What comes back before the last piece is a part of the first time, so both together are what is compared. */
static void print_pieces(const perf_t *perf, const perf_time_t *times)
{
    const double dispatch = times[PERF_DISPATCH].pieces, combine = times[PERF_COMBINE].pieces;
    const double whole = times[PERF_DISPATCH].median + times[PERF_COMBINE].median;

    printf("room for %" PRIu64 " rows: %" PRIu64
           " piece%s, rows %.1f us, combine %.1f us, ratio to room for all %.2f\n",
           perf->pieces->room, perf->pieces->count, perf->pieces->count == 1 ? "" : "s", dispatch, combine,
           whole > 0 ? (dispatch + combine) / whole : 0);
}

/* In us of one operation. Which of the others waited how long is in JSON. */
static void print_waits(const perf_t *perf, const perf_time_t *times)
{
    perf_late_t late;

    printf("%-8s %8s %10s %10s %10s\n", "waits", "for rank", "mean us", "max us", "percent");
    for (perf_op_t op = PERF_DISPATCH; op < PERF_OPS; op++)
        for (uint32_t rank = 0; times[op].timed && rank < perf->info.nranks; rank++) {
            perf_waits_late(perf, op, rank, &late);
            printf("%-8s %8" PRIu32 " %10.1f %10.1f %10.0f\n", op_names[op], rank, late.mean, late.max, late.percent);
        }
}

/* A line for each operation; the head of all before the first. */
static void print_point(const perf_t *perf)
{
    const perf_time_t *times = perf->times;
    const perf_sweep_t *sweep = &perf->options.sweep;

    if (perf->point == 0) {
        print_head(perf);
        printf("sweep of %s\n%8s ", sweep->name, sweep->name);
        print_columns();
    }
    for (perf_op_t op = PERF_DISPATCH; op < PERF_OPS; op++) {
        if (!times[op].timed) continue;
        printf("%8" PRIu64 " ", sweep->values[perf->point]);
        print_op(perf, op, &times[op]);
    }
    if (!strcmp(perf->check_result, "failed")) printf("check: failed\n");
    fflush(stdout);
}

static void print_table(const perf_t *perf)
{
    const perf_time_t *times = perf->times;
    static void (*const lines[])(const perf_t *perf, perf_op_t op,
                                 const perf_time_t *time) = {print_op, print_quant, print_phases, print_device,
                                                             print_peer};

    printf("%45s %36s %20s\n", "us", "GB/s", "limit");
    print_columns();
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        for (perf_op_t op = PERF_DISPATCH; op < PERF_OPS; op++)
            if (times[op].timed) lines[i](perf, op, &times[op]);
    if (perf->options.in_place) print_in_place(&times[PERF_DISPATCH]);
    if (perf->pieces != NULL) print_pieces(perf, times);
    if (perf->options.waits) print_waits(perf, times);
}

void perf_report(const perf_t *perf)
{
    if (perf->options.sweep.count != 0) {
        print_point(perf);
        return;
    }
    print_head(perf);
    if (!perf->options.check_only) print_table(perf);
    if (perf->options.check) printf("check: every byte compared, %s\n", perf->check_result);
    if (strcmp(perf->pressure_result, "off") != 0) /* it was come to */
        printf("pressure: two runs of %" PRIu64 " seeds, %s\n", perf->options.pressure, perf->pressure_result);
    fflush(stdout);
}
