/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1 3 6, limit: 120, brief: 3 */

/*
 * Experts with several instances: by replicas, by plans that all ranks compute alike, by plans of the caller's. What
 * comes back is, bit for bit, what the oracle has, which does not know who computes; what is sent is where the rule
 * wants it.
 */

#define _GNU_SOURCE /* kill */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mp_pieces.h"
#include "mp_rig.h"

enum { EXPERTS = 13, TOPK = 3, HIDDEN = 48, TOKENS = 37, COPIES = 40 };

typedef enum { UNIFORM, SKEWED, ONE, NONE, ROUTINGS } kind_t;

static struct routing {
    kind_t kind;
    uint32_t seed;
} routing;

/* Unlike the generator's a token may select an expert several times. */
static void route(const oracle_shape_t *shape, uint32_t rank, uint64_t token, int32_t *idx, float *weights)
{
    uint32_t state = routing.seed * 2654435761u + rank * 40503u + (uint32_t)token * 69069u + 1;
    (void)shape;
    for (uint32_t k = 0; k < TOPK; k++) {
        state = state * 1664525u + 1013904223u;
        const uint32_t random = state >> 8;
        weights[k] = (float)(1 + random % 5) / 3;
        idx[k] = (int32_t)(routing.kind == UNIFORM || random % 4 == 0 ? random / 4 % EXPERTS : 2);
        if (routing.kind == ONE) idx[k] = 7;
        if (routing.kind == NONE || random % 11 == 0) idx[k] = -1;
    }
}

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
        plan->rows[to] = rows + (*wrong == 2 && e == 9) - (*wrong == 4 && e == 9);
    }
    return *wrong == 3 ? -5 : 0;
}

static int plan_wrong;

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

/* Rank 1 has no tokens. The replicas are those of the last case made. */
static mp_case_t case_of(const char *mode, xep_balance_t rule, int with_replicas)
{
    static xep_replica_t replicas[COPIES];
    static oracle_source_t source;
    source = oracle_generator, source.route = route;
    const int is_plan = rule == XEP_BALANCE_PLAN;
    return (mp_case_t){.name = "balanced",
                       .mode = mode,
                       .source = &source,
                       MP_SHAPE(EXPERTS, TOPK, HIDDEN, TOKENS),
                       MP_FP32,
                       .balance = rule,
                       .replicas = replicas,
                       .nreplicas = with_replicas ? replicate(replicas) : 0,
                       .plan = is_plan ? plan_last : NULL,
                       .plan_ctx = is_plan ? &plan_wrong : NULL,
                       .ragged = 1,
                       .weights = 1,
                       .slots = 3};
}

/* ---- the same as without ---- */

static void fill(mp_job_t *job, kind_t kind, uint32_t seed)
{
    routing.kind = kind, routing.seed = seed;
    mp_job_payload(job, seed);
}

static xep_dispatch_args_t dispatch_args(mp_job_t *job, uint32_t flags)
{
    xep_dispatch_args_t args = mp_job_dispatch(job);
    args.flags |= flags;
    return args;
}

/* All pieces, and their combine. Returns the selections that this rank served. */
static uint64_t finish(mp_job_t *job, xep_handle_t *handle)
{
    uint64_t served = 0;
    for (;;) {
        const xep_recv_t *recv = mp_recv(handle);
        mp_job_check_recv(job, handle);
        for (uint32_t e = 0; e < recv->local_experts; e++) served += recv->expert_rows[e];
        if (recv->piece + 1 >= recv->pieces) break;
        const xep_next_args_t next = mp_pieces_outputs(job, handle);
        MP_OK(xep_handle_next(handle, &next, NULL));
    }
    mp_job_sum(job, handle);
    xep_handle_release(handle);
    return served;
}

static uint64_t run(mp_job_t *job, uint32_t flags)
{
    const xep_dispatch_args_t args = dispatch_args(job, flags);
    xep_handle_t *handle;
    MP_OK(xep_dispatch(job->buffer, &args, &handle, NULL));
    return finish(job, handle);
}

static int64_t *idx_of(const mp_job_t *job)
{
    return job->idx;
}

/* Selections of this rank's tokens. */
static uint64_t count_selections(const mp_job_t *job)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < job->tokens * TOPK; i++) count += idx_of(job)[i] >= 0;
    return count;
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

