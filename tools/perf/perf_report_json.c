/* SPDX-License-Identifier: BSD-3-Clause */

/* The file is opened before the run: a name that cannot be written would else cost minutes of measuring. */
#include "perf_report.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"
#include "perf_machine.h"
#include "perf_ops.h"
#include "perf_time.h"

/* Each value is written with the comma behind it; what ends an object is written by hand for that. */
static void write_text(FILE *file, const char *name, const char *text)
{
    fprintf(file, "\"%s\": \"", name);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fprintf(file, "\\%c", *text);
        else if ((unsigned char)*text < 0x20) fprintf(file, "\\u%04x", (unsigned)*text);
        else fputc(*text, file);
    }
    fputs("\", ", file);
}

static void write_count(FILE *file, const char *name, uint64_t count)
{
    fprintf(file, "\"%s\": %" PRIu64 ", ", name, count);
}

/*
 * What was asked of the library and what it made of it: mode, threads and mapped are read back, since an environment
 * variable may have decided.
 */
static void write_shape(FILE *file, const perf_t *perf)
{
    const perf_options_t *options = &perf->options;
    xep_library_info_t library = XEP_LIBRARY_INFO_INIT;
    xep_buffer_info_t buffer = XEP_BUFFER_INFO_INIT;
    char text[512];

    xep_library_query(&library);
    xep_buffer_query(perf->buffer, &buffer);
    write_count(file, "format", PERF_JSON_FORMAT);
    write_text(file, "version", library.version);
    perf_command_line(text, sizeof text);
    write_text(file, "command", text);
    perf_machine_name(text, sizeof text);
    write_text(file, "machine", text);
    write_text(file, "mode", buffer.mode);
    write_count(file, "ranks", perf->info.nranks);
    write_count(file, "nodes", perf->info.nnodes);
    write_text(file, "path", buffer.path == XEP_PATH_NODES ? "nodes" : "flat");
    write_count(file, "tokens", perf->routing->tokens);
    write_count(file, "hidden", options->hidden);
    write_count(file, "topk", options->topk);
    write_count(file, "experts", options->experts);
    write_text(file, "dtype", options->dtype_name);
    write_text(file, "layout", options->layout);
    write_text(file, "quant", options->quant_name);
    write_text(file, "payloads", options->payloads_text != NULL ? options->payloads_text : "");
    write_text(file, "combine_quant", options->combine_quant_name);
    write_text(file, "routing", options->routing);
    write_count(file, "mask", options->mask);
    write_count(file, "seed", options->seed);
    write_count(file, "iters", options->iters);
    write_count(file, "slots", options->slots);
    write_text(file, "memory", options->memory);
    write_count(file, options->cuda ? "sms" : "threads", options->cuda ? buffer.multiprocessors : buffer.threads);
    fprintf(file, "\"cached\": %s, \"copy_in\": %s, \"sum_at_owner\": %s, ", options->cached ? "true" : "false",
            options->copy_in ? "true" : "false", options->sum_at_owner ? "true" : "false");
    write_text(file, "ucx", library.ucx_version);
    write_count(file, "mapped", perf->mapped);
    write_text(file, "clock", perf->one_clock ? "first begin to last end" : "slowest rank");
    write_text(file, "check", perf->check_result);
    write_text(file, "pressure", perf->pressure_result);
}

/* For each rank how much the others waited for it, and who waited how long: [late][waiting]. */
static void write_waits(FILE *file, const perf_t *perf, perf_op_t op)
{
    const uint32_t nranks = perf->info.nranks;
    perf_late_t late;

    fputs("\"waits\": [", file);
    for (uint32_t rank = 0; rank < nranks; rank++) {
        perf_waits_late(perf, op, rank, &late);
        fprintf(file,
                "%s{\"rank\": %" PRIu32 ", \"mean_us\": %.3f, \"max_us\": %.3f, \"percent\": %.1f, \"waited_us\": [",
                rank ? ", " : "", rank, late.mean, late.max, late.percent);
        for (uint32_t waiting = 0; waiting < nranks; waiting++)
            fprintf(file, "%s%.3f", waiting ? ", " : "", perf_waits_mean(perf, op, waiting, rank));
        fputs("]}", file);
    }
    fputs("], ", file);
}

