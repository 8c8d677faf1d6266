/* SPDX-License-Identifier: BSD-3-Clause */

/* In the order in which they need one another: the mode decides on the layout, type and layout on the cast. */
#include "perf_resolve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names of the field, not of the header: fp8 is e4m3 with scales, as models have it. */
static int resolve_dtype(perf_options_t *options, char *why, size_t why_bytes)
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
    snprintf(why, why_bytes, "invalid --dtype: \"%s\" (bf16, fp16, fp32 or fp8)", options->dtype_name);
    return -1;
}

/*
 * How rows arrive: what was asked for, or what the mode asked for is known to have. ll is known by its name, since no
 * plugin is loaded before there is a group.
 */
static int resolve_layout(perf_options_t *options, char *why, size_t why_bytes)
{
    const char *env = getenv("XEP_MODE");

    if (options->mode == NULL) options->mode = env != NULL ? env : "normal";
    options->ll = !strcmp(options->mode, "ll");
    if (options->layout == NULL) options->layout = options->ll ? "compact" : "rank";
    options->padded = !strcmp(options->layout, "padded");
    options->by_expert = options->padded || !strcmp(options->layout, "compact");
    if (!options->by_expert && strcmp(options->layout, "rank")) {
        snprintf(why, why_bytes, "invalid --layout: \"%s\" (rank, compact or padded)", options->layout);
        return -1;
    }
    if (options->padded && options->copy_in) {
        snprintf(why, why_bytes, "--copy-in cannot be used with this layout: padded (rank or compact)");
        return -1;
    }
    return 0;
}

/* What is cast must be wider, outputs that are must be bf16. */
static int refuse_pair(const perf_options_t *options, char *why, size_t why_bytes)
{
    const char *option = NULL, *name = options->quant_name, *allowed = "bf16, fp16 or fp32";

    if (options->quant != XEP_QUANT_NONE && options->dtype == XEP_E4M3) option = "--quant";
    if (options->combine_quant != XEP_QUANT_NONE && options->dtype != XEP_BF16 && options->dtype != XEP_E4M3)
        option = "--combine", name = options->combine_quant_name, allowed = "bf16 or fp8";
    if (option == NULL) return 0;
    snprintf(why, why_bytes, "%s %s cannot be used with this --dtype: %s (%s)", option, name, options->dtype_name,
             allowed);
    return -1;
}

/* "mxfp8-e5m2" is "mxfp8_e5m2", too. */
static int is_called(const char *wanted, const char *name)
{
    for (; *wanted != '\0' && (*wanted == *name || (*wanted == '-' && *name == '_')); wanted++) name++;
    return *wanted == *name;
}

#define QUANT_(_name, _value, _text) {_name, _text},

/* outputs: LogFMT, too. -1, with the names that there are: no such cast. */
static int find_quant(const char *option, const char *wanted, int outputs, xep_quant_t *quant_p, char *why,
                      size_t why_bytes)
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
        if (is_called(wanted, quants[i].name)) return 0;
        snprintf(known + used, sizeof known - used, "%s%s", used == 0 ? "" : ", ", quants[i].name);
    }
    snprintf(why, why_bytes, "invalid %s: \"%s\" (%s)", option, wanted, known);
    return -1;
}

/* Without the option rows by expert are cast to e4m3, unless they are fp8 already, and rows by rank are not. */
static int resolve_quant(perf_options_t *options, char *why, size_t why_bytes)
{
    if (options->quant_name == NULL)
        options->quant_name = options->by_expert && options->dtype != XEP_E4M3 ? "e4m3" : "none";
    if (find_quant("--quant", options->quant_name, 0, &options->quant, why, why_bytes) != 0 ||
        find_quant("--combine", options->combine_quant_name, 1, &options->combine_quant, why, why_bytes) != 0)
        return -1;
    return refuse_pair(options, why, why_bytes);
}

/* "BYTES[:ALIGNMENT],...": whether they are sane the library says. */
static int resolve_payloads(perf_options_t *options, char *why, size_t why_bytes)
{
    const char *at = options->payloads_text;
    for (char *end; at != NULL && options->npayloads < XEP_PAYLOADS_MOST; at = *end == ',' ? end + 1 : NULL) {
        xep_payload_t *payload = &options->payloads[options->npayloads++];
        payload->bytes = (uint32_t)strtoul(at, &end, 10);
        if (*end == ':') payload->alignment = (uint32_t)strtoul(end + 1, &end, 10);
        if (payload->bytes == 0 || (*end != ',' && *end != '\0')) break;
    }
    if (at == NULL) return 0;
    snprintf(why, why_bytes, "invalid --payloads: \"%s\" (up to %d of BYTES or BYTES:ALIGNMENT, as 4,448:16)",
             options->payloads_text, XEP_PAYLOADS_MOST);
    return -1;
}

int perf_resolve_rows(perf_options_t *options, char *why, size_t why_bytes)
{
    return resolve_dtype(options, why, why_bytes) || resolve_layout(options, why, why_bytes) ||
                   resolve_quant(options, why, why_bytes) || resolve_payloads(options, why, why_bytes)
               ? -1
               : 0;
}