/* Compares the loads with those before one balanced dispatch. */
static void check_loads(xep_group_t *group, const mp_job_t *job, const xep_loads_t *before, uint64_t served)
{
    const mp_case_t *c = job->c;
    xep_loads_t loads = XEP_LOADS_INIT;
    uint64_t most;
    const uint64_t sum = sum_of(group, served, &most);
    MP_OK(xep_buffer_loads(job->buffer, &loads));
    const uint64_t after = loads.most_after - before->most_after;
    MP_CHECK(loads.dispatches == before->dispatches + 1 && loads.selections - before->selections == sum);
    MP_CHECK(after == most && (c->balance == XEP_BALANCE_PLAN || after <= loads.most_before - before->most_before));
    if (c->balance == XEP_BALANCE_EVEN && c->nreplicas == 0) MP_CHECK(most == (sum + mp_nranks() - 1) / mp_nranks());
}

static void compare_routing(xep_group_t *group, mp_job_t *job, kind_t kind)
{
    const uint32_t flags = job->c->balance != XEP_BALANCE_NONE ? XEP_DISPATCH_BALANCE : 0;
    xep_loads_t before = XEP_LOADS_INIT;
    uint64_t most;
    fill(job, kind, 3 + kind);
    const uint64_t all = sum_of(group, count_selections(job), &most);
    MP_CHECK(sum_of(group, run(job, 0), &most) == all);
    MP_OK(xep_buffer_loads(job->buffer, &before));
    const uint64_t served = run(job, flags);
    if (flags != 0) check_loads(group, job, &before, served);
    for (uint32_t i = 0; i < 5; i++) { /* areas are used again, by other counts */
        fill(job, (kind + i) % NONE, i);
        run(job, i != 3 ? flags : 0);
    }
}

static void compare(xep_group_t *group, const char *mode, xep_balance_t rule, const char *owners, int with_replicas)
{
    mp_case_t c = case_of(mode, rule, with_replicas);
    xep_replica_t replicas[COPIES];
    mp_job_t job;
    memcpy(replicas, c.replicas, sizeof replicas);
    c.owners = owners, c.replicas = replicas;
    mp_job_begin(&job, &c, 1, group);
    memset(replicas, 0xff, sizeof replicas); /* the buffer has its own */
    for (kind_t kind = 0; kind < ROUTINGS; kind++) compare_routing(group, &job, kind);
    mp_job_close(&job);
}

/* Every rank has every expert: no row leaves its rank. */
static void nearest(xep_group_t *group)
{
    mp_case_t c = case_of("normal", XEP_BALANCE_NONE, 0);
    xep_replica_t *replicas = mp_alloc(EXPERTS * mp_nranks() * sizeof *replicas, 0);
    mp_job_t job;
    for (uint32_t r = mp_nranks(); r-- > 0;) {
        uint32_t first, owned;
        xep_expert_range(EXPERTS, mp_nranks(), r, &first, &owned);
        for (uint32_t e = 0; e < EXPERTS; e++)
            if (e - first >= owned) replicas[c.nreplicas++] = (xep_replica_t){e, r};
    }
    c.replicas = replicas;
    mp_job_begin(&job, &c, 1, group);
    fill(&job, UNIFORM, 1);
    xep_handle_t *handle = mp_job_receive(&job, NULL);
    const xep_recv_t *recv = mp_recv(handle);
    MP_CHECK(recv->local_experts == EXPERTS && recv->experts[5] == 5);
    for (uint32_t i = 0; i < mp_nranks(); i++)
        for (uint32_t j = 0; j < mp_nranks(); j++) MP_CHECK(i == j || recv->rank_rows[i * mp_nranks() + j] == 0);
    finish(&job, handle);
    mp_job_close(&job);
    mp_free(replicas, "replicas");
}

/* The last rank owns all experts. */
static const char *last_owns(char text[32])
{
    snprintf(text, 32, "split:%u", mp_nranks() - 1);
    return text;
}

/* The two last ranks have all experts: selections of the others go to them in turn, first to the next one. */
static void nearest_in_turn(xep_group_t *group)
{
    const uint32_t n = mp_nranks();
    mp_case_t c = case_of("ll", XEP_BALANCE_NONE, 0);
    xep_replica_t replicas[EXPERTS];
    uint64_t counts[64], expected = 0;
    char owners[32];
    mp_job_t job;
    for (uint32_t e = 0; e < EXPERTS; e++) replicas[e] = (xep_replica_t){e, n - 2};
    c.owners = last_owns(owners), c.replicas = replicas, c.nreplicas = EXPERTS;
    mp_job_begin(&job, &c, 1, group);
    fill(&job, SKEWED, 12);
    const uint64_t mine = count_selections(&job);
    MP_OK(xep_group_allgather(group, &mine, counts, sizeof mine));
    const uint64_t served = run(&job, 0);
    for (uint32_t r = 0; r < n; r++) {
        if (r == mp_rank()) expected += r < n - 2 ? 0 : mine;
        if (r < n - 2 && mp_rank() >= n - 2) expected += (counts[r] + (mp_rank() == n - 2)) / 2;
    }
    MP_CHECK(served == expected);
    mp_job_close(&job);
}