/*
 * Times in us, bandwidth in GB/s of the median, the ratio as it is in the table. What belongs to an option is there
 * only with that option: xep_plot looks at which keys it finds.
 */
static void write_op(FILE *file, const perf_t *perf, perf_op_t op, const perf_time_t *time)
{
    const double us = time->median * 1e3; /* bytes over this are GB/s */
    perf_bytes_t bytes;

    perf_bytes_of(perf, op, &bytes);
    fprintf(file, "{\"op\": \"%s\", \"rows\": %" PRIu64 ", ", op == PERF_DISPATCH ? "dispatch" : "combine",
            perf_rows_of(perf));
    fprintf(file, "\"us\": {\"p10\": %.3f, \"median\": %.3f, \"p90\": %.3f, \"p99\": %.3f}, \"cpu_us\": %.3f, ",
            time->p10, time->median, time->p90, time->p99, time->cpu);
    fprintf(file, "\"gbps\": {\"logical\": %.4f, \"dedup\": %.4f, \"wire\": %.4f, \"deepep\": %.4f}, ",
            bytes.logical / us, bytes.dedup / us, bytes.wire / us, bytes.deepep / us);
    if (perf_quant_of(perf, op) != XEP_QUANT_NONE) fprintf(file, "\"row_bytes\": %zu, ", perf_row_bytes(perf, op));
    if (perf->options.split) fprintf(file, "\"send_us\": %.3f, \"receive_us\": %.3f, ", time->send, time->receive);
    if (perf->options.overlap)
        fprintf(file, "\"computed_us\": %.3f, \"overlapped_us\": %.3f, \"hidden_percent\": %.1f, ", time->computed,
                time->overlapped, perf_time_hidden(time));
    if (perf->options.cuda) fprintf(file, "\"device_us\": %.3f, ", time->device);
    if (perf->options.waits) write_waits(file, perf, op);
    if (perf->options.peer) fprintf(file, "\"peer_us\": %.3f, \"peer_cpu_us\": %.3f, ", time->peer, time->peer_cpu);
    fprintf(file, "\"limit_us\": %.3f, \"limit_cpu_us\": %.3f, \"ratio\": %.4f}", time->limit, time->limit_cpu,
            perf_time_ratio(time));
}

/*
 * How many selections each expert gets, [E], and each rank's experts from each rank, [R][R]. The routing is drawn once
 * more for it, by rank 0 alone, as no rank keeps the selections of another one.
 */
static void write_load(FILE *file, const perf_t *perf)
{
    const uint32_t nranks = perf->info.nranks, nexperts = perf->routing->params.experts;
    uint64_t *load = oracle_alloc(nexperts * sizeof *load);

    for (uint32_t rank = 0; rank < nranks; rank++) oracle_count_selections(perf->routing, rank, load);
    fputs("\"load\": {\"experts\": [", file);
    for (uint32_t e = 0; e < nexperts; e++) fprintf(file, "%s%" PRIu64, e ? ", " : "", load[e]);
    fputs("], \"rows\": [", file);
    for (uint32_t from = 0; from < nranks; from++) {
        fputs(from ? ", [" : "[", file);
        for (uint32_t to = 0; to < nranks; to++)
            fprintf(file, "%s%" PRIu32, to ? ", " : "", perf->rank_rows[(size_t)from * nranks + to]);
        fputc(']', file);
    }
    fputs("]}, ", file);
    free(load);
}

/*
 * The object of one run, or of one point of a sweep. A point has no load, and no newline, as the next one may come
 * behind it.
 */
