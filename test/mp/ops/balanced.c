/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1 3 6, limit: 120, brief: 3 */

/*
 * Experts with several instances: by replicas, by plans that all ranks compute alike, by plans of the caller's. What
 * comes back is, bit for bit, what a buffer without any of that has; what is sent is where the rule wants it.
 */

#define _GNU_SOURCE /* kill */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mp_rig.h"
#include <xep/pieces.h>
#include <xep/serve.h>

enum { EXPERTS = 13, TOPK = 3, HIDDEN = 48, TOKENS = 37, COPIES = 40 };

typedef enum { UNIFORM, SKEWED, ONE, NONE, ROUTINGS } routing_t;

static float x[TOKENS][HIDDEN], weights[TOKENS][TOPK];
static int64_t idx[TOKENS][TOPK];
static uint64_t tokens;
static float unit = 1; /* of all values: as long as it is 1, sums are the same in any order */

/* Rank 1 has no tokens. */
static void fill(routing_t routing, uint32_t seed)
{
    uint32_t state = seed * 2654435761u + mp_rank() * 40503u + 1;
    tokens = mp_rank() == 1 ? 0 : TOKENS - mp_rank() * 2;
    for (uint32_t t = 0; t < TOKENS; t++) {
        for (uint32_t i = 0; i < HIDDEN; i++) x[t][i] = unit * (float)((t * 7 + i * 3 + mp_rank()) % 31);
        for (uint32_t k = 0; k < TOPK; k++) {
            state = state * 1664525u + 1013904223u;
            const uint32_t random = state >> 8;
            weights[t][k] = unit * (float)(1 + random % 3);
            idx[t][k] = routing == UNIFORM ? random % EXPERTS : random % 4 != 0 ? 2 : random % EXPERTS;
            if (routing == ONE) idx[t][k] = 7;
            if (routing == NONE || random % 11 == 0) idx[t][k] = -1;
        }
    }
}

static xep_dispatch_args_t dispatch_args(uint32_t flags)
{
    xep_dispatch_args_t args = XEP_DISPATCH_ARGS_INIT;
    args.tokens = tokens, args.x = x, args.topk_idx = idx, args.topk_weights = &weights[0][0], args.flags = flags;
    return args;
}

/*
 * The sum of what this rank's experts have for a row, whatever its elements are: floats, or bytes of a cast. In ll
 * there is one, and combine weighs it.
 */
static void compute(const xep_recv_t *recv, uint64_t row, float *out)
{
    const char *at = recv->row != NULL ? recv->row[row] : (const char *)recv->x + row * recv->x_stride;
    const xep_payload_t *payload = recv->payloads;
    float beside = 0;
    if (payload != NULL) memcpy(&beside, (const char *)payload->data + row * payload->stride, sizeof beside);
    for (uint32_t i = 0; i < HIDDEN; i++) out[i] = 0;
    for (uint32_t k = 0; k < recv->topk; k++) {
        const int64_t local = ((const int64_t *)recv->topk_idx)[row * recv->topk + k];
        if (local < 0) continue;
        MP_CHECK(local < recv->local_experts);
        const float weight = recv->topk_weights != NULL ? recv->topk_weights[row * recv->topk + k] : 1;
        for (uint32_t i = 0; i < HIDDEN; i++) {
            const float in =
                recv->dtype == XEP_FP32 ? ((const float *)(const void *)at)[i] : (float)((const uint8_t *)at)[i];
            out[i] += weight * (in + beside + (float)recv->experts[local]);
        }
    }
}

/* All pieces, and their combine. */
static xep_status_t finish_missing(xep_handle_t *handle, float out[TOKENS][HIDDEN], uint8_t *missing,
                                   uint64_t *served_p)
{
    const xep_recv_t *recv = mp_recv(handle);
    xep_combine_args_t last = XEP_COMBINE_ARGS_INIT;
    xep_next_args_t next = XEP_NEXT_ARGS_INIT;
    xep_status_t status = XEP_OK;
    MP_CHECK(recv != NULL);
    const uint64_t pieces = recv->pieces;
    uint64_t served = 0;
    memset(out, 0x5a, TOKENS * HIDDEN * sizeof(float));
    for (uint64_t piece = 0; piece < pieces; piece++) {
        float *y = mp_alloc((recv->rows + 1) * HIDDEN * sizeof *y, 0);
        for (uint64_t row = 0; row < recv->rows; row++) compute(recv, row, y + row * HIDDEN);
        for (uint32_t e = 0; e < recv->local_experts; e++) served += recv->expert_rows[e];
        last.x = next.x = y, last.out = out, last.missing = missing;
        if (piece + 1 < pieces) MP_OK(xep_handle_next(handle, &next, NULL));
        else status = xep_combine(handle, &last, NULL);
        recv = mp_recv(handle);
        mp_free(y, "y");
    }
    xep_handle_release(handle);
    *served_p = served;
    return status;
}

/* Returns the selections that this rank served. */
static uint64_t finish(xep_handle_t *handle, float out[TOKENS][HIDDEN])
{
    uint64_t served;
    MP_OK(finish_missing(handle, out, NULL, &served));
    return served;
}