/* On nodes of two each odd rank has all experts, and the last one: rows of even ones stay on their node. */
static void nearest_of_node(xep_group_t *nodes)
{
    const uint32_t n = mp_nranks(), serves = mp_rank() % 2 == 1 || mp_is_last();
    mp_case_t c = case_of("normal", XEP_BALANCE_NONE, 0);
    xep_replica_t replicas[EXPERTS * 64];
    uint64_t counts[64];
    char owners[32];
    mp_job_t job;
    for (uint32_t e = 0; e < EXPERTS; e++)
        for (uint32_t r = 1; r < n - 1; r += 2) replicas[c.nreplicas++] = (xep_replica_t){e, r};
    c.owners = last_owns(owners), c.replicas = replicas;
    mp_job_begin(&job, &c, 1, nodes);
    fill(&job, UNIFORM, 13);
    const uint64_t mine = count_selections(&job);
    MP_OK(xep_group_allgather(nodes, &mine, counts, sizeof mine));
    const uint64_t served = run(&job, 0);
    if (job.nodes[0] == job.nodes[1]) /* over TCP alone each rank is a node */
        MP_CHECK(served == (serves ? mine + (mp_rank() % 2 == 1 ? counts[mp_rank() - 1] : 0) : 0));
    mp_job_close(&job);
}

/* What normal documents: ranks ascending, whichever of them have computed. The oracle takes them for the owners. */
static void sums_follow_instances(xep_group_t *group)
{
    const mp_case_t c = case_of("normal", XEP_BALANCE_PLAN, 1);
    uint32_t *of = malloc(EXPERTS * sizeof *of);
    xep_handle_t *handle;
    mp_job_t job;
    mp_job_begin(&job, &c, 1, group);
    MP_CHECK(of != NULL);
    for (uint32_t e = 0; e < EXPERTS; e++) of[e] = oracle_owner(job.routing, e);
    for (uint32_t r = 0; r < mp_nranks(); r++)
        for (uint32_t i = 0; i < c.nreplicas; i++)
            if (c.replicas[i].rank == r) of[c.replicas[i].expert] = r;
    job.routing->owners = of, job.shape.instances = NULL;
    fill(&job, UNIFORM, 14);
    const xep_dispatch_args_t args = dispatch_args(&job, XEP_DISPATCH_BALANCE);
    MP_OK(xep_dispatch(job.buffer, &args, &handle, NULL));
    mp_job_sum(&job, handle);
    xep_handle_release(handle);
    mp_job_close(&job);
}

/* Several in flight, one behind another, one with the routing of another. */
static void in_flight(xep_group_t *group, const char *mode)
{
    const mp_case_t c = case_of(mode, XEP_BALANCE_EVEN, 0);
    xep_handle_t *first, *second, *third;
    xep_request_t *begun, *behind;
    mp_job_t job;
    mp_job_begin(&job, &c, 1, group);
    fill(&job, SKEWED, 9);
    xep_dispatch_args_t args = dispatch_args(&job, XEP_DISPATCH_BALANCE);
    MP_OK(xep_dispatch(job.buffer, &args, &first, &begun));
    args.after = begun;
    MP_OK(xep_dispatch(job.buffer, &args, &second, &behind));
    mp_finish(behind);
    mp_finish(begun);
    args = mp_job_cached(&job, second);
    args.flags |= XEP_DISPATCH_BALANCE;
    MP_OK(xep_dispatch(job.buffer, &args, &third, NULL));
    mp_job_dispatch(&job);
    finish(&job, first);
    const uint64_t served = finish(&job, second);
    mp_job_cached(&job, NULL);
    MP_CHECK(finish(&job, third) == served);
    mp_job_close(&job);
}

/* ---- dispatches of other forms ---- */

