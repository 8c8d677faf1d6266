/* SPDX-License-Identifier: BSD-3-Clause */

/* One table has the name, the kind, the bounds and the help of every option: what --help says is what is parsed. */
#define _DEFAULT_SOURCE /* strsep */
#include "perf_options.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum { OPTION_FLAG, OPTION_COUNT, OPTION_TEXT } option_kind_t; /* int, uint64_t, const char * */

typedef struct option {
    const char *name, *value; /* value: its letter in the help */
    option_kind_t kind;
    size_t offset;      /* of its field, of the kind above, in perf_options_t */
    uint64_t low, high; /* of a count */
    const char *help;   /* its lines end at "\n", but for the last */
} option_t;

#define AT(_field) offsetof(perf_options_t, _field)

/* In the order of the help. Whether a count within its bounds also fits the memory is found out by perf_setup.c. */
static const option_t option_table[] = {
    {"--mode", "MODE", OPTION_TEXT, AT(mode), 0, 0, "plugin, see --list; default: XEP_MODE, else normal"},
    {"--op", "OP", OPTION_TEXT, AT(op), 0, 0, "what is timed: pair (default: both), dispatch, combine"},
    {"--tokens", "T", OPTION_COUNT, AT(tokens), 1, INT32_MAX,
     "tokens of a rank; default 4096, halved until it fits the free memory; 128\nby expert"},
    {"--hidden", "H", OPTION_COUNT, AT(hidden), 1, 1 << 24, "elements of a row; default 7168"},
    {"--topk", "K", OPTION_COUNT, AT(topk), 1, 1 << 16, "experts a token selects; default 8"},
    {"--experts", "E", OPTION_COUNT, AT(experts), 1, 1 << 20,
     "experts of all ranks together; default 256, 288 by expert"},
    {"--dtype", "TYPE", OPTION_TEXT, AT(dtype_name), 0, 0,
     "element type of a row: bf16 (default), fp16, fp32, or fp8: with a\n"
     "4-byte scale for each 128 elements, combined as bf16"},
    {"--routing", "HOW", OPTION_TEXT, AT(routing), 0, 0, "which experts tokens select, see below; default uniform"},
    {"--owners", "HOW", OPTION_TEXT, AT(owners), 0, 0, "which rank owns which experts, see below; default blocks"},
    {"--record", "FILE", OPTION_TEXT, AT(record), 0, 0, "write the routing of all ranks, for --routing file:FILE"},
    {"--simulate", "R,N", OPTION_TEXT, AT(simulate), 0, 0, "run nothing, say what R ranks need, N a node"},
    {"--rates", "LIST", OPTION_TEXT, AT(rates), 0, 0, "what the machines of --simulate can do, see below"},
    {"--placement", NULL, OPTION_FLAG, AT(placement), 0, 0,
     "with --simulate: what other places for experts would be worth"},
    {"--balance", "KIB", OPTION_COUNT, AT(balance), 1, 1 << 24,
     "also time a layer whose experts have KIB of weights, at their owners and\nbalanced"},
    {"--mask", "P", OPTION_COUNT, AT(mask), 0, 1000, "turn P of 1000 selections into -1, no expert; default 0"},
    {"--seed", "S", OPTION_COUNT, AT(seed), 0, UINT64_MAX, "seed of routing and data; default 1"},
    {"--iters", "N", OPTION_COUNT, AT(iters), 1, 1 << 20, "iterations that are timed; default 20"},
    {"--warmup", "N", OPTION_COUNT, AT(warmup), 0, 1 << 20, "iterations before those that are timed; default 3"},
    {"--slots", "S", OPTION_COUNT, AT(slots), 1, 64,
     "S operations in flight: S dispatches are begun, then awaited; then S\n"
     "combines; times are those of the whole divided by S; default 1, blocking"},
    {"--threads", "N", OPTION_COUNT, AT(threads), 0, 1024, "threads of a rank that copy; default: XEP_THREADS"},
    {"--memory", "KIND", OPTION_TEXT, AT(memory), 0, 0,
     "where rows are: host (default), or cuda: on a device for each rank"},
    {"--sms", "N", OPTION_COUNT, AT(sms), 1, 1024, "--memory cuda: multiprocessors that move rows; default 16"},
    {"--layout", "HOW", OPTION_TEXT, AT(layout), 0, 0,
     "arrangement of received rows: rank, one for each (token, rank); compact\n"
     "or padded, one for each selection, by expert; default: rank, with --mode\n"
     "ll compact"},
    {"--quant", "HOW", OPTION_TEXT, AT(quant_name), 0, 0,
     "cast on the way: none (default by rank), e4m3 (default by expert),\n"
     "e4m3_pow2, ue8m0, mxfp8, mxfp8_e5m2, mxfp4, nvfp4, int8, int8_row,\n"
     "e4m3_static (of 1/64)"},
    {"--payloads", "A,B", OPTION_TEXT, AT(payloads_text), 0, 0,
     "what travels beside each row: up to 8 arrays of so many bytes, each with\n"
     "an alignment if need be: 4,448:16"},
    {"--combine", "HOW", OPTION_TEXT, AT(combine_quant_name), 0, 0,
     "how outputs travel to ranks that are not mapped: none (default),\n"
     "logfmt, or one of the casts"},
    {"--sum-at-owner", NULL, OPTION_FLAG, AT(sum_at_owner), 0, 0,
     "by expert: a rank sums its experts' outputs of a token first, which are\n"
     "not weighted by the combine"},
    {"--split", NULL, OPTION_FLAG, AT(split), 0, 0, "also time the send and the receive phase separately"},
    {"--overlap", "US", OPTION_COUNT, AT(overlap), 1, 10000000,
     "also run both with US microseconds of computing between the phases, and\n"
     "say how much of the communication that hid"},
    {"--peer", NULL, OPTION_FLAG, AT(peer), 0, 0, "also time what a program for one machine would do by hand"},
    {"--in-place", NULL, OPTION_FLAG, AT(in_place), 0, 0,
     "also time dispatches whose rows are read in place, and a read of all\nrows, in place and copied"},
    {"--recv-rows", "N", OPTION_COUNT, AT(recv_rows), 1, INT64_MAX,
     "also time operations in pieces: of a buffer whose slots have room for N\nrows"},
    {"--pass-rows", "N", OPTION_COUNT, AT(pass_rows), 1, INT64_MAX,
     "rows of other nodes that a rank has room for at once (params.pass_rows)"},
    {"--waits", NULL, OPTION_FLAG, AT(waits), 0, 0, "also say for which ranks the others waited"},
    {"--cached", NULL, OPTION_FLAG, AT(cached), 0, 0, "dispatch with the routing of an earlier dispatch"},
    {"--copy-in", NULL, OPTION_FLAG, AT(copy_in), 0, 0, "combine from private memory instead of zero copy"},
    {"--check", NULL, OPTION_FLAG, AT(check), 0, 0, "compare every byte received, before and after timing"},
    {"--check-only", NULL, OPTION_FLAG, AT(check_only), 0, 0, "compare, and time nothing"},
    {"--pressure", "N", OPTION_COUNT, AT(pressure), 0, 1 << 30,
     "N more seeds, two runs of each: their hashes must be equal; with --check\n"
     "every byte is compared as well"},
    {"--sweep", "WHAT", OPTION_TEXT, AT(sweep_text), 0, 0,
     "measure several values of tokens, hidden, topk or sms: tokens=1..4096\n"
     "(1, 2, 4, ..), hidden=1024,7168; a line for each, and all in one JSON"},
    {"--json", "FILE", OPTION_TEXT, AT(json), 0, 0,
     "write the result as JSON; with -, to stdout and without the table"},
    {"--list", NULL, OPTION_FLAG, AT(list), 0, 0, "list the modes found"},
    {"--help", NULL, OPTION_FLAG, AT(help), 0, 0, "this text"},
    {"--version", NULL, OPTION_FLAG, AT(version), 0, 0, "the version"},
};