static uint64_t run(xep_buffer_t *buffer, uint32_t flags, float out[TOKENS][HIDDEN])
{
    const xep_dispatch_args_t args = dispatch_args(flags);
    xep_handle_t *handle;
    MP_OK(xep_dispatch(buffer, &args, &handle, NULL));
    return finish(handle, out);
}

static xep_buffer_params_t params(const char *mode)
{
    xep_buffer_params_t p = XEP_BUFFER_PARAMS_INIT;
    p.mode = mode, p.experts = EXPERTS, p.topk = TOPK, p.hidden = HIDDEN, p.tokens = TOKENS;
    p.dtype = p.combine_dtype = XEP_FP32, p.slots = 3;
    return p;
}

/* All ranks' numbers: their sum, and the largest. */
static uint64_t sum_of(xep_group_t *group, uint64_t mine, uint64_t *most_p)
{
    uint64_t all[64], sum = 0;
    *most_p = 0;
    MP_OK(xep_group_allgather(group, &mine, all, sizeof mine));
    for (uint32_t r = 0; r < mp_nranks(); r++) {
        sum += all[r];
        if (all[r] > *most_p) *most_p = all[r];
    }
    return sum;
}

/* ---- plans ---- */

/* Everything to the last instance that is in, so to the replica with the highest rank. */
static int plan_last(void *ctx, const xep_plan_t *plan)
{
    const int *wrong = ctx;
    for (uint32_t e = 0; e < plan->experts; e++) {
        uint64_t rows = 0;
        uint32_t to = plan->begin[e + 1] - 1;
        for (uint32_t r = 0; r < plan->nranks; r++) rows += plan->counts[r * plan->experts + e];
        if (*wrong == 1 && e == 5 && plan->begin[e + 1] - plan->begin[e] > 1) to = plan->begin[e];
        while (to > plan->begin[e] && plan->out != NULL && plan->out[plan->rank[to]]) to--;
        plan->rows[to] = rows + (*wrong == 2 && e == 9);
    }
    return *wrong == 3 ? -5 : 0;
}

static int plan_wrong;

/* ---- the same as without ---- */

/* Some experts on some ranks, once more; none with one rank alone. */
static uint32_t replicate(xep_replica_t *replicas)
{
    uint32_t count = 0;
    for (uint32_t e = 0; e < EXPERTS; e++)
        for (uint32_t r = mp_nranks(); r-- > 0;) {
            uint32_t first, owned;
            xep_expert_range(EXPERTS, mp_nranks(), r, &first, &owned);
            if (e - first >= owned && (e + r) % 3 != 0 && count < COPIES) replicas[count++] = (xep_replica_t){e, r};
        }
    return count;
}

/* Compares the loads with those before one balanced dispatch. */
static void check_loads(xep_group_t *group, const xep_buffer_t *buffer, const xep_loads_t *before,
                        const xep_buffer_params_t *p, uint64_t served)
{
    xep_loads_t loads = XEP_LOADS_INIT;
    uint64_t most;
    const uint64_t sum = sum_of(group, served, &most);
    MP_OK(xep_buffer_loads(buffer, &loads));
    const uint64_t after = loads.most_after - before->most_after;
    MP_CHECK(loads.dispatches == before->dispatches + 1 && loads.selections - before->selections == sum);
    MP_CHECK(after == most && (p->balance == XEP_BALANCE_PLAN || after <= loads.most_before - before->most_before));
    if (p->balance == XEP_BALANCE_EVEN && p->nreplicas == 0) MP_CHECK(most == (sum + mp_nranks() - 1) / mp_nranks());
}

static void compare_routing(xep_group_t *group, xep_buffer_t *plain, xep_buffer_t *buffer, const xep_buffer_params_t *p,
                            routing_t routing)
{
    const uint32_t flags = p->balance != XEP_BALANCE_NONE ? XEP_DISPATCH_BALANCE : 0;
    float out[TOKENS][HIDDEN], expected[TOKENS][HIDDEN];
    xep_loads_t before = XEP_LOADS_INIT;
    uint64_t most;
    fill(routing, 3 + routing);
    const uint64_t all = sum_of(group, run(plain, 0, expected), &most);
    MP_CHECK(sum_of(group, run(buffer, 0, out), &most) == all);
    MP_CHECK(memcmp(out, expected, tokens * sizeof out[0]) == 0);
    MP_OK(xep_buffer_loads(buffer, &before));
    const uint64_t served = run(buffer, flags, out);
    MP_CHECK(memcmp(out, expected, tokens * sizeof out[0]) == 0);
    if (flags != 0) check_loads(group, buffer, &before, p, served);
    for (uint32_t i = 0; i < 5; i++) { /* areas are used again, by other counts */
        fill((routing + i) % NONE, i);
        run(plain, 0, expected);
        run(buffer, i != 3 ? flags : 0, out);
        MP_CHECK(memcmp(out, expected, tokens * sizeof out[0]) == 0);
    }
}

