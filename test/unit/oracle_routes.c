/* SPDX-License-Identifier: BSD-3-Clause */

/* The routing generator: published numbers, and what each kind promises. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "oracle_owners.h"
#include "oracle_routing.h"
#include "oracle_traffic.h"
#include "unit.h"

enum { MAX_TOPK = 64 };

static oracle_routing_params_t params_of(const char *spec, uint32_t nranks, uint32_t experts, uint32_t topk)
{
    oracle_routing_params_t params = {.seed = 1, .nranks = nranks, .experts = experts, .topk = topk, .tokens = 100};
    char why[200];

    assert_int_equal(oracle_route_parse(spec, &params.spec, why, sizeof why), 0);
    return params;
}

static oracle_routing_t *create(const oracle_routing_params_t *params)
{
    oracle_routing_t *routing = NULL;
    char why[200] = "";

    if (oracle_routing_create(params, &routing, why, sizeof why)) fail_msg("%s", why);
    return routing;
}

static void refused(const oracle_routing_params_t *params, const char *part)
{
    oracle_routing_t *routing = NULL;
    char why[300] = "";

    assert_int_equal(oracle_routing_create(params, &routing, why, sizeof why), -1);
    assert_null(routing);
    if (strstr(why, part) == NULL) fail_msg("'%s' does not say '%s'", why, part);
}

static void expect_idx(const oracle_routing_t *routing, uint32_t rank, uint64_t token, const int32_t *expected)
{
    int32_t idx[MAX_TOPK];
    float weights[MAX_TOPK];

    oracle_route(routing, rank, token, idx, weights);
    assert_memory_equal(idx, expected, routing->params.topk * sizeof *idx);
}

TEST(published_numbers)
{
    oracle_routing_params_t params = params_of("uniform", 4, 256, 8);
    oracle_routing_t *routing = create(&params);
    int32_t idx[8];
    float weights[8];
    char text[16];

    expect_idx(routing, 0, 0, (const int32_t[]){158, 78, 207, 128, 149, 182, 230, 102});
    expect_idx(routing, 0, 1, (const int32_t[]){71, 215, 163, 161, 157, 141, 77, 231});
    oracle_route(routing, 0, 0, idx, weights);
    snprintf(text, sizeof text, "%.6f", (double)weights[0]);
    assert_string_equal(text, "0.336355");
    snprintf(text, sizeof text, "%.6f", (double)weights[2]);
    assert_string_equal(text, "0.625958");
    oracle_routing_destroy(routing);

    params = params_of("group:8,4", 4, 256, 8);
    routing = create(&params);
    expect_idx(routing, 1, 0, (const int32_t[]){249, 70, 224, 204, 230, 189, 69, 196});
    oracle_routing_destroy(routing);
}

TEST(mask_leaves_the_rest)
{
    oracle_routing_params_t params = params_of("uniform", 2, 64, 8);
    oracle_routing_t *whole = create(&params), *masked;
    int32_t idx[8], masked_idx[8];
    float weights[8], masked_weights[8];
    unsigned gone = 0;

    params.mask = 250;
    masked = create(&params);
    for (uint64_t token = 0; token < 100; token++) {
        oracle_route(whole, 1, token, idx, weights);
        oracle_route(masked, 1, token, masked_idx, masked_weights);
        assert_memory_equal(weights, masked_weights, sizeof weights);
        for (unsigned k = 0; k < 8; k++) {
            assert_true(masked_idx[k] == -1 || masked_idx[k] == idx[k]);
            gone += masked_idx[k] == -1;
        }
    }
    assert_in_range(gone, 140, 260);
    oracle_routing_destroy(whole);
    oracle_routing_destroy(masked);
}

static void expect_distinct(const int32_t *idx, uint32_t topk, uint32_t experts)
{
    for (uint32_t i = 0; i < topk; i++) {
        assert_in_range(idx[i], 0, experts - 1);
        for (uint32_t j = 0; j < i; j++) assert_int_not_equal(idx[i], idx[j]);
    }
}

TEST(every_kind_draws_distinct_experts)
{
    static const char *const specs[] = {"uniform", "group:1,1", "group:4,2", "zipf:0", "zipf:1.2", "zipf:50"};
    int32_t idx[16];
    float weights[16];

    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        oracle_routing_params_t params = params_of(specs[i], 3, 32, 16);
        oracle_routing_t *routing = create(&params);
        for (uint64_t token = 0; token < 50; token++) {
            oracle_route(routing, 2, token, idx, weights);
            expect_distinct(idx, 16, 32);
        }
        oracle_routing_destroy(routing);
    }
}

TEST(groups_limit_experts)
{
    oracle_routing_params_t params = params_of("group:8,2", 2, 64, 8);
    oracle_routing_t *routing = create(&params);
    int32_t idx[8];
    float weights[8];

    for (uint64_t token = 0; token < 100; token++) {
        unsigned groups = 0;
        oracle_route(routing, 0, token, idx, weights);
        for (unsigned k = 0; k < 8; k++) groups |= 1u << idx[k] / 8;
        assert_in_range(__builtin_popcount(groups), 1, 2);
    }
    oracle_routing_destroy(routing);
}

TEST(zipf_follows_popularity)
{
    oracle_routing_params_t params = params_of("zipf:1", 1, 16, 1);
    oracle_routing_t *routing = create(&params);
    unsigned count[16] = {0};
    int32_t idx;
    float weight;

    for (uint64_t token = 0; token < 20000; token++) {
        oracle_route(routing, 0, token, &idx, &weight);
        count[idx]++;
    }
    /* the sum of 1/n for n up to 16 is 3.3807: 5916 expected first, 2958 second, 370 last */
    assert_in_range(count[routing->popular[0]], 5600, 6200);
    assert_in_range(count[routing->popular[1]], 2750, 3150);
    assert_in_range(count[routing->popular[15]], 290, 450);
    oracle_routing_destroy(routing);
}

