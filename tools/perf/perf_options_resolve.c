/* SPDX-License-Identifier: BSD-3-Clause */

/* In the order in which they need one another: the mode decides on the layout, type and layout on the cast. */
#include "perf_options.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_payloads.h"

enum { FP8_BLOCK = 128 };

/* Names of the field, not of the header: fp8 is e4m3 with scales, as models have it. */
static int resolve_dtype(perf_options_t *options)
{
    static const struct {
        const char *name;
        xep_dtype_t dtype;
    } dtypes[] = {{"bf16", XEP_BF16}, {"fp16", XEP_FP16}, {"fp32", XEP_FP32}, {"fp8", XEP_E4M3}};

    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (!strcmp(options->dtype_name, dtypes[i].name)) {
            options->dtype = dtypes[i].dtype;
            return 0;
        }
    return perf_refuse(options, "invalid --dtype: \"%s\" (bf16, fp16, fp32 or fp8)", options->dtype_name);
}

/*
 * How rows arrive: what was asked for, or what the mode asked for is known to have. ll is known by its name, since no
 * plugin is loaded before there is a group.
 */
static int resolve_layout(perf_options_t *options)
{
    const char *env = getenv("XEP_MODE");

    if (options->mode == NULL) options->mode = env != NULL ? env : "normal";
    options->ll = !strcmp(options->mode, "ll");
    if (options->layout == NULL) options->layout = options->ll ? "compact" : "rank";
    options->padded = !strcmp(options->layout, "padded");
    options->by_expert = options->padded || !strcmp(options->layout, "compact");
    if (!options->by_expert && strcmp(options->layout, "rank"))
        return perf_refuse(options, "invalid --layout: \"%s\" (rank, compact or padded)", options->layout);
    if (options->padded && options->copy_in)
        return perf_refuse(options, "--copy-in cannot be used with this layout: padded (rank or compact)");
    return 0;
}

/* What is cast must be wider, outputs that are must be bf16. */
static int refuse_pair(perf_options_t *options)
{
    const char *option = NULL, *name = options->quant_name, *allowed = "bf16, fp16 or fp32";

    if (options->quant != XEP_QUANT_NONE && options->dtype == XEP_E4M3) option = "--quant";
    if (options->combine_quant != XEP_QUANT_NONE && options->dtype != XEP_BF16 && options->dtype != XEP_E4M3)
        option = "--combine", name = options->combine_quant_name, allowed = "bf16 or fp8";
    if (option == NULL) return 0;
    return perf_refuse(options, "%s %s cannot be used with this --dtype: %s (%s)", option, name, options->dtype_name,
                       allowed);
}

#define QUANT_(_name, _value, _text) {_name, _text},

/* outputs: LogFMT, too. -1, with the names that there are: no such cast. */
static int find_quant(perf_options_t *options, const char *option, const char *wanted, int outputs,
                      xep_quant_t *quant_p)
{
    static const struct {
        xep_quant_t quant;
        const char *name;
    } quants[] = {XEP_QUANT_LIST(QUANT_)};
    char known[256] = "";

    for (size_t i = 0; i < sizeof quants / sizeof *quants; i++) {
        const size_t used = strlen(known);
        if (!outputs && quants[i].quant == XEP_QUANT_LOGFMT) continue;
        *quant_p = quants[i].quant;
        if (!strcmp(wanted, quants[i].name)) return 0;
        snprintf(known + used, sizeof known - used, "%s%s", used == 0 ? "" : ", ", quants[i].name);
    }
    return perf_refuse(options, "invalid %s: \"%s\" (%s)", option, wanted, known);
}

/* Without the option rows by expert are cast to e4m3, unless they are fp8 already, and rows by rank are not. */
static int resolve_quant(perf_options_t *options)
{
    if (options->quant_name == NULL)
        options->quant_name = options->by_expert && options->dtype != XEP_E4M3 ? "e4m3" : "none";
    if (find_quant(options, "--quant", options->quant_name, 0, &options->quant) != 0 ||
        find_quant(options, "--combine", options->combine_quant_name, 1, &options->combine_quant) != 0)
        return -1;
    return refuse_pair(options);
}

/* "BYTES[:ALIGNMENT],...": whether they are sane the library says. */
static int resolve_payloads(perf_options_t *options)
{
    const char *at = options->payloads_text;
    for (char *end; at != NULL && options->npayloads < XEP_PAYLOADS_MOST; at = *end == ',' ? end + 1 : NULL) {
        xep_payload_t *payload = &options->payloads[options->npayloads++];
        payload->bytes = (uint32_t)strtoul(at, &end, 10);
        if (*end == ':') payload->alignment = (uint32_t)strtoul(end + 1, &end, 10);
        if (payload->bytes == 0 || (*end != ',' && *end != '\0')) break;
    }
    if (at == NULL) return 0;
    return perf_refuse(options, "invalid --payloads: \"%s\" (up to %d of BYTES or BYTES:ALIGNMENT, as 4,448:16)",
                       options->payloads_text, XEP_PAYLOADS_MOST);
}

