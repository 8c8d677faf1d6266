/* SPDX-License-Identifier: BSD-3-Clause */

/* Options end where the program begins, so that its own are never taken for ours. */
#include "run.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xep/version.h>

/* more than one machine starts; what a typing error gives is above it */
enum { RANKS_MAX = 4096 };

static const char usage[] =
    "usage: xep_run -n RANKS [options] PROGRAM [ARGUMENT]...\n"
    "Starts PROGRAM as RANKS ranks of one job on this machine.\n"
    "\n"
    "  -n RANKS     how many ranks (-np is the same)\n"
    "  -N NODES     spread the ranks over NODES virtual nodes, the same number on each but the last\n"
    "               (sets XEP_NODE_RANKS, unless it is set)\n"
    "  -k           when a rank fails, keep the others going\n"
    "  -t SECONDS   end the job after this time\n"
    "  -x NAME=VAL  set a variable, for the ranks alone\n"
    "  -l, --label  begin each line of output with the rank that wrote it, as by default with several ranks\n"
    "  -r, --raw    let ranks write as they like, in the middle of one another's lines (also: XEP_RUN_RAW=1)\n"
    "  -h, --help   this text\n"
    "  -V, --version\n"
    "\n"
    "Exit status: 0 when all ranks return 0; else of the rank that failed first (128 + N when signal N\n"
    "killed it); 124 at the end of the time, 125 when xep_run itself failed, 127 when PROGRAM cannot be run,\n"
    "2 for wrong options. Standard input goes to rank 0. SIGINT, SIGQUIT and SIGTERM reach the ranks, which have\n"
    "2 seconds to end; the same signal again ends them at once. SIGHUP, SIGUSR1 and SIGUSR2 only reach them.\n"
    "Whatever the ranks started and left behind is killed at the end.\n";

static const struct option long_options[] = {{"label", no_argument, NULL, 'l'},
                                             {"raw", no_argument, NULL, 'r'},
                                             {"help", no_argument, NULL, 'h'},
                                             {"version", no_argument, NULL, 'V'},
                                             {NULL, 0, NULL, 0}};

/* value NULL: there is none to show. */
static int wrong(const char *what, const char *value, const char *allowed)
{
    if (value == NULL) run_say("%s (%s)", what, allowed);
    else run_say("%s: \"%s\" (%s)", what, value, allowed);
    return RUN_EXIT_USAGE;
}

/* strtoul() takes "-1" and " 4": the first character says what it does not. */
static int parse_count(const char *text, uint32_t *count_p)
{
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value < 1 || value > RANKS_MAX) return -1;
    *count_p = (uint32_t)value;
    return 0;
}

/* Less than a millisecond becomes one, as 0 would be no limit. !(seconds > 0) refuses "nan", too. */
static int parse_seconds(const char *text, int64_t *millis_p)
{
    char *end;
    double seconds = strtod(text, &end);
    if (end == text || *end != '\0' || !(seconds > 0) || seconds > 1e9) return -1;
    *millis_p = seconds < 1e-3 ? 1 : (int64_t)(seconds * 1e3);
    return 0;
}

/* Not copied: argv stays as long as the process. -1: go on, as in all that takes options. */
static int add_set(run_options_t *options, char *text)
{
    if (strchr(text, '=') == NULL || text[0] == '=') return wrong("invalid -x", text, "NAME=VALUE");
    options->sets[options->nsets++] = text;
    return -1;
}

/* getopt takes "-np 4", as other launchers have it, for -n with the value "p". */
static int take_ranks(run_options_t *options, char **argv)
{
    const char *text = optarg;
    if (strcmp(text, "p") == 0 && argv[optind] != NULL) text = argv[optind++];
    return parse_count(text, &options->nranks) == 0 ? -1 : wrong("invalid -n", text, "1 to 4096 ranks");
}

/* What getopt does not take; optopt is 0 for a long option. */
static int refuse(int why, char **argv)
{
    const char letter[] = {'-', (char)optopt, '\0'}, *name = optopt == 0 ? argv[optind - 1] : letter;

    return why == ':' ? wrong("missing value", name, "xep_run --help says which")
                      : wrong("unknown option", name, "xep_run --help lists them");
}

/* -1: go on; else the exit status with which the process ends, after --help and --version as well. */
static int take_option(run_options_t *options, int option, char **argv)
{
    switch (option) {
    case 'n': return take_ranks(options, argv);
    case 'N': return parse_count(optarg, &options->nodes) == 0 ? -1 : wrong("invalid -N", optarg, "1 to 4096 nodes");
    case 't':
        return parse_seconds(optarg, &options->limit_ms) == 0 ? -1
                                                              : wrong("invalid -t", optarg, "seconds, more than 0");
    case 'x': return add_set(options, optarg);
    case 'k': options->keep_going = 1; return -1;
    case 'l': options->label = 1; return -1;
    case 'r': options->label = 0; return -1;
    case 'h': fputs(usage, stdout); return 0;
    case 'V': puts("xep_run " XEP_VERSION); return 0;
    default: return refuse(option, argv);
    }
}

/* Nodes have the same number of ranks but the last: 5 ranks on 4 nodes would be 2, 2 and 1, which is three. */
static int check(const run_options_t *options)
{
    uint32_t n = options->nranks, nodes = options->nodes;
    static const char example[] = "for example: xep_run -n 4 xep_perf; xep_run --help says more";
    if (n == 0) return wrong("number of ranks missing", NULL, example);
    if (options->program[0] == NULL) return wrong("program missing", NULL, example);
    if (nodes == 0) return -1;
    uint32_t each = (n + nodes - 1) / nodes, drawn = (n + each - 1) / each;
    if (drawn == nodes) return -1;
    run_say("invalid -N for %u ranks: %u (%u on each node make %u)", n, nodes, each, drawn);
    return RUN_EXIT_USAGE;
}

/*
 * "+" ends the options where the program's name is; ":" tells a missing value from an unknown option. Each -x takes a
 * word of argv at least, so argc is room for all. sets are the caller's when it goes on, and freed when it does not.
 */
int run_options_parse(run_options_t *options, int argc, char **argv)
{
    int option, status;
    *options = (run_options_t){.label = -1};
    options->sets = calloc((size_t)argc, sizeof *options->sets);
    if (options->sets == NULL) return RUN_EXIT_SELF;
    while ((option = getopt_long(argc, argv, "+:n:N:kt:x:lrhV", long_options, NULL)) != -1) {
        status = take_option(options, option, argv);
        if (status >= 0) goto done;
    }
    options->program = argv + optind;
    status = check(options);
    if (options->label < 0) options->label = options->nranks > 1 && getenv("XEP_RUN_RAW") == NULL;
    if (status < 0) return -1;
done:
    free(options->sets);
    return status;
}