static void run_form(xep_group_t *group, const mp_case_t *c)
{
    uint64_t pieces = 0;
    mp_job_t job;
    mp_job_begin(&job, c, 1, group);
    for (uint32_t round = 0; round < 4; round++) {
        xep_handle_t *handle;
        fill(&job, (kind_t)(round % NONE), round + 20);
        xep_dispatch_args_t args =
            dispatch_args(&job, c->balance != XEP_BALANCE_NONE && round != 2 ? XEP_DISPATCH_BALANCE : 0);
        if (c->in_place) mp_job_place(&job, &args);
        MP_OK(xep_dispatch(job.buffer, &args, &handle, NULL));
        pieces += mp_recv(handle)->pieces;
        finish(&job, handle);
    }
    MP_CHECK(mp_nranks() == 1 || (pieces > 4) == (c->pieces != 0));
    mp_job_close(&job);
}

static void other_forms(xep_group_t *group, const char *mode, xep_balance_t rule, int with_replicas)
{
    const mp_case_t c = case_of(mode, rule, with_replicas);
    mp_case_t forms[] = {c, c, c, c};
    forms[0].name = "pieces", forms[0].pieces = 1, forms[0].recv_rows = 40;
    forms[1].name = "in place", forms[1].in_place = 1;
    forms[2].name = "cast", forms[2].quant = XEP_QUANT_E4M3;
    forms[3].name = "payload", forms[3].payloads = 1;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) run_form(group, &forms[i]);
}

/* ---- what is wrong ---- */