TEST(one_rank_and_self_stay_there)
{
    oracle_routing_params_t params = params_of("one-rank", 4, 10, 3); /* ranks own 3, 3, 2, 2 */
    oracle_routing_t *routing = create(&params);
    int32_t idx[3];
    float weights[3];

    oracle_route(routing, 3, 7, idx, weights);
    expect_distinct(idx, 3, 3);
    oracle_routing_destroy(routing);

    params.spec.kind = ORACLE_ROUTE_SELF;
    routing = create(&params);
    oracle_route(routing, 3, 7, idx, weights);
    assert_int_equal(idx[0] + idx[1], 8 + 9);
    assert_int_equal(idx[2], -1);
    oracle_routing_destroy(routing);
}

TEST(owners_are_blocks)
{
    oracle_routing_params_t params = params_of("uniform", 4, 10, 1);
    oracle_routing_t *routing = create(&params);
    static const uint32_t owners[] = {0, 0, 0, 1, 1, 1, 2, 2, 3, 3};
    uint32_t first, count, next = 0;

    for (uint32_t e = 0; e < 10; e++) assert_int_equal(oracle_owner(routing, e), owners[e]);
    for (uint32_t rank = 0; rank < 4; rank++, next += count) {
        oracle_experts_of(routing, rank, &first, &count);
        assert_int_equal(first, next);
    }
    assert_int_equal(next, 10);
    oracle_routing_destroy(routing);

    params = params_of("uniform", 4, 2, 1); /* fewer experts than ranks */
    routing = create(&params);
    assert_int_equal(oracle_owner(routing, 1), 1);
    oracle_experts_of(routing, 3, &first, &count);
    assert_int_equal(count, 0);
    oracle_routing_destroy(routing);
}

