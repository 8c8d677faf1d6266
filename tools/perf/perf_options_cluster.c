/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The words of --simulate and --rates, taken apart. In the structs everything is in bytes, seconds and bytes per
 * second, whatever its unit was on the command line.
 */
#define _DEFAULT_SOURCE /* strsep */
#include "perf_options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A rate that is not given is that of a node with 100 Gbit/s, of which TCP leaves 12 GB/s to rows. */
static const perf_cluster_t usual = {
    .rates = {.node_network = 12e9, .rank_memory = 8e9, .latency = 10e-6, .message = 1e-6},
    .message_bytes = 512 << 10,
};

typedef struct rate {
    const char *name, *unit;
    double factor; /* from that unit to the one of the field */
    size_t offset; /* of a double in perf_cluster_t */
} rate_t;

/* Most are rates of the model; the last two of the table are sizes, which lie beside these. */
#define RATE(_field) offsetof(perf_cluster_t, rates) + offsetof(xep_cost_rates_t, _field)

static const rate_t rate_table[] = {
    {"network", "GB/s", 1e9, RATE(node_network)},
    {"rank", "GB/s", 1e9, RATE(rank_network)},
    {"copy", "GB/s", 1e9, RATE(rank_memory)},
    {"memory", "GB/s", 1e9, RATE(node_memory)},
    {"latency", "us", 1e-6, RATE(latency)},
    {"message", "us", 1e-6, RATE(message)},
    {"piece", "KiB", 1 << 10, offsetof(perf_cluster_t, message_bytes)},
    {"passing", "rows", 1, offsetof(perf_cluster_t, pass_rows)},
};

enum { RATES = sizeof rate_table / sizeof *rate_table };

static const rate_t *find_rate(const char *name, size_t length)
{
    for (int i = 0; i < RATES; i++)
        if (strlen(rate_table[i].name) == length && !strncmp(rate_table[i].name, name, length)) return &rate_table[i];
    return NULL;
}

/*
 * NAME=NUMBER. The first character is looked at, as strtod() alone would take a sign, blanks, "inf" and "nan". A rate
 * of 0 is allowed and bounds nothing.
 */
static int take_rate(const char *word, perf_options_t *options)
{
    const size_t length = strcspn(word, "=");
    const rate_t *rate = find_rate(word, length);
    char *end;

    if (rate == NULL || word[length] != '=')
        return perf_refuse(options,
                           "invalid --rates: \"%s\" (NAME=NUMBER of network, rank, copy, memory, latency, message, "
                           "piece, passing)",
                           word);
    const char *number = word + length + 1;
    const double value = strtod(number, &end);
    if (*number < '0' || *number > '9' || *end || strpbrk(number, "xX") || !isfinite(value) || value > 1e9)
        return perf_refuse(options, "invalid --rates: \"%s\" (a number of %s from 0 to 1000000000)", word, rate->unit);
    *(double *)(void *)((char *)&options->cluster + rate->offset) = value * rate->factor;
    return 0;
}

/* In a copy, as strsep() writes into what it takes apart and the text is the user's own. */
static int take_rates(const char *text, perf_options_t *options)
{
    char list[512], *rest = list, *word;

    if (strlen(text) >= sizeof list)
        return perf_refuse(options, "invalid --rates: %zu characters (at most %zu)", strlen(text), sizeof list - 1);
    snprintf(list, sizeof list, "%s", text);
    while ((word = strsep(&rest, ",")) != NULL)
        if (take_rate(word, options)) return -1;
    return 0;
}

/* ---- ranks and nodes ---- */

static int refuse_job(perf_options_t *options, const char *allowed)
{
    return perf_refuse(options, "invalid --simulate: \"%s\" (%s)", options->simulate, allowed);
}

/* A number of ranks, in *end_p what follows it; 0: none. */
static uint32_t take_ranks(const char *text, const char **end_p)
{
    char *end;
    errno = 0;
    const unsigned long value = *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : 0;
    if (value == 0 || value > PERF_MOST_RANKS || errno) return 0;
    *end_p = end;
    return (uint32_t)value;
}

/* RANKS,PER_NODE; PER_NODE may be several, with + between them */
static int take_job(perf_options_t *options)
{
    static const char form[] = "RANKS,PER_NODE with 1 to 4096 ranks, as 64,8, or 16,8+4 for nodes of 8 and 4 in turn";
    const char *at = options->simulate;
    perf_cluster_t *cluster = &options->cluster;
    char separator = ',';

    cluster->nranks = take_ranks(at, &at);
    if (cluster->nranks == 0) return refuse_job(options, form);
    do {
        if (*at != separator) return refuse_job(options, form);
        if (cluster->nsizes == PERF_MOST_SIZES) return refuse_job(options, "at most 64 sizes of nodes");
        cluster->sizes[cluster->nsizes] = take_ranks(at + 1, &at);
        if (cluster->sizes[cluster->nsizes++] == 0) return refuse_job(options, form);
        separator = '+';
    } while (*at);
    return 0;
}

/* The sizes are used in turn, over and over, until all ranks have a node; the last one gets what is left. */
uint32_t perf_cluster_nodes(const perf_cluster_t *cluster, uint32_t *node)
{
    uint32_t n = 0;
    for (uint32_t rank = 0; rank < cluster->nranks; n++)
        for (uint32_t i = 0; i < cluster->sizes[n % cluster->nsizes] && rank < cluster->nranks; i++) node[rank++] = n;
    return n;
}

/* ---- both ---- */

int perf_cluster_read(perf_options_t *options)
{
    options->cluster = usual;
    if (options->simulate != NULL && take_job(options)) return -1;
    return options->rates != NULL ? take_rates(options->rates, options) : 0;
}