int perf_resolve_rows(perf_options_t *options)
{
    const int fails = resolve_dtype(options) || resolve_layout(options) || resolve_quant(options);

    return fails ? -1 : resolve_payloads(options);
}

/* ---- what does not go together ---- */

typedef struct conflict {
    int is_there;
    const char *why;
} conflict_t;

static int refuse_conflicts(perf_options_t *options, const conflict_t *conflicts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (conflicts[i].is_there) return perf_refuse(options, "%s", conflicts[i].why);
    return 0;
}

#define NOT_ON_DEVICES(_option, _reason) _option " cannot be used with this --memory: cuda (host): " _reason
#define ON_DEVICES(_option)              _option " cannot be used with this --memory: host (cuda)"

/* Behind the sweep, which may be one of multiprocessors. */
static int resolve_memory(perf_options_t *options)
{
    const int sweeps_sms = options->sweep.count != 0 && options->sweep.offset == offsetof(perf_options_t, sms);
    const int cuda = !strcmp(options->memory, "cuda"), overlap = options->overlap != 0, split = options->split;
    const conflict_t conflicts[] = {
        {!cuda && options->sms, ON_DEVICES("--sms")},
        {!cuda && sweeps_sms, ON_DEVICES("--sweep sms")},
        {cuda && options->threads,
         NOT_ON_DEVICES("--threads", "kernels move rows, --sms says with how many multiprocessors")},
        {cuda && overlap, NOT_ON_DEVICES("--overlap", "the host takes no part between the phases")},
        {cuda && split, NOT_ON_DEVICES("--split", "the host takes no part between the phases")},
        {cuda && options->peer, NOT_ON_DEVICES("--peer", "it stores to memory that the hosts' processes share")},
        {cuda && options->waits, NOT_ON_DEVICES("--waits", "kernels wait, and the library does not see for whom")},
        {cuda && options->in_place, NOT_ON_DEVICES("--in-place", "devices have no send memory")},
        {cuda && options->recv_rows, NOT_ON_DEVICES("--recv-rows", "rows of devices do not come in pieces")},
        {cuda && options->npayloads, NOT_ON_DEVICES("--payloads", "the limit of a device is of rows alone")},
        {cuda && options->combine_quant, NOT_ON_DEVICES("--combine", "it is for ranks that are not mapped")},
    };

    options->cuda = cuda;
    if (!cuda && strcmp(options->memory, "host"))
        return perf_refuse(options, "invalid --memory: \"%s\" (host or cuda)", options->memory);
    return refuse_conflicts(options, conflicts, sizeof conflicts / sizeof *conflicts);
}

/*
 * The peer has rows by rank and one operation, and plans each. Rows in place are written before each dispatch. Pieces
 * have the outputs of others between them, which is half a combine; they are not padded, and their outputs go as they
 * are.
 */
static int resolve_extras(perf_options_t *options)
{
    const int several = options->slots != 1, pair = !strcmp(options->op, "pair");
    const conflict_t conflicts[] = {
        {options->recv_rows && (options->padded || options->combine_quant || options->sum_at_owner || options->cached ||
                                several || !pair),
         "--recv-rows cannot be used with --layout padded, --combine, --sum-at-owner, --cached, --slots above 1, or "
         "--op"},
        {options->in_place && (several || !perf_times_dispatch(options)),
         "--in-place cannot be used with --slots above 1 or --op combine"},
        {options->peer &&
             (options->by_expert || options->cached || options->copy_in || several || options->npayloads != 0),
         "--peer cannot be used with rows by expert, --cached, --copy-in, --payloads or --slots above 1"},
        {options->balance && (options->dtype != XEP_BF16 || options->cuda || options->combine_quant || several ||
                              !perf_times_dispatch(options)),
         "--balance cannot be used with other rows than bf16 in host memory, --slots above 1 or --op combine"},
    };

    return refuse_conflicts(options, conflicts, sizeof conflicts / sizeof *conflicts);
}

#define NOT_SIMULATED(_what) "--simulate cannot be used with " _what