/* Eight experts, of these loads, on three ranks. */
TEST(owner_maps)
{
    static const uint64_t load[] = {1, 9, 2, 2, 7, 0, 3, 3};
    static const struct {
        const char *how;
        uint32_t owners[8];
    } maps[] = {{"block", {0, 0, 0, 1, 1, 1, 2, 2}},
                {"cyclic", {0, 1, 2, 0, 1, 2, 0, 1}},
                {"split:1", {1, 1, 1, 1, 2, 2, 2, 2}},
                {"greedy", {2, 0, 2, 1, 1, 0, 2, 2}}}; /* 9 each */
    static const char *const wrong[] = {"split:3", "split:", "random:", "random:1x", "cyclik", "/dev/null", "/"};
    uint32_t *owners;
    char why[256];

    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++) {
        assert_int_equal(oracle_owners_make(maps[i].how, 3, 8, load, &owners, why, sizeof why), 0);
        assert_memory_equal(owners, maps[i].owners, sizeof maps[i].owners);
        free(owners);
    }
    assert_int_equal(oracle_owners_make("random:7", 3, 8, load, &owners, why, sizeof why), 0);
    for (int e = 0; e < 8; e++) assert_in_range(owners[e], 0, 2);
    free(owners);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(oracle_owners_make(wrong[i], 3, 8, load, &owners, why, sizeof why), -1);
}

TEST(destinations_are_distinct_and_ascend)
{
    oracle_routing_params_t params = params_of("uniform", 4, 8, 6);
    oracle_routing_t *routing = create(&params);
    uint32_t ranks[6];

    assert_int_equal(oracle_destinations(routing, (const int32_t[]){7, 0, -1, 6, 1, 2}, ranks), 3);
    assert_memory_equal(ranks, ((const uint32_t[]){0, 1, 3}), 3 * sizeof *ranks);
    assert_int_equal(oracle_destinations(routing, (const int32_t[]){-1, -1, -1, -1, -1, -1}, ranks), 0);
    oracle_routing_destroy(routing);
}

/* ---- files --------------------------------------------------------------------------- */

typedef struct route_file {
    char path[64];
    char spec[80];
} route_file_t;

static void write_file(route_file_t *file, const char *text)
{
    FILE *out;

    snprintf(file->path, sizeof file->path, "/tmp/xep_route_XXXXXX");
    out = fdopen(mkstemp(file->path), "w");
    assert_non_null(out);
    fputs(text, out);
    fclose(out);
    snprintf(file->spec, sizeof file->spec, "file:%s", file->path);
}

TEST(file_gives_tokens_and_experts)
{
    route_file_t file;
    oracle_routing_params_t params;
    oracle_routing_t *routing;
    oracle_traffic_t traffic;
    uint32_t rank_rows[9];

    write_file(&file, "# comment\n0 0 5 1\n\n2 3 -1 4 3 # two\n  0 1 2\n");
    params = params_of(file.spec, 3, 6, 3);
    params.tokens = 0;
    routing = create(&params);
    assert_int_equal(routing->tokens_of[0], 2);
    assert_int_equal(routing->tokens_of[1], 0);
    assert_int_equal(routing->tokens_of[2], 4);
    assert_int_equal(routing->tokens, 4);
    expect_idx(routing, 0, 0, (const int32_t[]){5, 1, -1});
    expect_idx(routing, 2, 3, (const int32_t[]){-1, 4, 3});
    expect_idx(routing, 2, 1, (const int32_t[]){-1, -1, -1});
    oracle_traffic_count(routing, rank_rows, &traffic);
    assert_memory_equal(rank_rows, ((const uint32_t[]){1, 1, 1, 0, 0, 0, 0, 1, 1}), sizeof rank_rows);
    assert_int_equal(traffic.selections, 5);
    assert_int_equal(traffic.rows, 5);
    assert_int_equal(traffic.own_rows, 2);
    assert_int_equal(traffic.most_rows, 2);
    oracle_routing_destroy(routing);
    unlink(file.path);
}

/* Each rank with another number of tokens, one with none, and masked selections: nothing is lost on the way. */
TEST(what_is_written_is_read)
{
    const uint64_t tokens_of[] = {5, 0, 40};
    route_file_t file;
    oracle_routing_params_t params = params_of("uniform", 3, 7, 3);
    char why[300] = "";
    params.mask = 600;
    params.tokens_of = tokens_of;
    oracle_routing_t *drawn = create(&params), *read;

    write_file(&file, "what was there before\n");
    assert_int_equal(oracle_routing_write(drawn, file.path, why, sizeof why), 0);
    params = params_of(file.spec, 3, 7, 3);
    params.tokens = 0;
    read = create(&params);
    for (uint32_t rank = 0; rank < 3; rank++) {
        assert_int_equal(read->tokens_of[rank], tokens_of[rank]);
        for (uint64_t token = 0; token < tokens_of[rank]; token++) {
            int32_t idx[MAX_TOPK];
            float weights[MAX_TOPK];
            oracle_route(drawn, rank, token, idx, weights);
            expect_idx(read, rank, token, idx);
        }
    }
    assert_int_equal(oracle_routing_write(drawn, "/nowhere/routes", why, sizeof why), -1);
    assert_string_equal(why, "cannot write /nowhere/routes: No such file or directory");
    oracle_routing_destroy(read);
    oracle_routing_destroy(drawn);
    unlink(file.path);
}

