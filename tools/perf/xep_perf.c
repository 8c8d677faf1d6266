/* SPDX-License-Identifier: BSD-3-Clause */

/** xep_perf: times and checks dispatch and combine on the ranks of a job. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perf.h"
#include "perf_check.h"
#include "perf_peer.h"
#include "perf_pieces.h"
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
static int measure(perf_t *perf, perf_times_t *times_p)
{
    const perf_options_t *options = &perf->options;
    int ret = 0;

    if (options->peer) ret = perf_peer_open(perf, &perf->peer);
    if (!ret && options->check) ret = perf_check(perf, options->seed);
    if (!ret && !options->check_only) ret = perf_time(perf, times_p);
    if (!ret && options->check) ret = perf_check(perf, options->seed + 1);
    if (!ret && options->check) perf->check_result = "ok";
    if (!ret && options->pressure) ret = perf_pressure(perf);
    return ret;
}

/* A check that failed is a result; an operation that failed leaves none. */
static int has_result(const perf_t *perf, int ret)
{
    return !ret || !strcmp(perf->check_result, "failed") || !strcmp(perf->pressure_result, "failed");
}

/* Rank 0 alone prints. A result that cannot be written makes a run fail that had not failed before. */
static int report(const perf_t *perf, const perf_times_t *times, int ret)
{
    const int to_stdout = perf->options.json != NULL && !strcmp(perf->options.json, "-");

    if (perf->info.rank != 0 || !has_result(perf, ret)) return ret;
    if (!to_stdout) perf_report(perf, times);
    if (perf->options.json != NULL && perf_json_write(perf, times) && !ret) ret = PERF_EXIT_FAILED;
    return ret;
}

/*
 * One shape from its memory to its report, collective. perf_teardown() also takes what a setup that has failed half-way
 * has left.
 */
static int run_point(perf_t *perf)
{
    perf_times_t times = {0};
    char text[256];
    int ret;

    if (perf_complained(perf, perf_json_complaint(perf, text, sizeof text))) return PERF_EXIT_FAILED;
    ret = perf_setup(perf);
    if (!ret && perf->options.recv_rows != 0) ret = perf_pieces_open(perf);
    if (!ret) {
        ret = measure(perf, &times);
        ret = report(perf, &times, ret);
    }
    if (!ret && perf->options.balance != 0) ret = perf_balance(perf);
    perf_pieces_close(perf->pieces);
    perf_teardown(perf);
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

/* By one process, for ranks that do not exist. */
static int simulate(const perf_options_t *options)
{
    if (perf_launch_rank() > 0) return EXIT_SUCCESS;
    return options->placement ? perf_compare_placements(options)
                              : perf_simulate(options, NULL, perf_forecast_report, NULL);
}

/*
 * What needs no group comes first, since to make one is to wait for all other ranks: wrong options, --help and its
 * like, and --simulate, whose ranks do not exist and which rank 0 works out by itself.
 */
int main(int argc, char **argv)
{
    perf_t perf = {.check_result = "off", .pressure_result = "off", .info = XEP_GROUP_INFO_INIT};
    xep_status_t status;
    char why[512];
    int ret;

    if (perf_options_parse(argc, argv, &perf.options, why, sizeof why)) return refuse_options(why);
    if (answer(&perf.options)) return EXIT_SUCCESS;
    if (perf.options.simulate != NULL) return simulate(&perf.options);
    status = xep_group_create(NULL, &perf.group);
    if (status != XEP_OK) return refuse_group(status);
    status = xep_group_query(perf.group, &perf.info);
    ret = status == XEP_OK ? run(&perf) : perf_give_up(&perf, status);
    xep_group_destroy(perf.group);
    return ret;
}