static const char help_intro[] =
    "usage: xep_perf [OPTION]...          one rank\n"
    "       LAUNCHER -n RANKS xep_perf [OPTION]...\n"
    "Times dispatch and combine, and what this machine needs at least to copy the same rows.\n"
    "\n";

/* What can be said to an option. What is printed, figure by figure, only man/xep_perf.1 tells. */
static const char help_end[] =
    "\n"
    "Routings, the K experts of a token out of E:\n"
    "  uniform    any of them\n"
    "  group:G,N  experts of N out of G groups\n"
    "  zipf:S     the n-th most popular expert in proportion to 1/n^S; the seed decides which is n-th\n"
    "  one-rank   experts of rank 0 alone; -1 where it owns fewer than K\n"
    "  self       experts of the token's own rank alone; -1 where it owns fewer than K\n"
    "  file:PATH  lines \"RANK TOKEN E0 E1 ..\", at most K experts, -1 or nothing for none, # comments. A rank has\n"
    "             as many tokens as its highest TOKEN plus 1, at most --tokens where that is given. Every rank\n"
    "             reads it.\n"
    "\n"
    "Owners of the E experts, with an owner map:\n"
    "  block        blocks in rank order, as without a map\n"
    "  cyclic       expert e on rank e modulo the ranks\n"
    "  greedy       experts by falling load, each to the rank that has least load so far\n"
    "  random:SEED  each expert on any rank\n"
    "  split:M      none on the first M ranks, blocks on the others\n"
    "  FILE         E ranks, between spaces or lines. Every rank reads it.\n"
    "\n"
    "Rates of the machines that --simulate is about, as NAME=NUMBER separated by commas; 0 means unlimited:\n"
    "  network    GB/s of a node over the network, in each direction, without headers of packets; default 12\n"
    "  rank       GB/s of one rank over the network; default 0\n"
    "  copy       GB/s that one rank copies or sums; default 8\n"
    "  memory     GB/s that the ranks of a node copy or sum together; default 0\n"
    "  latency    us until a signal over the network is seen; default 10\n"
    "  message    us of a processor for each message over the network, sent or received; default 1\n"
    "  piece      KiB, most of a message with rows; default 512\n"
    "  passing    rows that a rank has room for while they pass through it; default twice its tokens\n"
    "\n"
    "What is printed, figure by figure: man xep_perf (man/xep_perf.1 of the source; wheels have no manual).\n"
    "Exit status: 0; 1 when a check or an operation failed; 2 for wrong options.\n";