static void compare(xep_group_t *group, const char *mode, xep_balance_t rule, int with_owners, int with_replicas)
{
    xep_buffer_params_t p = params(mode), q = p;
    xep_replica_t replicas[COPIES];
    uint32_t owners[EXPERTS];
    xep_buffer_t *plain, *buffer;
    for (uint32_t e = 0; e < EXPERTS; e++) owners[e] = mp_nranks() - 1 - e * mp_nranks() / EXPERTS;
    q.balance = rule;
    if (with_replicas) q.replicas = replicas, q.nreplicas = replicate(replicas);
    if (with_owners) q.owners = owners;
    if (rule == XEP_BALANCE_PLAN) q.plan = plan_last, q.plan_ctx = &plan_wrong;
    MP_OK(xep_buffer_create(group, &p, &plain));
    MP_OK(xep_buffer_create(group, &q, &buffer));
    memset(replicas, 0xff, sizeof replicas); /* the buffer has its own */
    for (routing_t routing = 0; routing < ROUTINGS; routing++) compare_routing(group, plain, buffer, &q, routing);
    xep_buffer_destroy(buffer);
    xep_buffer_destroy(plain);
}

/* Every rank has every expert: no row leaves its rank. */
static void nearest(xep_group_t *group)
{
    float out[TOKENS][HIDDEN];
    xep_replica_t *replicas = mp_alloc(EXPERTS * mp_nranks() * sizeof *replicas, 0);
    xep_buffer_params_t p = params("normal");
    xep_dispatch_args_t args;
    xep_handle_t *handle;
    xep_buffer_t *buffer;
    for (uint32_t r = mp_nranks(); r-- > 0;) {
        uint32_t first, owned;
        xep_expert_range(EXPERTS, mp_nranks(), r, &first, &owned);
        for (uint32_t e = 0; e < EXPERTS; e++)
            if (e - first >= owned) replicas[p.nreplicas++] = (xep_replica_t){e, r};
    }
    p.replicas = replicas;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    fill(UNIFORM, 1);
    args = dispatch_args(0);
    MP_OK(xep_dispatch(buffer, &args, &handle, NULL));
    const xep_recv_t *recv;
    MP_OK(xep_handle_recv(handle, &recv));
    MP_CHECK(recv->local_experts == EXPERTS && recv->experts[5] == 5);
    for (uint32_t i = 0; i < mp_nranks(); i++)
        for (uint32_t j = 0; j < mp_nranks(); j++) MP_CHECK(i == j || recv->rank_rows[i * mp_nranks() + j] == 0);
    finish(handle, out);
    xep_buffer_destroy(buffer);
    mp_free(replicas, "replicas");
}

/* The two last ranks have all experts: selections of the others go to them in turn, first to the next one. */
static void nearest_in_turn(xep_group_t *group)
{
    const uint32_t n = mp_nranks();
    float out[TOKENS][HIDDEN];
    xep_replica_t replicas[EXPERTS];
    uint32_t owners[EXPERTS];
    uint64_t mine = 0, counts[64], expected = 0;
    xep_buffer_params_t p = params("ll");
    xep_buffer_t *buffer;
    for (uint32_t e = 0; e < EXPERTS; e++) owners[e] = n - 1, replicas[e] = (xep_replica_t){e, n - 2};
    p.owners = owners, p.replicas = replicas, p.nreplicas = EXPERTS;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    fill(SKEWED, 12);
    for (uint64_t t = 0; t < tokens; t++)
        for (uint32_t k = 0; k < TOPK; k++) mine += idx[t][k] >= 0;
    MP_OK(xep_group_allgather(group, &mine, counts, sizeof mine));
    const uint64_t served = run(buffer, 0, out);
    for (uint32_t r = 0; r < n; r++) {
        if (r == mp_rank()) expected += r < n - 2 ? 0 : mine;
        if (r < n - 2 && mp_rank() >= n - 2) expected += (counts[r] + (mp_rank() == n - 2)) / 2;
    }
    MP_CHECK(served == expected);
    xep_buffer_destroy(buffer);
}

/* On nodes of two each even rank has all experts: rows of odd ones stay on their node. */
static void nearest_of_node(xep_group_t *nodes)
{
    float out[TOKENS][HIDDEN];
    xep_replica_t replicas[EXPERTS * 64];
    uint32_t owners[EXPERTS] = {0};
    uint64_t mine = 0, counts[64];
    xep_buffer_params_t p = params("normal");
    xep_buffer_t *buffer;
    for (uint32_t e = 0; e < EXPERTS; e++)
        for (uint32_t r = 2; r < mp_nranks(); r += 2) replicas[p.nreplicas++] = (xep_replica_t){e, r};
    p.owners = owners, p.replicas = replicas;
    MP_OK(xep_buffer_create(nodes, &p, &buffer));
    fill(UNIFORM, 13);
    for (uint64_t t = 0; t < tokens; t++)
        for (uint32_t k = 0; k < TOPK; k++) mine += idx[t][k] >= 0;
    MP_OK(xep_group_allgather(nodes, &mine, counts, sizeof mine));
    counts[mp_nranks()] = 0;
    MP_CHECK(run(buffer, 0, out) == (mp_rank() % 2 == 0 ? mine + counts[mp_rank() + 1] : 0));
    xep_buffer_destroy(buffer);
}