/* What has a meaning for the processors of the host alone. */
static int refuse_host_options(const perf_options_t *options, char *why, size_t why_bytes)
{
    const struct {
        const char *name;
        int given;
        const char *reason;
    } of_host[] = {{"--threads", options->threads != 0, "kernels move rows, --sms says with how many multiprocessors"},
                   {"--overlap", options->overlap != 0, "the host takes no part between the phases"},
                   {"--split", options->split, "the host takes no part between the phases"},
                   {"--fixed", options->fixed, "flags and the layout would be those of the host"},
                   {"--peer", options->peer, "it stores to memory that the hosts' processes share"},
                   {"--waits", options->waits, "kernels wait, and the library does not see for whom"},
                   {"--in-place", options->in_place, "devices have no send memory"},
                   {"--recv-rows", options->recv_rows != 0, "rows of devices do not come in pieces"},
                   {"--payloads", options->npayloads != 0, "the limit of a device is of rows alone"},
                   {"--sum-at-owner", options->sum_at_owner, "rows are summed where their tokens are"},
                   {"--combine", options->combine_quant != XEP_QUANT_NONE, "it is for ranks that are not mapped"}};

    for (size_t i = 0; i < sizeof of_host / sizeof *of_host; i++)
        if (of_host[i].given) {
            snprintf(why, why_bytes, "%s cannot be used with this --memory: cuda (host): %s", of_host[i].name,
                     of_host[i].reason);
            return -1;
        }
    return 0;
}

/* Behind the sweep, which may be one of multiprocessors: a sweep of what only devices have is refused here, too. */
int perf_resolve_memory(perf_options_t *options, char *why, size_t why_bytes)
{
    const int sweeps_sms = options->sweep.count != 0 && options->sweep.offset == offsetof(perf_options_t, sms);

    options->cuda = !strcmp(options->memory, "cuda");
    if (!options->cuda && strcmp(options->memory, "host")) {
        snprintf(why, why_bytes, "invalid --memory: \"%s\" (host or cuda)", options->memory);
        return -1;
    }
    if (!options->cuda && (options->sms || sweeps_sms)) {
        snprintf(why, why_bytes, "%s cannot be used with this --memory: host (cuda)",
                 options->sms ? "--sms" : "--sweep sms");
        return -1;
    }
    return options->cuda ? refuse_host_options(options, why, why_bytes) : 0;
}

/* The peer has rows by rank and one operation, and plans each. Rows in place are written before each dispatch. Pieces
 * have the outputs of others between them, which is half a combine; they are not padded, and their outputs go as they
 * are. */
int perf_resolve_others(const perf_options_t *options, char *why, size_t why_bytes)
{
    const char *complaint = NULL;

    if (options->peer &&
        (options->by_expert || options->cached || options->copy_in || options->slots != 1 || options->npayloads != 0))
        complaint = "--peer cannot be used with rows by expert, --cached, --copy-in, --payloads or --slots above 1";
    if (options->in_place && (options->slots != 1 || !perf_times_dispatch(options)))
        complaint = "--in-place cannot be used with --slots above 1 or --op combine";
    if (options->recv_rows != 0 &&
        (options->padded || options->combine_quant != XEP_QUANT_NONE || options->sum_at_owner || options->cached ||
         options->slots != 1 || !perf_times_dispatch(options) || !perf_times_combine(options)))
        complaint = "--recv-rows cannot be used with --layout padded, --combine, --sum-at-owner, --cached, "
                    "--slots above 1, or --op";
    if (complaint == NULL) return 0;
    snprintf(why, why_bytes, "%s", complaint);
    return -1;
}

/* What looks at operations that are run. */
static int refuse_others(const perf_options_t *options, char *why, size_t why_bytes)
{
    const struct {
        const char *name;
        int given;
    } others[] = {{"rows by expert", options->by_expert && !options->ll},
                  {"rows by rank", !options->by_expert && options->ll},
                  {"--layout padded", options->padded},
                  {"--memory cuda", options->cuda},
                  {"--sweep", options->sweep.count != 0},
                  {"--check", options->check || options->check_only},
                  {"--pressure", options->pressure != 0},
                  {"--balance", options->balance != 0},
                  {"--split", options->split},
                  {"--overlap", options->overlap != 0},
                  {"--fixed", options->fixed},
                  {"--peer", options->peer},
                  {"--waits", options->waits},
                  {"--in-place", options->in_place},
                  {"--cached", options->cached},
                  {"--copy-in", options->copy_in},
                  {"--threads", options->threads != 0},
                  {"--op", !perf_times_dispatch(options) || !perf_times_combine(options)}};

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].given) {
            snprintf(why, why_bytes, "--simulate cannot be used with %s", others[i].name);
            return -1;
        }
    return 0;
}

int perf_resolve_balance(const perf_options_t *options, char *why, size_t why_bytes)
{
    const int fits = options->dtype == XEP_BF16 && !options->cuda && options->combine_quant == XEP_QUANT_NONE;

    if (options->balance == 0 || fits) return 0;
    snprintf(why, why_bytes, "--balance cannot be used with other rows than bf16 in host memory");
    return -1;
}

/* Without --simulate nothing is simulated, and there is nothing to refuse. */
int perf_resolve_cluster(perf_options_t *options, char *why, size_t why_bytes)
{
    if (options->simulate == NULL && options->rates != NULL) {
        snprintf(why, why_bytes, "--rates cannot be used without --simulate");
        return -1;
    }
    if (options->placement && (options->simulate == NULL || options->owners != NULL || options->record != NULL)) {
        snprintf(why, why_bytes, "--placement cannot be used %s",
                 options->simulate == NULL ? "without --simulate" : "with --owners or --record");
        return -1;
    }
    if (perf_cluster_read(options->simulate, options->rates, &options->cluster, why, why_bytes)) return -1;
    return options->simulate != NULL ? refuse_others(options, why, why_bytes) : 0;
}