/* Without --simulate nothing is simulated; with it, nothing that looks at operations that are run. */
static int resolve_cluster(perf_options_t *options)
{
    const int simulates = options->simulate != NULL;
    const conflict_t conflicts[] = {
        {!simulates && options->rates != NULL, "--rates cannot be used without --simulate"},
        {!simulates && options->placement, "--placement cannot be used without --simulate"},
        {options->placement && (options->owners != NULL || options->record != NULL),
         "--placement cannot be used with --owners or --record"},
        {simulates && options->by_expert && !options->ll, NOT_SIMULATED("rows by expert")},
        {simulates && !options->by_expert && options->ll, NOT_SIMULATED("rows by rank")},
        {simulates && options->padded, NOT_SIMULATED("--layout padded")},
        {simulates && options->cuda, NOT_SIMULATED("--memory cuda")},
        {simulates && options->sweep.count, NOT_SIMULATED("--sweep")},
        {simulates && (options->check || options->check_only), NOT_SIMULATED("--check")},
        {simulates && options->pressure, NOT_SIMULATED("--pressure")},
        {simulates && options->balance, NOT_SIMULATED("--balance")},
        {simulates && options->split, NOT_SIMULATED("--split")},
        {simulates && options->overlap, NOT_SIMULATED("--overlap")},
        {simulates && options->peer, NOT_SIMULATED("--peer")},
        {simulates && options->waits, NOT_SIMULATED("--waits")},
        {simulates && options->in_place, NOT_SIMULATED("--in-place")},
        {simulates && options->cached, NOT_SIMULATED("--cached")},
        {simulates && options->copy_in, NOT_SIMULATED("--copy-in")},
        {simulates && options->threads, NOT_SIMULATED("--threads")},
        {simulates && strcmp(options->op, "pair") != 0, NOT_SIMULATED("--op")},
    };

    if (perf_cluster_read(options)) return -1;
    return refuse_conflicts(options, conflicts, sizeof conflicts / sizeof *conflicts);
}

/* There must be experts enough for every value of a sweep. */
static uint64_t most_topk(const perf_options_t *options)
{
    uint64_t most = options->topk;
    for (uint32_t i = 0; options->sweep.offset == offsetof(perf_options_t, topk) && i < options->sweep.count; i++)
        if (options->sweep.values[i] > most) most = options->sweep.values[i];
    return most;
}

static int resolve_topk(perf_options_t *options)
{
    if (most_topk(options) <= options->experts) return 0;
    return perf_refuse(options, "invalid --topk: %" PRIu64 " (at most --experts, %" PRIu64 ")", most_topk(options),
                       options->experts);
}

/*
 * In this order: memory and top-k are compared with what a sweep has; --simulate is refused with much that the others
 * have found out.
 */
int perf_resolve_others(perf_options_t *options)
{
    char reason[256];

    if (resolve_memory(options) || resolve_extras(options) || resolve_topk(options) || resolve_cluster(options))
        return -1;
    if (!oracle_route_parse(options->routing, &options->route, reason, sizeof reason)) return 0;
    return perf_refuse(options, "invalid --routing: %s", reason);
}

/* ---- what is made of them ---- */

/* fp8 rows travel with scales and are combined as bf16, which is what models do. */
oracle_shape_t perf_shape_of(const perf_options_t *options)
{
    const int fp8 = options->dtype == XEP_E4M3;
    /* there combine has the weights, and they need not travel, unless it does without */
    const int weights = !options->by_expert || options->sum_at_owner;

    return (oracle_shape_t){
        .hidden = (uint32_t)options->hidden,
        .nscales = fp8 ? (uint32_t)((options->hidden + FP8_BLOCK - 1) / FP8_BLOCK) : 0,
        .dtype = options->dtype,
        .combine_dtype = fp8 ? XEP_BF16 : options->dtype,
        .idx_dtype = XEP_INT64,
        .scales_dtype = XEP_FP32,
        .weights = weights,
        .sum_at_owner = options->sum_at_owner,
        .unweighted = options->sum_at_owner,
        .by_expert = options->by_expert,
        .padded = options->padded,
        .payloads = options->payloads,
        .npayloads = options->npayloads,
        .quant = options->quant,
        .quant_scale = options->quant == XEP_QUANT_E4M3_STATIC ? 1.0f / 64 : 0,
        .combine_quant = options->combine_quant,
        .combine_scale = options->combine_quant == XEP_QUANT_E4M3_STATIC ? 1.0f / 64 : 0,
    };
}

/* Mode ll has room for what casts alone add. */
uint32_t perf_scales_of(const oracle_shape_t *shape)
{
    return shape->by_expert && shape->npayloads == 0 ? shape->nscales : oracle_words_beside(shape);
}

oracle_routing_params_t perf_routing_of(const perf_options_t *options, uint32_t nranks, uint64_t tokens)
{
    return (oracle_routing_params_t){.spec = options->route,
                                     .seed = options->seed,
                                     .nranks = nranks,
                                     .experts = (uint32_t)options->experts,
                                     .topk = (uint32_t)options->topk,
                                     .mask = (uint32_t)options->mask,
                                     .owners = options->owners,
                                     .tokens = tokens};
}

uint64_t perf_tokens_of(const perf_options_t *options)
{
    return options->tokens || options->route.kind == ORACLE_ROUTE_FILE ? options->tokens : PERF_TOKENS;
}