/* What normal documents: ranks ascending, whichever of them have computed. */
static void sums_follow_instances(xep_group_t *group)
{
    float out[TOKENS][HIDDEN], sums[TOKENS][HIDDEN] = {{0}};
    xep_replica_t replicas[COPIES];
    uint32_t of[EXPERTS], first, owned;
    xep_buffer_params_t p = params("normal");
    xep_buffer_t *buffer;
    p.replicas = replicas, p.nreplicas = replicate(replicas), p.balance = XEP_BALANCE_PLAN;
    p.plan = plan_last, p.plan_ctx = &plan_wrong;
    for (uint32_t r = 0; r < mp_nranks(); r++) {
        xep_expert_range(EXPERTS, mp_nranks(), r, &first, &owned);
        for (uint32_t e = first; e < first + owned; e++) of[e] = r;
    }
    for (uint32_t r = 0; r < mp_nranks(); r++)
        for (uint32_t i = 0; i < p.nreplicas; i++)
            if (replicas[i].rank == r) of[replicas[i].expert] = r;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    unit = 1.0f / 3;
    fill(UNIFORM, 14);
    run(buffer, XEP_DISPATCH_BALANCE, out);
    for (uint32_t r = 0; r < mp_nranks(); r++)
        for (uint64_t t = 0; t < tokens; t++)
            for (uint32_t i = 0; i < HIDDEN; i++) {
                float part = 0;
                for (uint32_t k = 0; k < TOPK; k++)
                    if (idx[t][k] >= 0 && of[idx[t][k]] == r) part += weights[t][k] * (x[t][i] + (float)idx[t][k]);
                sums[t][i] += part;
            }
    unit = 1;
    MP_CHECK(memcmp(out, sums, tokens * sizeof out[0]) == 0);
    xep_buffer_destroy(buffer);
}

/* Several in flight, one behind another, one with the routing of another. */
static void in_flight(xep_group_t *group, const char *mode)
{
    float out[TOKENS][HIDDEN], expected[TOKENS][HIDDEN];
    xep_buffer_params_t p = params(mode);
    xep_handle_t *first, *second, *third;
    xep_request_t *begun, *behind;
    xep_buffer_t *plain, *buffer;
    MP_OK(xep_buffer_create(group, &p, &plain));
    p.balance = XEP_BALANCE_EVEN;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    fill(SKEWED, 9);
    run(plain, 0, expected);
    xep_dispatch_args_t args = dispatch_args(XEP_DISPATCH_BALANCE);
    MP_OK(xep_dispatch(buffer, &args, &first, &begun));
    args.after = begun;
    MP_OK(xep_dispatch(buffer, &args, &second, &behind));
    mp_finish(behind);
    mp_finish(begun);
    args.after = NULL, args.cached = second, args.topk_idx = NULL, args.topk_weights = NULL;
    MP_OK(xep_dispatch(buffer, &args, &third, NULL));
    finish(first, out);
    MP_CHECK(memcmp(out, expected, tokens * sizeof out[0]) == 0);
    const uint64_t served = finish(second, out);
    MP_CHECK(memcmp(out, expected, tokens * sizeof out[0]) == 0);
    MP_CHECK(finish(third, out) == served);
    xep_buffer_destroy(buffer);
    xep_buffer_destroy(plain);
}

/* ---- dispatches of other forms ---- */

typedef struct form {
    const char *name;
    uint32_t buffer_flags, flags;
    xep_quant_t quant;
    int has_payload;
} form_t;

/* Returns how many pieces there were. */
static uint64_t run_form(xep_buffer_t *buffer, const form_t *form, uint32_t flags, float out[TOKENS][HIDDEN])
{
    static float beside[TOKENS];
    const xep_payload_t payload = {.data = beside, .bytes = sizeof beside[0], .alignment = 4};
    xep_dispatch_args_t args = dispatch_args(form->flags | flags);
    xep_handle_t *handle;
    void *base;
    for (uint32_t t = 0; t < TOKENS; t++) beside[t] = (float)(t % 5 + mp_rank());
    if (form->has_payload) args.payloads = &payload, args.npayloads = 1;
    args.quant = form->quant;
    if (form->buffer_flags & XEP_BUFFER_SEND_MEMORY) {
        MP_OK(xep_buffer_send_memory(buffer, &base, &args.x_stride));
        for (uint64_t t = 0; t < tokens; t++) memcpy((char *)base + t * args.x_stride, x[t], sizeof x[t]);
        args.x = base;
    }
    MP_OK(xep_dispatch(buffer, &args, &handle, NULL));
    const uint64_t pieces = mp_recv(handle)->pieces;
    finish(handle, out);
    return pieces;
}

