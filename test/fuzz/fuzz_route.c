/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Files of a routing (xep_perf --routing file:PATH) and the names of routings: any bytes. What is refused is refused
 * with a sentence; of what is taken, every number lies within its limits and a token has the line that names it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz_target.h"
#include "oracle_route_file.h"
#include "oracle_route_parse.h"

const fuzz_target_t fuzz_target = {.name = "route", .unit = "routing files and names", .runs = 8000};

enum { MOST_TOPK = 32 };

static void check_name(const uint8_t *data, size_t size)
{
    char text[512], why[128] = "";
    size_t bytes = size < sizeof text - 1 ? size : sizeof text - 1;
    oracle_route_spec_t spec;
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    if (oracle_route_parse(text, &spec, why, sizeof why) != 0) {
        if (why[0] == '\0') fuzz_fail("the name \"%s\" is refused without a reason", text);
    } else if (spec.kind == ORACLE_ROUTE_GROUP &&
               (spec.groups == 0 || spec.groups > ORACLE_MAX_GROUPS || spec.topk_groups > spec.groups)) {
        fuzz_fail("the name \"%s\" gave %u groups, %u of them", text, spec.groups, spec.topk_groups);
    }
}

static void check_tokens(const oracle_route_file_t *file, const oracle_route_limits_t *limits,
                         const uint64_t *tokens_of)
{
    int32_t idx[MOST_TOPK];
    uint64_t most = limits->tokens != 0 ? limits->tokens : INT32_MAX;
    for (uint32_t r = 0; r < limits->nranks; r++) {
        if (tokens_of[r] > most) fuzz_fail("rank %u has %llu tokens", r, (unsigned long long)tokens_of[r]);
        for (uint64_t back = 0; back < 3 && back < tokens_of[r]; back++) {
            memset(idx, 0xa5, sizeof idx);
            oracle_route_file_look(file, r, tokens_of[r] - 1 - back, idx);
            for (uint32_t k = 0; k < limits->topk; k++)
                if (idx[k] < -1 || idx[k] >= (int64_t)limits->experts)
                    fuzz_fail("expert %d of rank %u, of %u", idx[k], r, limits->experts);
        }
    }
}

static void check_file(const oracle_route_limits_t *limits, const uint8_t *data, size_t size)
{
    uint64_t *tokens_of = calloc(limits->nranks, sizeof *tokens_of);
    oracle_route_file_t *file = NULL;
    char path[300], why[256] = "";
    snprintf(path, sizeof path, "%s/routing", fuzz_folder());
    fuzz_write(path, data, size);
    if (tokens_of == NULL) fuzz_fail("no memory");
    if (oracle_route_file_read(path, limits, tokens_of, &file, why, sizeof why) == 0) {
        check_tokens(file, limits, tokens_of);
        oracle_route_file_free(file);
    } else if (strstr(why, path) == NULL || strlen(why) < strlen(path) + 5) {
        fuzz_fail("a file is refused with \"%s\"", why);
    }
    free(tokens_of);
}

/* Ranks, experts, top-k and tokens in four bytes, then the text. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = {data, data + size};
    oracle_route_limits_t limits = {.nranks = 1 + (uint32_t)fuzz_below(&input, 64),
                                    .experts = 1 + (uint32_t)fuzz_below(&input, 256),
                                    .topk = 1 + (uint32_t)fuzz_below(&input, MOST_TOPK)};
    limits.tokens = fuzz_below(&input, 256);
    check_file(&limits, input.at, (size_t)(input.end - input.at));
    check_name(input.at, (size_t)(input.end - input.at));
    fuzz_count(2);
    return 0;
}
