/* SPDX-License-Identifier: BSD-3-Clause */

/** xep_perf: times and checks dispatch and combine on the ranks of a job. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perf.h"
#include "perf_by_hand.h"
#include "perf_ops.h"
#include "perf_report.h"
#include "perf_say.h"
#include "perf_simulate.h"
#include "perf_time.h"

/* For xep_mode_each(): reason is NULL, or why the plugin was refused. 0: the next one, please. */
static int print_mode(void *arg, const char *name, const char *path, const char *brief, const char *reason)
{
    (void)arg;
    if (reason != NULL) printf("%-10s refused: %s (%s)\n", name, reason, path);
    else printf("%-10s %s (%s)\n", name, brief, path);
    return 0;
}

/* What needs no group, printed by one rank. Returns 0 when there was nothing of the kind. */
static int answer(const perf_options_t *options)
{
    if (!options->help && !options->version && !options->list) return 0;
    if (perf_launch_rank() > 0) return 1;
    if (options->help) perf_options_help();
    else if (options->version) printf("xep_perf %s\n", xep_version_string());
    else xep_mode_each(print_mode, NULL);
    return 1;
}

/* Every rank is likely to have the same trouble; those that have their own say so. */
static int refuse_group(xep_status_t status)
{
    const int own = status == XEP_ERR_NO_MEMORY || status == XEP_ERR_TRANSPORT;

    if (perf_launch_rank() <= 0 || own)
        fprintf(stderr, "xep_perf: %s: %s\n", xep_status_text(status), xep_last_error());
    else perf_leave_word();
    return PERF_EXIT_FAILED;
}

/* Every rank was given the same options: one of them says what is wrong, and all end with 2. */
static int refuse_options(const char *why)
{
    if (perf_launch_rank() <= 0) fprintf(stderr, "xep_perf: %s\n", why);
    else perf_leave_word();
    return PERF_EXIT_USAGE;
}

/* Checked before and after the timing: what a thousand operations have left behind is part of what must be right. */
static void measure(perf_t *perf)
{
    const perf_options_t *options = &perf->options;

    if (options->peer) perf_peer_open(perf);
    if (options->balance && !options->check_only) perf_layer_open(perf);
    if (options->check) perf_check(perf, options->seed);
    if (!options->check_only) perf_time(perf);
    if (options->check) perf_check(perf, options->seed + 1);
    if (options->check) perf->check_result = "ok";
    if (options->pressure) perf_pressure(perf);
}

/* Rank 0 alone prints. 0, or the exit status: a result that cannot be written makes a run fail. */
static int report(const perf_t *perf)
{
    const char *json = perf->options.json;

    if (perf->info.rank != 0) return 0;
    if (json == NULL || strcmp(json, "-") != 0) {
        perf_report(perf);
        perf_layer_report(perf);
    }
    return perf_json_write(perf);
}

static void close_point(perf_t *perf)
{
    perf_layer_close(perf->layer);
    perf_pieces_close(perf->pieces);
    perf_teardown(perf);
}

/* A check that failed is a result; an operation that failed leaves none. */
static void close_all(perf_t *perf)
{
    if (!strcmp(perf->check_result, "failed") || !strcmp(perf->pressure_result, "failed")) report(perf);
    close_point(perf);
    xep_group_destroy(perf->group);
}

/* One shape from its memory to its report, collective. */
static int run_point(perf_t *perf)
{
    perf_time_t times[PERF_OPS] = {0};
    char text[256];

    perf->times = times;
    perf_stop_if(perf, perf_json_complaint(perf, text, sizeof text), PERF_EXIT_FAILED);
    perf_setup(perf);
    if (perf->options.recv_rows != 0) perf_pieces_open(perf);
    measure(perf);
    const int ret = report(perf);
    close_point(perf);
    return ret;
}

/* Each point is a run of its own on the same group; the first that fails ends it. */
static int run_sweep(const perf_t *perf)
{
    const perf_sweep_t *sweep = &perf->options.sweep;
    int ret = 0;

    for (uint32_t at = 0; at < sweep->count && !ret; at++) {
        perf_t point = *perf;
        point.point = at;
        perf_options_sweep(&point.options, at);
        snprintf(point.progress_of, sizeof point.progress_of, "%s %" PRIu64 " (%" PRIu32 " of %" PRIu32 "), ",
                 sweep->name, sweep->values[at], at + 1, sweep->count);
        ret = run_point(&point);
    }
    return ret;
}

static int run(perf_t *perf)
{
    if (perf_launch_rank() < 0 && perf->info.nranks == 1)
        perf_say(perf, "no launcher, one rank (\"xep_run -n 4 xep_perf\" starts four)");
    return perf->options.sweep.count != 0 ? run_sweep(perf) : run_point(perf);
}

/*
 * What needs no group comes first, since to make one is to wait for all other ranks: wrong options, --help and its
 * like, and --simulate, whose ranks do not exist and which rank 0 works out by itself.
 */
int main(int argc, char **argv)
{
    perf_t perf = {.check_result = "off", .pressure_result = "off", .info = XEP_GROUP_INFO_INIT, .close = close_all};
    xep_status_t status;
    char why[512];
    int ret;

    if (perf_options_parse(argc, argv, &perf.options, why, sizeof why)) return refuse_options(why);
    if (answer(&perf.options)) return EXIT_SUCCESS;
    if (perf.options.simulate != NULL && perf_launch_rank() > 0) return EXIT_SUCCESS;
    if (perf.options.placement) return perf_report_placements(&perf.options);
    if (perf.options.simulate != NULL) return perf_report_simulation(&perf.options);
    status = xep_group_create(NULL, &perf.group);
    if (status != XEP_OK) return refuse_group(status);
    perf_must(&perf, xep_group_query(perf.group, &perf.info));
    ret = run(&perf);
    xep_group_destroy(perf.group);
    return ret;
}