/* The same bits as without instances, whatever the form. */
static void other_forms(xep_group_t *group, const char *mode, xep_balance_t rule, int with_replicas)
{
    static const form_t forms[] = {
        {.name = "pieces", .buffer_flags = XEP_BUFFER_PIECES, .flags = XEP_DISPATCH_PIECES},
        {.name = "in place", .buffer_flags = XEP_BUFFER_SEND_MEMORY, .flags = XEP_DISPATCH_IN_PLACE},
        {.name = "cast", .quant = XEP_QUANT_E4M3},
        {.name = "payload", .has_payload = 1},
    };
    float out[TOKENS][HIDDEN], expected[TOKENS][HIDDEN];
    xep_replica_t replicas[COPIES];
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        const form_t *form = &forms[i];
        xep_buffer_params_t p = params(mode), q;
        xep_buffer_t *plain, *buffer;
        uint64_t pieces = 0;
        p.flags = form->buffer_flags, p.scales = form->quant != 0 || form->has_payload ? 4 : 0;
        p.recv_rows = form->buffer_flags & XEP_BUFFER_PIECES ? 40 : 0;
        q = p, q.balance = rule;
        if (with_replicas) q.replicas = replicas, q.nreplicas = replicate(replicas);
        MP_OK(xep_buffer_create(group, &p, &plain));
        MP_OK(xep_buffer_create(group, &q, &buffer));
        for (uint32_t round = 0; round < 4; round++) {
            fill((routing_t)(round % NONE), round + 20);
            run_form(plain, form, 0, expected);
            pieces += run_form(buffer, form, rule != XEP_BALANCE_NONE && round != 2 ? XEP_DISPATCH_BALANCE : 0, out);
            if (memcmp(out, expected, tokens * sizeof out[0]) != 0)
                mp_fail(__FILE__, __LINE__, "%s, %s, balance %d, round %u: other bits", mode, form->name, (int)rule,
                        round);
        }
        MP_CHECK(mp_nranks() == 1 || (pieces > 4) == (p.recv_rows != 0));
        xep_buffer_destroy(buffer);
        xep_buffer_destroy(plain);
    }
}

/* ---- what is wrong ---- */

static void refused_params(xep_group_t *group)
{
    xep_buffer_params_t p = params("ll");
    xep_buffer_t *none = NULL;
    xep_replica_t replicas[2] = {{4, mp_nranks() - 1}, {4, mp_nranks() - 1}};
    uint32_t owners[EXPERTS] = {0};
    p.replicas = replicas, p.nreplicas = 2, p.owners = owners;
    MP_SAYS(XEP_ERR_INVALID,
            mp_nranks() == 1 ? "expert 4 on rank 0 (which owns it)" : "invalid replicas: expert 4 on rank",
            xep_buffer_create(group, &p, &none));
    replicas[1].rank = mp_nranks();
    if (mp_nranks() == 1) replicas[0].expert = EXPERTS;
    MP_SAYS(XEP_ERR_INVALID,
            mp_nranks() == 1 ? "invalid replicas[0]: expert 13" : "invalid replicas[1]: expert 4 on rank",
            xep_buffer_create(group, &p, &none));
    p.nreplicas = 0, p.balance = XEP_BALANCE_PLAN;
    MP_SAYS(XEP_ERR_INVALID, "plan is NULL", xep_buffer_create(group, &p, &none));
    if (mp_nranks() == 1) return;
    p.nreplicas = 1;
    p.balance = XEP_BALANCE_NONE, replicas[0].expert = mp_is_last() ? 6 : 5;
    MP_SAYS(XEP_ERR_MISMATCH, "and rank 0 disagree on the replicas of expert 5", xep_buffer_create(group, &p, &none));
    MP_CHECK(none == NULL);
}

/* Other plans, plans that do not add up, and none: on one rank, and all are told. */
static void wrong_plans(xep_group_t *group)
{
    static const char *const own[] = {"have different plans for expert 5", "invalid plan: the rows of expert 9",
                                      "params.plan returned -5"};
    static const char *const others[] = {NULL, "has no valid plan: the rows of expert 9 do not add up",
                                         "has no plan: its function failed"};
    float out[TOKENS][HIDDEN];
    xep_replica_t replicas[COPIES];
    xep_buffer_params_t p = params("normal");
    xep_dispatch_args_t args;
    xep_handle_t *handle = NULL;
    xep_buffer_t *buffer;
    p.replicas = replicas, p.nreplicas = replicate(replicas), p.balance = XEP_BALANCE_PLAN;
    p.plan = plan_last, p.plan_ctx = &plan_wrong;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    fill(UNIFORM, 4);
    for (int i = 0; i < 3; i++) {
        plan_wrong = mp_is_last() ? i + 1 : 0;
        args = dispatch_args(XEP_DISPATCH_BALANCE);
        const xep_status_t expected = i == 0 || !mp_is_last() ? XEP_ERR_MISMATCH : XEP_ERR_INVALID;
        MP_SAYS(expected, expected == XEP_ERR_INVALID || i == 0 ? own[i] : others[i],
                xep_dispatch(buffer, &args, &handle, NULL));
        plan_wrong = 0;
        run(buffer, XEP_DISPATCH_BALANCE, out);
    }
    MP_CHECK(handle == NULL);
    xep_buffer_destroy(buffer);
}