static void refused_params(xep_group_t *group)
{
    xep_buffer_params_t p = XEP_BUFFER_PARAMS_INIT;
    xep_buffer_t *none = NULL;
    xep_replica_t replicas[2] = {{4, mp_nranks() - 1}, {4, mp_nranks() - 1}};
    uint32_t owners[EXPERTS] = {0};
    p.mode = "ll", p.experts = EXPERTS, p.topk = TOPK, p.hidden = HIDDEN, p.tokens = TOKENS;
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

/* Other plans, plans of more rows and of fewer, and none: on one rank, and all are told. */
static void wrong_plans(xep_group_t *group)
{
    static const char *const own[] = {"have different plans for expert 5", "invalid plan: the rows of expert 9",
                                      "params.plan returned -5", "invalid plan: the rows of expert 9"};
    static const char *const others[] = {NULL, "has no valid plan: the rows of expert 9 do not add up",
                                         "has no plan: its function failed",
                                         "has no valid plan: the rows of expert 9 do not add up"};
    const mp_case_t c = case_of("normal", XEP_BALANCE_PLAN, 1);
    mp_job_t job;
    mp_job_begin(&job, &c, 1, group);
    fill(&job, UNIFORM, 4);
    for (int i = 0; i < 4; i++) {
        plan_wrong = mp_is_last() ? i + 1 : 0;
        const xep_dispatch_args_t args = dispatch_args(&job, XEP_DISPATCH_BALANCE);
        const xep_status_t expected = i == 0 || !mp_is_last() ? XEP_ERR_MISMATCH : XEP_ERR_INVALID;
        MP_REFUSES(&job, &args, expected, expected == XEP_ERR_INVALID || i == 0 ? own[i] : others[i]);
        plan_wrong = 0;
        run(&job, XEP_DISPATCH_BALANCE);
    }
    mp_job_close(&job);
}

/* A dispatch that the last rank never calls. */
static void never_called(xep_group_t *group, mp_job_t *job)
{
    xep_dispatch_args_t args = dispatch_args(job, XEP_DISPATCH_BALANCE);
    xep_handle_t *handle = NULL;
    char text[64];
    MP_OK(xep_group_barrier(group));
    args.timeout_ms = MP_VAIN_MS;
    snprintf(text, sizeof text, "rank %u has not called it", mp_nranks() - 1);
    if (!mp_is_last()) {
        /* the first one whose deadline has passed tells the others */
        const xep_status_t status = xep_dispatch(job->buffer, &args, &handle, NULL);
        MP_CHECK(status == XEP_ERR_TIMEOUT || status == XEP_ERR_BROKEN);
        MP_REASON(text);
        MP_REFUSES(job, &args, XEP_ERR_BROKEN, "");
    }
    MP_CHECK(handle == NULL);
    MP_OK(xep_group_barrier(group));
}

/* A call that one rank refuses; one that it never makes. Afterwards all is well. */
static void missing_calls(xep_group_t *group)
{
    mp_case_t c = case_of("ll", XEP_BALANCE_NONE, 0);
    mp_job_t job;
    mp_job_begin(&job, &c, 1, group);
    xep_dispatch_args_t args = dispatch_args(&job, XEP_DISPATCH_BALANCE);
    MP_REFUSES(&job, &args, XEP_ERR_INVALID, "invalid flags: 0x20");
    mp_job_close(&job);
    c.balance = XEP_BALANCE_EVEN;
    mp_job_begin(&job, &c, 1, group);
    fill(&job, UNIFORM, 2);
    args = dispatch_args(&job, XEP_DISPATCH_BALANCE);
    if (mp_is_last()) idx_of(&job)[TOPK + 1] = EXPERTS;
    for (int i = 0; i < 2; i++) { /* the second one is told that the first one was refused */
        MP_REFUSES(&job, &args, mp_is_last() && i == 0 ? XEP_ERR_INVALID : XEP_ERR_MISMATCH, "");
        fill(&job, UNIFORM, 2);
    }
    run(&job, XEP_DISPATCH_BALANCE);
    never_called(group, &job);
    MP_OK(xep_buffer_reset(job.buffer));
    for (int i = 0; i < 3; i++) run(&job, XEP_DISPATCH_BALANCE);
    mp_job_close(&job);
}

/* ---- ranks that die, or stop ---- */

enum { ROUNDS = 48, STOPS = 10, GOES_ON = 30, SPREAD_US = 150 * 1000 };

/*
 * before: who was out of an earlier dispatch; after: who is now. Between them selections of an expert of these may be
 * missing, or not.
 */
static void check_missing(mp_job_t *job, const uint8_t *missing, uint32_t before, uint32_t after)
{
    for (uint64_t i = 0; i < job->tokens * TOPK; i++) {
        const int64_t expert = idx_of(job)[i];
        if (expert < 0) continue;
        const uint32_t set = job->instances[expert];
        MP_CHECK(missing[i] <= 1 && (!missing[i] || (set & after) != 0));
        if (before == after) MP_CHECK(missing[i] == ((set & ~after) == 0));
    }
    job->shape.missing = missing;
    mp_job_check_out(job);
    job->shape.missing = NULL;
}

/* What this rank says of a dispatch that it was left out of, or of what follows. */
static int leave(xep_group_t *group, mp_job_t *job, xep_status_t status, atomic_int *left)
{
    MP_CHECK(status == XEP_ERR_PEER);
    MP_REASON("this rank is out");
    xep_group_abort(group);
    mp_job_close(job);
    atomic_store(left, 1);
    xep_group_destroy(group);
    printf("left\n");
    return 0;
}

static xep_status_t play(xep_group_t *group, mp_job_t *job, uint32_t round, uint32_t flags, uint32_t *out_p)
{
    uint8_t missing[TOKENS * TOPK];
    const uint32_t before = *out_p;
    xep_handle_t *handle;
    fill(job, (kind_t)(round % NONE), round);
    const xep_dispatch_args_t args = dispatch_args(job, flags);
    xep_status_t status = xep_dispatch(job->buffer, &args, &handle, NULL);
    if (status != XEP_OK) return status;
    *out_p |= mp_out_of(mp_recv(handle));
    mp_job_check_recv(job, handle);
    xep_combine_args_t sums = mp_job_combine(job, handle);
    memset(missing, 0x5a, sizeof missing);
    sums.missing = missing;
    status = xep_combine(handle, &sums, NULL);
    if (status == XEP_OK) check_missing(job, missing, before, mp_ranks_out(group));
    xep_handle_release(handle);
    return status;
}

/* All that are left share what there is. */
static void check_last(xep_group_t *group, mp_job_t *job, uint32_t *out_p)
{
    xep_loads_t before = XEP_LOADS_INIT, after = XEP_LOADS_INIT;
    const uint64_t left = mp_nranks() - (uint32_t)__builtin_popcount(*out_p);
    MP_OK(xep_buffer_loads(job->buffer, &before));
    MP_OK(play(group, job, 0, XEP_DISPATCH_BALANCE, out_p));
    MP_OK(xep_buffer_loads(job->buffer, &after));
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
    mp_case_t c = case_of(argv[2], rule, rule != XEP_BALANCE_EVEN || is_some);
    mp_job_t job;
    uint32_t out = 0;
    int32_t pid = getpid(), pids[8];
    MP_OK(xep_group_allgather(group, &pid, pids, sizeof pid));
    c.on_failure = XEP_ON_FAILURE_MASK, c.timeout_ms = MP_VAIN_MS;
    mp_job_begin(&job, &c, 1, group);
    job.may_be_out = 1;
    if (!stops && (dead >> mp_rank() & 1)) mp_die_within(seed * n + mp_rank(), SPREAD_US);
    for (uint32_t round = 0; round < ROUNDS + 4; round++) {
        mp_sleep_us(round == ROUNDS ? SPREAD_US : SPREAD_US / ROUNDS); /* so that all timers end before the last ones */
        if (stops && mp_rank() == 1 && round == STOPS) raise(SIGSTOP);
        if (stops && mp_rank() == 0 && round == GOES_ON) kill(pids[1], SIGCONT);
        const xep_status_t status = play(group, &job, round, round % 4 != 3 ? flags : 0, &out);
        if (status != XEP_OK && (dead >> mp_rank() & 1)) return leave(group, &job, status, left);
        MP_OK(status);
    }
    MP_CHECK(out == dead);
    if (rule == XEP_BALANCE_EVEN && !is_some) check_last(group, &job, &out);
    if (stops) mp_await(left, 1);
    mp_job_close(&job);
    xep_group_destroy(group);
    printf("survived\n");
    return 0;
}

static void all(xep_group_t *group)
{
    for (int i = 0; i < 2; i++) {
        compare(group, mp_modes[i], XEP_BALANCE_NONE, NULL, 1);
        compare(group, mp_modes[i], XEP_BALANCE_LEAST_LOADED, NULL, 1);
        compare(group, mp_modes[i], XEP_BALANCE_EVEN, NULL, 1);
        compare(group, mp_modes[i], XEP_BALANCE_EVEN, "random:5", 0);
        compare(group, mp_modes[i], XEP_BALANCE_EVEN, NULL, 0);
        compare(group, mp_modes[i], XEP_BALANCE_PLAN, NULL, 1);
        in_flight(group, mp_modes[i]);
    }
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
        compare(nodes, mp_modes[i], XEP_BALANCE_LEAST_LOADED, NULL, 1);
        other_forms(nodes, mp_modes[i], XEP_BALANCE_EVEN, 0);
    }
    nearest_of_node(nodes);
    xep_group_destroy(nodes);
}