/*
 * 17 columns: two blanks, the longest option with its letter ("--simulate R,N"), and a blank. Further lines of a text
 * begin below the first.
 */
void perf_options_help(void)
{
    fputs(help_intro, stdout);
    for (size_t i = 0; i < sizeof option_table / sizeof *option_table; i++) {
        const option_t *option = &option_table[i];
        const char *line = option->help, *end;
        int indent = printf("  %s %s", option->name, option->value != NULL ? option->value : "");
        for (; (end = strchr(line, '\n')) != NULL; line = end + 1, indent = 0)
            printf("%*s%.*s\n", 17 - indent, "", (int)(end - line), line);
        printf("%*s%s\n", 17 - indent, "", line);
    }
    fputs(help_end, stdout);
}

/* strtoull() alone would take a sign, and whatever is behind the number. */
static int parse_count(perf_options_t *options, const option_t *option, const char *text, uint64_t *count)
{
    char *end;

    errno = 0;
    *count = strtoull(text, &end, 10);
    if (*text >= '0' && *text <= '9' && !*end && !errno && *count >= option->low && *count <= option->high) return 0;
    return perf_refuse(options, "invalid %s: \"%.100s\" (a whole number from %" PRIu64 " to %" PRIu64 ")", option->name,
                       text, option->low, option->high);
}

/* The option an argument names, and in *value_p what follows its "=", if anything. */
static const option_t *find_option(const char *argument, const char **value_p)
{
    const size_t length = strcspn(argument, "=");

    *value_p = argument[length] ? argument + length + 1 : NULL;
    if (!strcmp(argument, "-h")) argument = "--help";
    if (!strcmp(argument, "-V")) argument = "--version";
    for (size_t i = 0; i < sizeof option_table / sizeof *option_table; i++)
        if (strlen(option_table[i].name) == strcspn(argument, "=") &&
            !strncmp(option_table[i].name, argument, strcspn(argument, "=")))
            return &option_table[i];
    return NULL;
}

/*
 * Takes argv[at] and, where it is not in it, its value; returns how many arguments that were, or -1. argv ends with
 * NULL, so a value that is missing is NULL as well.
 */
static int take_argument(char **argv, int at, perf_options_t *options)
{
    const char *value;
    const option_t *option = find_option(argv[at], &value);
    const int inside = value != NULL;

    if (option == NULL) return perf_refuse(options, "unknown option: \"%s\" (xep_perf --help lists them)", argv[at]);
    if (option->kind == OPTION_FLAG) {
        if (inside) return perf_refuse(options, "unexpected value of %s: \"%s\" (it takes none)", option->name, value);
        *(int *)((char *)options + option->offset) = 1;
        return 1;
    }
    if (!inside) value = argv[at + 1];
    if (value == NULL)
        return perf_refuse(options, "missing value: %s (%s %s)", option->name, option->name, option->value);
    if (option->kind == OPTION_TEXT) *(const char **)((char *)options + option->offset) = value;
    else if (parse_count(options, option, value, (uint64_t *)((char *)options + option->offset))) return -1;
    return inside ? 1 : 2;
}

/* ---- sweep ---- */