/* A call that one rank refuses; one that it never makes. Afterwards all is well. */
static void missing_calls(xep_group_t *group)
{
    float out[TOKENS][HIDDEN];
    xep_buffer_params_t p = params("ll");
    xep_handle_t *handle = NULL;
    xep_buffer_t *buffer;
    char text[64];
    MP_OK(xep_buffer_create(group, &p, &buffer));
    fill(UNIFORM, 2);
    xep_dispatch_args_t args = dispatch_args(XEP_DISPATCH_BALANCE);
    MP_SAYS(XEP_ERR_INVALID, "invalid flags: 0x20", xep_dispatch(buffer, &args, &handle, NULL));
    xep_buffer_destroy(buffer);
    p.balance = XEP_BALANCE_EVEN;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    if (mp_is_last()) idx[1][1] = EXPERTS;
    MP_FAILS(mp_is_last() ? XEP_ERR_INVALID : XEP_ERR_MISMATCH, xep_dispatch(buffer, &args, &handle, NULL));
    MP_FAILS(XEP_ERR_MISMATCH, (idx[1][1] = 0, xep_dispatch(buffer, &args, &handle, NULL)));
    run(buffer, XEP_DISPATCH_BALANCE, out);
    MP_OK(xep_group_barrier(group));
    args.timeout_ms = 300;
    snprintf(text, sizeof text, "rank %u has not called it", mp_nranks() - 1);
    if (!mp_is_last()) {
        /* the first one whose deadline has passed tells the others */
        const xep_status_t status = xep_dispatch(buffer, &args, &handle, NULL);
        MP_CHECK(status == XEP_ERR_TIMEOUT || status == XEP_ERR_BROKEN);
        MP_REASON(text);
        MP_FAILS(XEP_ERR_BROKEN, xep_dispatch(buffer, &args, &handle, NULL));
    }
    MP_OK(xep_group_barrier(group));
    MP_OK(xep_buffer_reset(buffer));
    for (int i = 0; i < 3; i++) run(buffer, XEP_DISPATCH_BALANCE, out);
    xep_buffer_destroy(buffer);
    MP_CHECK(handle == NULL);
}

/* ---- ranks that die, or stop ---- */

enum { ROUNDS = 48, STOPS = 10, GOES_ON = 30, SPREAD_US = 150 * 1000 };

static uint32_t servers[EXPERTS]; /* sets of ranks */

static void list_servers(const xep_buffer_params_t *p)
{
    const int is_whole = p->balance == XEP_BALANCE_EVEN && p->nreplicas == 0;
    for (uint32_t r = 0; r < mp_nranks(); r++) {
        uint32_t first, owned;
        xep_expert_range(EXPERTS, mp_nranks(), r, &first, &owned);
        for (uint32_t e = 0; e < EXPERTS; e++)
            if (is_whole || e - first < owned) servers[e] |= 1u << r;
    }
    for (uint32_t i = 0; i < p->nreplicas; i++) servers[p->replicas[i].expert] |= 1u << p->replicas[i].rank;
}

/* before: who was out of an earlier dispatch; after: who is now. Between them selections of an expert of these may be
 * missing, or not. */
static void check_missing(float out[TOKENS][HIDDEN], const uint8_t *missing, uint32_t before, uint32_t after)
{
    for (uint32_t t = 0; t < tokens; t++) {
        float sum[HIDDEN] = {0};
        for (uint32_t k = 0; k < TOPK; k++) {
            const uint32_t set = idx[t][k] < 0 ? 0 : servers[idx[t][k]];
            const int miss = missing[t * TOPK + k];
            if (set == 0) continue;
            MP_CHECK(miss <= 1 && (!miss || (set & after) != 0));
            if ((set & ~after) == 0 && before == after) MP_CHECK(miss);
            if ((set & ~after) != 0 && before == after) MP_CHECK(!miss);
            for (uint32_t i = 0; i < HIDDEN && !miss; i++) sum[i] += weights[t][k] * (x[t][i] + (float)idx[t][k]);
        }
        MP_CHECK(memcmp(out[t], sum, sizeof sum) == 0);
    }
}

/* What this rank says of a dispatch that it was left out of, or of what follows. */
static int leave(xep_group_t *group, xep_buffer_t *buffer, xep_status_t status, atomic_int *left)
{
    MP_CHECK(status == XEP_ERR_PEER);
    MP_REASON("this rank is out");
    xep_group_abort(group);
    xep_buffer_destroy(buffer);
    atomic_store(left, 1);
    xep_group_destroy(group);
    printf("left\n");
    return 0;
}