/* ---- a rank that serves ---- */

typedef struct server {
    mp_job_t *job;
    uint32_t calls;
    uint64_t rows;
} server_t;

static xep_status_t serve_rows(void *arg, xep_serve_call_t *call)
{
    server_t *server = arg;
    fill(server->job, (kind_t)(server->calls % NONE), server->calls);
    mp_job_check_recv(server->job, call->handle);
    call->topk_weights = mp_job_combine(server->job, call->handle).topk_weights;
    server->calls++;
    server->rows += call->recv->rows;
    return XEP_OK;
}

/* Its last one but two fails, for want of a plan, on all ranks. The two behind it are announced as layers. */
static void work_balanced(mp_job_t *job, uint32_t rounds)
{
    for (uint32_t i = 0; i < rounds; i++) {
        fill(job, (kind_t)(i % NONE), i);
        if (i + 2 == rounds) {
            const xep_dispatch_args_t args = dispatch_args(job, XEP_DISPATCH_BALANCE);
            plan_wrong = mp_rank() == 0 ? 3 : 0;
            if (job->c->plan != NULL) MP_REFUSES(job, &args, mp_rank() == 0 ? XEP_ERR_INVALID : XEP_ERR_MISMATCH, "");
            plan_wrong = 0;
            MP_OK(xep_announce_layers(job->buffer, 2));
        }
        run(job, i != 1 ? XEP_DISPATCH_BALANCE : 0);
    }
    MP_OK(xep_step_end(&job->buffer, 1, XEP_STEP_LAST));
}

/* The last rank has no tokens and serves: experts of others, too. */
static void served(xep_group_t *group, const char *mode, xep_balance_t rule)
{
    enum { SERVED = 6 };
    mp_case_t c = case_of(mode, rule, rule != XEP_BALANCE_EVEN);
    mp_job_t job;
    c.served = 1, c.works = (1u << (mp_nranks() - 1)) - 1;
    mp_job_begin(&job, &c, 1, group);
    if (mp_is_last()) {
        server_t server = {.job = &job};
        xep_serve_args_t args = XEP_SERVE_ARGS_INIT;
        args.buffers = &job.buffer, args.count = 1, args.fn = serve_rows, args.arg = &server;
        MP_OK(xep_serve(&args));
        MP_CHECK(server.calls == SERVED && server.rows != 0);
    } else {
        work_balanced(&job, SERVED);
    }
    mp_job_close(&job);
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