static int refuse_sweep(perf_options_t *options, const char *allowed)
{
    return perf_refuse(options, "invalid --sweep: \"%s\" (%s)", options->sweep_text, allowed);
}

/* The option whose field is swept. */
static const option_t *find_swept(const char *text)
{
    static const char *const names[] = {"--tokens", "--hidden", "--topk", "--sms"};
    const char *unused;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t length = strlen(names[i] + 2);
        if (!strncmp(text, names[i] + 2, length) && text[length] == '=') return find_option(names[i], &unused);
    }
    return NULL;
}

/* A, 2 A, 4 A, ... B, and B also where it is no such multiple: 32 values at most, as B is below 2^31. */
static int fill_range(perf_sweep_t *sweep, uint64_t low, uint64_t high)
{
    if (low > high) return -1;
    for (uint64_t value = low; value < high; value *= 2) sweep->values[sweep->count++] = value;
    sweep->values[sweep->count++] = high;
    return 0;
}

/* "tokens=1..4096", "tokens=1,16,128" */
static int resolve_sweep(perf_options_t *options)
{
    static const char form[] = "tokens, hidden, topk or sms, as tokens=1..4096 or tokens=1,16,128";
    char list[512], *rest = list, *word;
    uint64_t low, high;
    if (options->sweep_text == NULL) return 0;
    const option_t *option = find_swept(options->sweep_text);
    if (option == NULL) return refuse_sweep(options, form);
    if (options->check_only) return refuse_sweep(options, "not with --check-only");
    options->sweep = (perf_sweep_t){.name = option->name + 2, .offset = option->offset};
    const char *values = strchr(options->sweep_text, '=') + 1;
    if (strlen(values) >= sizeof list)
        return perf_refuse(options, "invalid --sweep: %zu characters (at most %zu)", strlen(values), sizeof list - 1);
    snprintf(list, sizeof list, "%s", values);
    char *dots = strstr(list, "..");
    if (dots != NULL) {
        *dots = '\0';
        if (parse_count(options, option, list, &low) || parse_count(options, option, dots + 2, &high)) return -1;
        return fill_range(&options->sweep, low, high) ? refuse_sweep(options, form) : 0;
    }
    while ((word = strsep(&rest, ",")) != NULL) {
        if (options->sweep.count == PERF_SWEEP_MAX) return refuse_sweep(options, "at most 64 values");
        if (parse_count(options, option, word, &options->sweep.values[options->sweep.count++])) return -1;
    }
    return 0;
}

/* Every option that can be swept is a count, so its field is a uint64_t. */
void perf_options_sweep(perf_options_t *options, uint32_t at)
{
    *(uint64_t *)(void *)((char *)options + options->sweep.offset) = options->sweep.values[at];
}

/* ---- what depends on several ---- */

/*
 * The arrangement of rows decides on the defaults, and the sweep on what else is compared. By rank 4096 tokens and 256
 * experts are a batch of DeepSeek-V3's size; by expert it is a batch to decode. By rank, tokens may stay 0 here: how
 * many there are depends on the free memory (perf_setup.c).
 */
static int resolve(perf_options_t *options)
{
    if (strcmp(options->op, "pair") && strcmp(options->op, "dispatch") && strcmp(options->op, "combine"))
        return perf_refuse(options, "invalid --op: \"%s\" (pair, dispatch or combine)", options->op);
    if (perf_resolve_rows(options)) return -1;
    if (!options->tokens && options->by_expert) options->tokens = PERF_FEW_TOKENS;
    if (!options->experts) options->experts = options->by_expert ? 288 : 256;
    return resolve_sweep(options) ? -1 : perf_resolve_others(options);
}

/*
 * Later options win. Nothing is written before all of them fit together. Texts are not copied: they stay in argv, and
 * are valid as long as that.
 */
int perf_options_parse(int argc, char **argv, perf_options_t *options_p, char *why, size_t why_bytes)
{
    perf_options_t options = {.op = "pair",
                              .hidden = 7168,
                              .topk = 8,
                              .dtype_name = "bf16",
                              .combine_quant_name = "none",
                              .memory = "host",
                              .routing = "uniform",
                              .seed = 1,
                              .iters = 20,
                              .warmup = 3,
                              .slots = 1};
    int taken = 0;

    for (int at = 1; at < argc && taken >= 0; at += taken) taken = take_argument(argv, at, &options);
    if (taken < 0 || resolve(&options)) {
        snprintf(why, why_bytes, "%s", options.why);
        return -1;
    }
    options.check |= options.check_only;
    *options_p = options;
    return 0;
}