static xep_status_t play(xep_group_t *group, xep_buffer_t *buffer, uint32_t round, uint32_t flags, uint32_t *out_p)
{
    float out[TOKENS][HIDDEN];
    uint8_t missing[TOKENS * TOPK];
    const uint32_t before = *out_p;
    xep_handle_t *handle;
    uint64_t served;
    fill((routing_t)(round % NONE), round);
    const xep_dispatch_args_t args = dispatch_args(flags);
    xep_status_t status = xep_dispatch(buffer, &args, &handle, NULL);
    if (status != XEP_OK) return status;
    *out_p |= mp_out_of(mp_recv(handle));
    memset(missing, 0x5a, sizeof missing);
    status = finish_missing(handle, out, missing, &served);
    if (status == XEP_OK) check_missing(out, missing, before, mp_ranks_out(group));
    return status;
}

/* All that are left share what there is. */
static void check_last(xep_group_t *group, xep_buffer_t *buffer, uint32_t *out_p)
{
    xep_loads_t before = XEP_LOADS_INIT, after = XEP_LOADS_INIT;
    const uint64_t left = mp_nranks() - (uint32_t)__builtin_popcount(*out_p);
    MP_OK(xep_buffer_loads(buffer, &before));
    MP_OK(play(group, buffer, 0, XEP_DISPATCH_BALANCE, out_p));
    MP_OK(xep_buffer_loads(buffer, &after));
    const uint64_t sum = after.selections - before.selections;
    MP_CHECK(sum != 0 && after.most_after - before.most_after == (sum + left - 1) / left);
}

static xep_balance_t find_rule(const char *name)
{
    static const char *const names[] = {"none", "least", "even", "plan"};
    int rule = 0;
    while (rule < 4 && strcmp(names[rule], name) != 0) rule++;
    return rule < 4 ? (xep_balance_t)rule : XEP_BALANCE_EVEN;
}

/*
 * SCENARIO MODE RULE SEED, for survivors.sh: two ranks are killed by a timer, or rank 1 stops before a dispatch. RULE
 * replicas: EVEN over some instances.
 */
static int survive(xep_group_t *group, char **argv)
{
    const int stops = strcmp(argv[1], "stopped") == 0, is_some = strcmp(argv[3], "replicas") == 0;
    const xep_balance_t rule = find_rule(argv[3]);
    const uint32_t n = mp_nranks(), seed = (uint32_t)atoi(argv[4]), first = seed % n;
    const uint32_t dead = stops ? 2 : 1u << first | 1u << (first + 1 + seed / n % (n - 1)) % n;
    const uint32_t flags = rule != XEP_BALANCE_NONE ? XEP_DISPATCH_BALANCE : 0;
    atomic_int *left = mp_counter(group);
    xep_replica_t replicas[COPIES];
    xep_buffer_params_t p = params(argv[2]);
    xep_buffer_t *buffer;
    uint32_t out = 0;
    int32_t pid = getpid(), pids[8];
    MP_OK(xep_group_allgather(group, &pid, pids, sizeof pid));
    p.on_failure = XEP_ON_FAILURE_MASK, p.timeout_ms = 2000, p.balance = rule;
    if (rule != XEP_BALANCE_EVEN || is_some) p.replicas = replicas, p.nreplicas = replicate(replicas);
    if (rule == XEP_BALANCE_PLAN) p.plan = plan_last, p.plan_ctx = &plan_wrong;
    list_servers(&p);
    MP_OK(xep_buffer_create(group, &p, &buffer));
    if (!stops && (dead >> mp_rank() & 1)) mp_die_within(seed * n + mp_rank(), SPREAD_US);
    for (uint32_t round = 0; round < ROUNDS + 4; round++) {
        mp_sleep_us(round == ROUNDS ? SPREAD_US : SPREAD_US / ROUNDS); /* so that all timers end before the last ones */
        if (stops && mp_rank() == 1 && round == STOPS) raise(SIGSTOP);
        if (stops && mp_rank() == 0 && round == GOES_ON) kill(pids[1], SIGCONT);
        const xep_status_t status = play(group, buffer, round, round % 4 != 3 ? flags : 0, &out);
        if (status != XEP_OK && (dead >> mp_rank() & 1)) return leave(group, buffer, status, left);
        MP_OK(status);
    }
    MP_CHECK(out == dead);
    if (rule == XEP_BALANCE_EVEN && !is_some) check_last(group, buffer, &out);
    if (stops) mp_await(left, 1);
    xep_buffer_destroy(buffer);
    xep_group_destroy(group);
    printf("survived\n");
    return 0;
}

static void all(xep_group_t *group)
{
    for (int i = 0; i < 2; i++) {
        unit = i == 1 ? 1.0f / 3 : 1; /* ll sums by k, whoever has computed */
        compare(group, mp_modes[i], XEP_BALANCE_NONE, 0, 1);
        compare(group, mp_modes[i], XEP_BALANCE_LEAST_LOADED, 0, 1);
        compare(group, mp_modes[i], XEP_BALANCE_EVEN, 0, 1);
        compare(group, mp_modes[i], XEP_BALANCE_EVEN, 1, 0);
        compare(group, mp_modes[i], XEP_BALANCE_EVEN, 0, 0);
        compare(group, mp_modes[i], XEP_BALANCE_PLAN, 0, 1);
        in_flight(group, mp_modes[i]);
    }
    unit = 1;
    nearest(group);
    if (mp_nranks() > 2) nearest_in_turn(group);
    sums_follow_instances(group);
}

