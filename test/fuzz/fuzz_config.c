/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What users type: XEP_* variables, and the options of xep_perf. Lines of the input are NAME=VALUE or options. What is
 * refused is named in the reason; of what is taken, choices are choices.
 */
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "fuzz_target.h"
#include "perf_options.h"

const fuzz_target_t fuzz_target = {.name = "config", .unit = "settings and command lines", .runs = 20000};

enum { MOST_LINES = 32 };

static void ignore(void *arg, xep_log_level_t level, const char *message)
{
    (void)arg, (void)level, (void)message;
}

/* In place, at newlines; returns how many. */
static int split(char *text, char **lines)
{
    int count = 0;
    for (char *line = strtok(text, "\n"); line != NULL && count < MOST_LINES; line = strtok(NULL, "\n"))
        lines[count++] = line;
    return count;
}

static void check_choice(int value, int choices, const char *name)
{
    if (value < 0 || value >= choices) fuzz_fail("XEP_%s is %d, of %d choices", name, value, choices);
}

static void check_config(char **lines, int count)
{
    xep_config_t config;
    char *names[MOST_LINES];
    int set = 0;
    for (int i = 0; i < count; i++) {
        char *equals = strchr(lines[i], '=');
        if (strncmp(lines[i], "XEP_", 4) != 0 || equals == NULL) continue;
        *equals = '\0';
        if (setenv(lines[i], equals + 1, 1) == 0) names[set++] = lines[i];
    }
    memset(&config, 0xa5, sizeof config);
    xep_status_t status = xep_config_read(&config);
    if (status == XEP_OK) {
        check_choice(config.boot, XEP_BOOT_SINGLE + 1, "BOOT");
        check_choice(config.map, XEP_MAP_NEVER + 1, "MAP");
        check_choice(config.put, XEP_PUT_AM + 1, "PUT");
        check_choice(config.progress, XEP_PROGRESS_THREAD + 1, "PROGRESS");
        check_choice(config.simd, XEP_SIMD_AUTO + 1, "SIMD");
        check_choice(config.log, XEP_LOG_DEBUG + 1, "LOG");
        if (config.timeout == 0 || config.timeout < -1) fuzz_fail("XEP_TIMEOUT is %d", config.timeout);
    } else {
        int named = 0;
        for (int i = 0; i < set; i++) named |= strstr(xep_last_error(), names[i]) != NULL;
        if (status != XEP_ERR_INVALID || !named) fuzz_fail("status %d: %s", status, xep_last_error());
    }
    for (int i = 0; i < set; i++) unsetenv(names[i]);
}

/* Every rank is on a node, one behind the other, and what machines can do is a number. */
static void check_cluster(const perf_cluster_t *cluster)
{
    uint32_t node[PERF_MOST_RANKS] = {0};
    if (cluster->nranks > PERF_MOST_RANKS) fuzz_fail("%u ranks are simulated", cluster->nranks);
    uint32_t nnodes = perf_cluster_nodes(cluster, node);
    for (uint32_t r = 1; r < cluster->nranks; r++)
        if (node[r] != node[r - 1] && node[r] != node[r - 1] + 1) fuzz_fail("rank %u is on node %u", r, node[r]);
    if (cluster->nranks != 0 && node[cluster->nranks - 1] + 1 != nnodes) fuzz_fail("there are %u nodes", nnodes);
    if (!(cluster->message_bytes >= 0 && cluster->pass_rows >= 0 && cluster->rates.node_network >= 0))
        fuzz_fail("a message has %g bytes", cluster->message_bytes);
}

static void check_options(char **lines, int count)
{
    char *argv[MOST_LINES + 2] = {"xep_perf"};
    char why[256] = "";
    perf_options_t options;
    for (int i = 0; i < count; i++) argv[i + 1] = lines[i];
    argv[count + 1] = NULL;
    memset(&options, 0xa5, sizeof options);
    if (perf_options_parse(count + 1, argv, &options, why, sizeof why) != 0) {
        if (why[0] == '\0') fuzz_fail("options are refused without a reason");
        return;
    }
    if (options.help || options.version || options.list) return;
    if (xep_dtype_size(options.dtype) == 0) fuzz_fail("dtype is %d", (int)options.dtype);
    check_cluster(&options.cluster);
    if (options.sweep.count > PERF_SWEEP_MAX) fuzz_fail("%u values of a sweep", options.sweep.count);
    for (uint32_t i = 0; i < options.sweep.count; i++) perf_options_sweep(&options, i);
}

/* Both readers of what a user types take the same lines. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *lines[MOST_LINES], *text = malloc(size + 1);
    if (text == NULL) fuzz_fail("no memory");
    xep_log_set(ignore, NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    int count = split(text, lines);
    check_options(lines, count);
    check_config(lines, count);
    free(text);
    fuzz_count(1);
    return 0;
}