TEST(bad_files_name_the_line)
{
    static const struct {
        const char *text, *complaint;
    } cases[] = {
        {"0 0 1\n3 0 1\n", "line 2: invalid rank: \"3\" (0 to 2)"},
        {"0\n", "line 1: no token"},
        {"0 x\n", "line 1: invalid token: \"x\" (0 to 99)"},
        {"0 100 1\n", "line 1: invalid token: \"100\" (0 to 99)"},
        {"0 0 6\n", "line 1: invalid expert: \"6\" (-1 to 5)"},
        {"0 0 1 2 3 4\n", "line 1: more experts than the top-k"},
        {"0 0 1.5\n", "line 1: invalid expert: \"1.5\" (-1 to 5)"},
        {"0 0 1\n0 1 1\n0 0 2\n", "line 3: this token of this rank was on an earlier line"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        route_file_t file;
        oracle_routing_params_t params;
        write_file(&file, cases[i].text);
        params = params_of(file.spec, 3, 6, 3);
        refused(&params, cases[i].complaint);
        unlink(file.path);
    }
}

/* The last token there can be takes the memory of its line, not of all those before it. */
TEST(one_line_takes_little)
{
    route_file_t file;
    oracle_routing_params_t params;
    oracle_routing_t *routing;

    write_file(&file, "0 2147483646 1\n");
    params = params_of(file.spec, 3, 6, 3);
    params.tokens = 0;
    routing = create(&params);
    assert_int_equal(routing->tokens, 2147483647);
    expect_idx(routing, 0, 2147483646, (const int32_t[]){1, -1, -1});
    expect_idx(routing, 0, 2147483645, (const int32_t[]){-1, -1, -1});
    oracle_routing_destroy(routing);
    unlink(file.path);
}

/* What never ends, or is no text, is not read until there is no memory left. */
TEST(what_does_not_end_is_refused)
{
    char *text = malloc(20001);
    route_file_t file;
    oracle_routing_params_t params = params_of("file:/dev/zero", 3, 6, 3);

    refused(&params, "cannot read /dev/zero: not a file");
    params = params_of("file:/", 3, 6, 3);
    refused(&params, "cannot read /: not a file");
    memset(text, ' ', 20000);
    text[20000] = '\0';
    write_file(&file, text);
    params = params_of(file.spec, 3, 6, 3);
    refused(&params, "line 1: the line does not end");
    unlink(file.path);
    free(text);
}

TEST(bad_specs_are_refused)
{
    static const char *const bad[] = {"",          "unifor",   "uniformly", "group:",     "group:8",      "group:4,8",
                                      "group:0,0", "group:4,", "zipf:",     "zipf:x",     "zipf:-1",      "zipf:nan",
                                      "file:",     "self:1",   "one-rank ", "group:4,2x", "group:99999,1"};
    oracle_route_spec_t spec;
    oracle_routing_params_t params;
    char why[300];

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        why[0] = '\0';
        if (!oracle_route_parse(bad[i], &spec, why, sizeof why)) fail_msg("'%s' was taken", bad[i]);
        assert_true(strlen(why) > 10);
    }
    params = params_of("group:8,2", 2, 60, 4);
    refused(&params, "experts cannot be divided into 8 groups: 60");
    params = params_of("group:8,2", 2, 64, 17);
    refused(&params, "groups: 16 (at least the top-k, 17)");
    params = params_of("uniform", 2, 4, 5);
    refused(&params, "invalid top-k: 5 (1 to 4");
    params = params_of("file:/no/such/file", 2, 4, 2);
    refused(&params, "cannot read /no/such/file");
}