/* On nodes of two, rows and sums go by nodes. */
static void by_nodes(xep_group_t *group)
{
    setenv("XEP_NODE_RANKS", "2", 1);
    setenv("XEP_PATH", "nodes", 1);
    xep_group_t *nodes = mp_second_group(group, 0);
    for (int i = 0; i < 2; i++) {
        compare(nodes, mp_modes[i], XEP_BALANCE_LEAST_LOADED, 0, 1);
        other_forms(nodes, mp_modes[i], XEP_BALANCE_EVEN, 0);
    }
    nearest_of_node(nodes);
    xep_group_destroy(nodes);
}

/* ---- a rank that serves ---- */

static xep_status_t serve_rows(void *arg, xep_serve_call_t *call)
{
    uint64_t *rows = arg;
    for (uint64_t row = 0; row < call->recv->rows; row++)
        compute(call->recv, row, (float *)(void *)((char *)call->out + row * call->out_stride));
    *rows += call->recv->rows;
    return XEP_OK;
}

/* Its last one but two fails, for want of a plan, on all ranks. The two behind it are announced as layers. */
static void work_balanced(xep_buffer_t *buffer, int has_plan, uint32_t rounds, float expected[][TOKENS][HIDDEN])
{
    float out[TOKENS][HIDDEN];
    for (uint32_t i = 0; i < rounds; i++) {
        fill((routing_t)(i % NONE), i);
        if (i + 2 == rounds) {
            xep_dispatch_args_t args = dispatch_args(XEP_DISPATCH_BALANCE);
            xep_handle_t *handle = NULL;
            plan_wrong = mp_rank() == 0 ? 3 : 0;
            const xep_status_t status = mp_rank() == 0 ? XEP_ERR_INVALID : XEP_ERR_MISMATCH;
            if (has_plan) MP_FAILS(status, xep_dispatch(buffer, &args, &handle, NULL));
            plan_wrong = 0;
            MP_OK(xep_announce_layers(buffer, 2));
        }
        run(buffer, i != 1 ? XEP_DISPATCH_BALANCE : 0, out);
        MP_CHECK(memcmp(out, expected[i], tokens * sizeof out[0]) == 0);
    }
    MP_OK(xep_step_end(&buffer, 1, XEP_STEP_LAST));
}

/* The last rank has no tokens and serves: experts of others, too. */
static void served(xep_group_t *group, const char *mode, xep_balance_t rule)
{
    enum { SERVED = 6 };
    static float expected[SERVED][TOKENS][HIDDEN];
    xep_replica_t replicas[COPIES];
    xep_buffer_params_t p = params(mode);
    xep_buffer_t *plain, *buffer;
    uint64_t rows = 0;
    MP_OK(xep_buffer_create(group, &p, &plain));
    p.balance = rule, p.flags = XEP_BUFFER_SERVED;
    p.replicas = replicas, p.nreplicas = rule == XEP_BALANCE_EVEN ? 0 : replicate(replicas);
    if (rule == XEP_BALANCE_PLAN) p.plan = plan_last, p.plan_ctx = &plan_wrong;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    for (uint32_t i = 0; i < SERVED; i++) {
        fill((routing_t)(i % NONE), i);
        if (mp_is_last()) tokens = 0;
        run(plain, 0, expected[i]);
    }
    if (mp_is_last()) {
        xep_serve_args_t args = XEP_SERVE_ARGS_INIT;
        args.buffers = &buffer, args.count = 1, args.fn = serve_rows, args.arg = &rows;
        MP_OK(xep_serve(&args));
        MP_CHECK(rows != 0);
    } else {
        work_balanced(buffer, rule == XEP_BALANCE_PLAN, SERVED, expected);
    }
    xep_buffer_destroy(buffer);
    xep_buffer_destroy(plain);
}

static void all_served(xep_group_t *group)
{
    served(group, "normal", XEP_BALANCE_EVEN);
    served(group, "ll", XEP_BALANCE_LEAST_LOADED);
    served(group, "ll", XEP_BALANCE_PLAN);
}

int main(int argc, char **argv)
{
    xep_group_t *group = mp_group(), *unmapped;
    if (argc == 5) return survive(group, argv);
    all(group);
    for (int i = 0; i < 2; i++) other_forms(group, i == 0 ? "normal" : "ll", XEP_BALANCE_NONE, 1);
    refused_params(group);
    if (mp_nranks() > 1) {
        wrong_plans(group);
        missing_calls(group);
        all_served(group);
        setenv("XEP_MAP", "never", 1);
        unmapped = mp_second_group(group, 0);
        all(unmapped);
        missing_calls(unmapped);
        all_served(unmapped);
        xep_group_destroy(unmapped);
        unsetenv("XEP_MAP");
        by_nodes(group);
    }
    return mp_end(group);
}
