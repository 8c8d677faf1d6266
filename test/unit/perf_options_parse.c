/* SPDX-License-Identifier: BSD-3-Clause */

/* xep_perf's options: what is taken, and that a refusal names the option and the value. */

#include <string.h>

#include "perf_options.h"
#include "unit.h"

enum { MAX_WORDS = 16 };

/* Splits at blanks and parses. The words outlive the call: options point to them. */
static int parse(const char *line, perf_options_t *options, char *why, size_t why_bytes)
{
    static char copy[640];
    char *words[MAX_WORDS + 1] = {"xep_perf"}, *rest = copy;
    int n = 1;

    strncpy(copy, line, sizeof copy - 1);
    copy[sizeof copy - 1] = '\0';
    for (char *word; n < MAX_WORDS && (word = strtok_r(rest, " ", &rest)) != NULL; n++) words[n] = word;
    words[n] = NULL;
    return perf_options_parse(n, words, options, why, why_bytes);
}

TEST(defaults)
{
    perf_options_t options;
    char why[300];

    assert_int_equal(parse("", &options, why, sizeof why), 0);
    assert_int_equal(options.tokens, 0);
    assert_int_equal(options.hidden, 7168);
    assert_int_equal(options.topk, 8);
    assert_int_equal(options.experts, 256);
    assert_int_equal(options.dtype, XEP_BF16);
    assert_int_equal(options.route.kind, ORACLE_ROUTE_UNIFORM);
    assert_int_equal(options.slots, 1);
    assert_false(options.check || options.cached || options.copy_in || options.cuda);
    assert_true(perf_times_dispatch(&options) && perf_times_combine(&options));
}

TEST(values)
{
    perf_options_t options;
    char why[300];

    assert_int_equal(
        parse("--tokens 17 --hidden=128 --topk 2 --experts=9 --dtype fp8 --routing group:3,2 --cached --record r.txt",
              &options, why, sizeof why),
        0);
    assert_int_equal(options.tokens, 17);
    assert_int_equal(options.hidden, 128);
    assert_int_equal(options.experts, 9);
    assert_int_equal(options.dtype, XEP_E4M3);
    assert_int_equal(options.route.topk_groups, 2);
    assert_true(options.cached);
    assert_string_equal(options.record, "r.txt");
    assert_int_equal(parse("--check-only --op combine --json -", &options, why, sizeof why), 0);
    assert_true(options.check && options.check_only);
    assert_false(perf_times_dispatch(&options));
    assert_string_equal(options.json, "-");
    assert_int_equal(parse("--seed 18446744073709551615 -h", &options, why, sizeof why), 0);
    assert_true(options.seed == UINT64_MAX && options.help);
    assert_int_equal(parse("--memory cuda --sms 24 --slots 2", &options, why, sizeof why), 0);
    assert_true(options.cuda && options.sms == 24);
    assert_int_equal(parse("--memory=cuda --sweep sms=8,16", &options, why, sizeof why), 0);
    perf_options_sweep(&options, 1);
    assert_int_equal(options.sms, 16);
}

TEST(jobs_that_do_not_exist)
{
    perf_options_t options;
    uint32_t node[9];
    char why[300];

    assert_int_equal(parse("--tokens 4", &options, why, sizeof why), 0);
    assert_int_equal(options.cluster.nranks, 0);
    assert_int_equal(parse("--simulate 9,3+1 --rates network=2,latency=7,piece=3", &options, why, sizeof why), 0);
    assert_int_equal(options.cluster.nranks, 9);
    assert_int_equal(perf_cluster_nodes(&options.cluster, node), 5);
    assert_memory_equal(node, ((uint32_t[]){0, 0, 0, 1, 2, 2, 2, 3, 4}), sizeof node);
    assert_true(options.cluster.rates.node_network == 2e9 && options.cluster.message_bytes == 3072);
    assert_true(options.cluster.rates.latency > 6.9e-6 && options.cluster.rates.latency < 7.1e-6);
}

TEST(sweeps)
{
    static const uint64_t doubled[] = {3, 6, 12, 20}, listed[] = {8, 1, 4};
    perf_options_t options;
    char why[300];

    assert_int_equal(parse("--sweep tokens=3..20", &options, why, sizeof why), 0);
    assert_string_equal(options.sweep.name, "tokens");
    assert_int_equal(options.sweep.count, 4);
    assert_memory_equal(options.sweep.values, doubled, sizeof doubled);
    perf_options_sweep(&options, 2);
    assert_int_equal(options.tokens, 12);
    assert_int_equal(parse("--topk 2 --sweep=topk=8,1,4", &options, why, sizeof why), 0);
    assert_int_equal(options.sweep.count, 3);
    assert_memory_equal(options.sweep.values, listed, sizeof listed);
    assert_int_equal(options.topk, 2);
    perf_options_sweep(&options, 1);
    assert_int_equal(options.topk, 1);
    assert_int_equal(parse("--sweep hidden=16777216..16777216", &options, why, sizeof why), 0);
    assert_int_equal(options.sweep.count, 1);
    assert_int_equal(parse("", &options, why, sizeof why), 0);
    assert_int_equal(options.sweep.count, 0);
}

/* 64 values, as many as there may be, of nine characters each */
#define EIGHT_VALUES "10000000,10000000,10000000,10000000,10000000,10000000,10000000,10000000"
#define LONG_SWEEP                                                                                                     \
    EIGHT_VALUES "," EIGHT_VALUES "," EIGHT_VALUES "," EIGHT_VALUES "," EIGHT_VALUES "," EIGHT_VALUES "," EIGHT_VALUES \
                 "," EIGHT_VALUES