static void write_all(FILE *file, const perf_t *perf)
{
    const perf_time_t *times = perf->times;
    const perf_time_t *dispatch = &times[PERF_DISPATCH];
    const char *separator = "";

    fputc('{', file);
    write_shape(file, perf);
    if (perf->options.sweep.count == 0) write_load(file, perf);
    if (perf->options.in_place)
        fprintf(file,
                "\"in_place\": {\"us\": %.3f, \"cpu_us\": %.3f, \"read_us\": %.3f, \"read_cpu_us\": %.3f, "
                "\"copied_read_us\": %.3f, \"copied_read_cpu_us\": %.3f}, ",
                dispatch->in_place, dispatch->in_place_cpu, dispatch->in_place_read, dispatch->in_place_read_cpu,
                dispatch->read, dispatch->read_cpu);
    if (perf->pieces != NULL)
        fprintf(file,
                "\"pieces\": {\"room\": %" PRIu64 ", \"count\": %" PRIu64
                ", \"dispatch_us\": %.3f, \"combine_us\": %.3f}, ",
                perf->pieces->room, perf->pieces->count, times[PERF_DISPATCH].pieces, times[PERF_COMBINE].pieces);
    fputs("\"ops\": [", file);
    for (perf_op_t op = PERF_DISPATCH; op < PERF_OPS; op++) {
        if (!times[op].timed) continue;
        fputs(separator, file);
        write_op(file, perf, op, &times[op]);
        separator = ", ";
    }
    fputs(perf->options.sweep.count != 0 ? "]}" : "]}\n", file);
}

/* What a sweep ends with; the next point goes back by its length to write itself over it. */
static const char sweep_end[] = "\n]}\n";

/*
 * A sweep is one object in which each point has what a run has. It ends after every point: one that is interrupted
 * leaves what was measured. To a pipe the end comes with the last point: it cannot be taken back there.
 */
static int write_result(FILE *file, const void *arg)
{
    const perf_t *perf = arg;
    const int sweeps = perf->options.sweep.count != 0, is_last = perf->point + 1 == perf->options.sweep.count;

    if (perf->point != 0 && file != stdout && fseek(file, -(long)strlen(sweep_end), SEEK_END) != 0) return -1;
    if (perf->point != 0) fputs(",\n", file);
    else if (sweeps) fprintf(file, "{\"sweep\": \"%s\", \"results\": [\n", perf->options.sweep.name);
    write_all(file, perf);
    if (sweeps && (is_last || file != stdout)) fputs(sweep_end, file);
    return 0;
}

const char *perf_json_complaint(const perf_t *perf, char *text, size_t bytes)
{
    const char *path = perf->options.json;
    FILE *file;

    if (path == NULL || !strcmp(path, "-") || perf->info.rank != 0) return NULL;
    file = fopen(path, "a"); /* what is there stays until there is a result */
    if (file != NULL && fclose(file) == 0) return NULL;
    snprintf(text, bytes, "cannot write --json %s: %s", path, strerror(errno));
    return text;
}

/* A file that cannot be written, also at its end, is an error. */
int perf_json_file(const perf_options_t *options, const char *how, int (*write)(FILE *file, const void *arg),
                   const void *arg)
{
    const char *path = options->json;

    if (path == NULL) return 0;
    FILE *file = strcmp(path, "-") != 0 ? fopen(path, how) : stdout;
    int failed = file == NULL;
    if (!failed) {
        failed = write(file, arg);
        failed |= ferror(file);
        failed |= file == stdout ? fflush(file) : fclose(file);
    }
    if (failed) fprintf(stderr, "xep_perf: cannot write --json %s: %s\n", path, strerror(errno));
    return failed ? PERF_EXIT_FAILED : 0;
}

/* "r+": "a" would write behind the end of an earlier point wherever the file is wound to. */
int perf_json_write(const perf_t *perf)
{
    return perf_json_file(&perf->options, perf->point == 0 ? "w" : "r+", write_result, perf);
}
