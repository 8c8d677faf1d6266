/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Bootstrap values: several ranks make a group while the input changes what they are told of one another: cards,
 * hellos, lengths, addresses, keys, nodes. A rank gets a group or an error with a sentence, within its deadline. With a
 * group, its nodes are possible; without any change all ranks have one.
 */
#include <stdlib.h>
#include <string.h>

#include "fuzz_target.h"
#include "fuzz_world.h"

const fuzz_target_t fuzz_target = {.name = "boot", .unit = "bootstrap values spoiled", .runs = 1500};

enum { MOST_PATCHES = 12, EXCHANGES = 8 };

typedef struct patch {
    uint32_t exchange, to, from; /* to 0: all ranks are told the same */
    uint32_t where, width;
    uint64_t value;
} patch_t;

typedef struct run {
    patch_t patches[MOST_PATCHES];
    uint32_t npatches, applied;
} run_t;

static void tell(void *arg, uint32_t number, uint32_t to, uint32_t from, void *data, size_t bytes)
{
    run_t *run = arg;
    for (uint32_t i = 0; i < run->npatches; i++) {
        const patch_t *patch = &run->patches[i];
        if (patch->exchange != number || patch->from != from || (patch->to != 0 && patch->to - 1 != to)) continue;
        if (bytes < patch->width) continue;
        memcpy((char *)data + patch->where % (bytes / patch->width) * patch->width, &patch->value, patch->width);
        run->applied++;
    }
}

static void check_group(xep_group_t *group, uint32_t rank)
{
    xep_group_info_t info = XEP_GROUP_INFO_INIT;
    if (xep_group_query(group, &info) != XEP_OK) fuzz_fail("no info: %s", xep_last_error());
    if (info.rank != rank || info.nnodes > info.nranks || info.node >= info.nnodes)
        fuzz_fail("rank %u is on node %u of %u, of %u ranks", rank, info.node, info.nnodes, info.nranks);
}

static void live(void *arg, uint32_t rank, xep_group_t *group, xep_status_t status)
{
    const run_t *run = arg;
    if (status != XEP_OK && xep_last_error()[0] == '\0') fuzz_fail("rank %u: %d without a reason", rank, status);
    if (status != XEP_OK && run->applied == 0) fuzz_fail("rank %u: %d: %s", rank, status, xep_last_error());
    if (status != XEP_OK) return;
    check_group(group, rank);
    status = xep_group_barrier(group);
    if (status != XEP_OK && run->applied == 0) fuzz_fail("rank %u: %d: %s", rank, status, xep_last_error());
    xep_group_destroy(group);
}

static void ignore(void *arg, xep_log_level_t level, const char *message)
{
    (void)arg, (void)level, (void)message;
}

/* Ranks, nodes, seed; then patches of seven bytes and more. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = {data, data + size};
    run_t run = {.npatches = 0};
    fuzz_options_t options = {.nranks = 1 + (uint32_t)fuzz_below(&input, FUZZ_MOST_RANKS),
                              .timeout_ms = 1000,
                              .tell = tell,
                              .run = live,
                              .arg = &run};
    uint64_t nodes = fuzz_take(&input, 1);
    options.seed = fuzz_take(&input, 2);
    for (uint32_t r = 0; r < options.nranks; r++) options.node[r] = (uint32_t)(nodes >> 2 * r & 3);
    while (run.npatches < MOST_PATCHES && input.at < input.end) {
        patch_t *patch = &run.patches[run.npatches++];
        patch->exchange = (uint32_t)fuzz_below(&input, EXCHANGES);
        patch->from = (uint32_t)fuzz_below(&input, options.nranks);
        patch->to = (uint32_t)fuzz_below(&input, options.nranks + 1);
        patch->width = 1u << fuzz_below(&input, 4);
        patch->where = (uint32_t)fuzz_take(&input, 1);
        patch->value = fuzz_number(&input);
    }
    xep_log_set(ignore, NULL);
    fuzz_world_run(&options);
    fuzz_count(run.applied);
    return 0;
}