/* what is refused, and two pieces of the sentence that says why */
static const struct {
    const char *line, *option, *value;
} refused[] = {
    {"--tokens", "--tokens", "T"},
    {"--sweep tokens", "--sweep", ": \"tokens\" ("},
    {"--sweep tokens=", "--tokens", ": \"\" ("},
    {"--sweep tokens=1,,2", "--tokens", ": \"\" ("},
    {"--sweep tokens=" LONG_SWEEP, "--sweep", "575 characters (at most 511)"},
    {"--sweep tokens=8..4", "--sweep", ": \"tokens=8..4\" ("},
    {"--sweep tokens=0..4", "--tokens", ": \"0\" ("},
    {"--sweep hidden=4..16777217", "--hidden", ": \"16777217\" ("},
    {"--sweep seed=1..4", "--sweep", ": \"seed=1..4\" ("},
    {"--sweep topk=1..512", "--topk", ": 512 ("},
    {"--check-only --sweep tokens=1..4", "--sweep", "(not with --check-only)"},
    {"--tokens 0", "--tokens", ": \"0\" ("},
    {"--tokens x", "--tokens", ": \"x\" ("},
    {"--tokens -3", "--tokens", ": \"-3\" ("},
    {"--tokens 3x", "--tokens", ": \"3x\" ("},
    {"--tokens=", "--tokens", ": \"\" ("},
    {"--seed 18446744073709551616", "--seed", ": \"18446744073709551616\" ("},
    {"--mask 1001", "--mask", ": \"1001\" (a whole number from 0 to 1000)"},
    {"--slots 65", "--slots", ": \"65\" ("},
    {"--topk 9 --experts 8", "--topk: 9 (", "--experts, 8"},
    {"--dtype fp64", "--dtype", ": \"fp64\" ("},
    {"--slots 0", "--slots", ": \"0\" ("},
    {"--overlap 0", "--overlap", ": \"0\" ("},
    {"--overlap 1.5", "--overlap", ": \"1.5\" ("},
    {"--pressure -1", "--pressure", ": \"-1\" ("},
    {"--split=1", "--split", ": \"1\" ("},
    {"--quant e5m2", "--quant", ": \"e5m2\" ("},
    {"--layout tall", "--layout", ": \"tall\" ("},
    {"--layout padded --copy-in", "--copy-in", "padded"},
    {"--mode ll --dtype fp8 --quant e4m3", "--quant e4m3", "--dtype: fp8 ("},
    {"--quant logfmt", "--quant", ": \"logfmt\" ("},
    {"--combine e5m2", "--combine", ": \"e5m2\" ("},
    {"--mode ll --dtype fp32 --combine logfmt", "--combine logfmt", "--dtype: fp32 (bf16 or fp8)"},
    {"--memory gpu", "--memory", ": \"gpu\" (host or cuda)"},
    {"--sms 8", "--sms", "--memory: host (cuda)"},
    {"--sms 0 --memory cuda", "--sms", ": \"0\" ("},
    {"--sweep sms=8,16", "--sweep sms", "--memory: host (cuda)"},
    {"--memory cuda --threads 4", "--threads", "--memory: cuda (host): kernels move rows"},
    {"--memory cuda --mode ll --split", "--split", "--memory: cuda (host): the host takes no part"},
    {"--memory cuda --waits", "--waits", "--memory: cuda (host): kernels wait"},
    {"--memory cuda --overlap 5", "--overlap", "--memory: cuda (host): the host takes no part"},
    {"--memory cuda --peer", "--peer", "--memory: cuda (host)"},
    {"--memory cuda --mode ll --combine mxfp8", "--combine", "--memory: cuda (host)"},
    {"--in-place --slots 2", "--in-place", "--slots above 1"},
    {"--in-place --op combine", "--in-place", "--op combine"},
    {"--in-place --memory cuda", "--in-place", "--memory: cuda (host)"},
    {"--peer --slots 2", "--peer", "--slots above 1"},
    {"--op both", "--op", ": \"both\" ("},
    {"--routing zipf", "--routing", ": \"zipf\" ("},
    {"--routing group:4,5", "--routing", ": \"group:4,5\" ("},
    {"--simulate 8", "--simulate", ": \"8\" ("},
    {"--simulate 5000,8", "--simulate", ": \"5000,8\" ("},
    {"--simulate 8,4 --slots 2 --cached", "--simulate", "--cached"},
    {"--simulate 8,4 --rates rank=x", "--rates", ": \"rank=x\" (a number of GB/s"},
    {"--rates rank=1", "--rates", "--simulate"},
    {"--cached=1", "--cached", ": \"1\" ("},
    {"--tok 3", "unknown option", ": \"--tok\" ("},
    {"tokens", "unknown option", ": \"tokens\" ("},
    {"-x", "unknown option", ": \"-x\" ("},
};

TEST(refusals)
{
    perf_options_t options;

    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char why[300] = "";
        if (!parse(refused[i].line, &options, why, sizeof why)) fail_msg("'%s' was taken", refused[i].line);
        if (strstr(why, refused[i].option) == NULL || strstr(why, refused[i].value) == NULL)
            fail_msg("'%s': '%s' does not say '%s' and '%s'", refused[i].line, why, refused[i].option,
                     refused[i].value);
    }
}
