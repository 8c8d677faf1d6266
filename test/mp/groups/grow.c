/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * For grow.sh: a group that runs takes new processes in, which no launcher has started, and every operation before
 * and after is compared with the oracle.
 *
 * grow members SCENARIO ADDRESS
 *   one       one joiner
 *   two       two at once
 *   turns     two joiners, of which each call takes one
 *   called    one; the address goes through callbacks
 *   replaced  rank 1 dies in mid-operation, the others shrink, and a joiner comes
 *   nobody    nobody comes, and the group goes on
 *   absent    rank 1 does not call it in time; the group shrinks to what it was, and grows
 *   again     rank 1 comes late and has given up, and hears what rank 0 has said before it gave up, too
 *   wrong     rank 0's arguments are wrong, or the file cannot be written
 *   dying     joiners that die at any instruction, until one comes that does not
 * grow joiner HOW ADDRESS [SEED]
 *   file, called  by which the address comes
 *   dying         dies by a timer
 *   again         by callbacks, and again where the members have given up
 *   late          nobody lets it in
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mp_job.h"
#include "mp_rig.h"

enum { ROUNDS = 4, JOBS = 2, SPREAD_US = 400 * 1000 };

/* clang-format off */
static const mp_case_t cases[JOBS] = {
    {.name = "normal", MP_SHAPE(21, 4, 264, 40), .ragged = 1, .mask = 100, .nscales = 3,
     .weights = 1, .copy_in = 1},
    {.name = "ll", .mode = "ll", MP_SHAPE(19, 3, 136, 24), .slots = 3, .weights = 1,
     .copy_in = 1},
};
/* clang-format on */

static const char *address_path;
static mp_job_t jobs[JOBS];
static xep_group_t *group;

/* ---- operations ---- */

static xep_status_t play(uint32_t rounds)
{
    xep_status_t status = XEP_OK;
    for (uint32_t i = 0; status == XEP_OK && (rounds == 0 || i < rounds); i++)
        status = mp_job_try_round(&jobs[i % JOBS], 100 + i);
    return status;
}

static void open_jobs(void)
{
    for (int m = 0; m < JOBS; m++) mp_job_open(&jobs[m], &cases[m], 7 + mp_nranks());
}

static int is_failure_of_others(xep_status_t status)
{
    return mp_is_failure_of_others(status) || status == XEP_ERR_TIMEOUT;
}

static void check_params(const mp_job_t *job)
{
    const mp_case_t *c = job->c;
    const xep_buffer_info_t info = mp_buffer_info(job->buffer);
    MP_CHECK(strcmp(info.mode, c->mode == NULL ? "normal" : c->mode) == 0);
    MP_CHECK(info.slots == (c->slots == 0 ? 2 : c->slots) && info.experts == c->experts && info.topk == c->topk);
    MP_CHECK(info.hidden == c->hidden && info.scales == c->nscales && info.tokens == c->tokens);
    MP_CHECK(info.dtype == XEP_BF16 && info.combine_dtype == XEP_BF16 && info.on_failure == XEP_ON_FAILURE_FAIL);
}

/* One fails where a rank dies meanwhile; then none is left. */
static xep_status_t make_followers(xep_group_t *next, xep_buffer_t *fresh[JOBS])
{
    xep_status_t status = XEP_OK;
    memset(fresh, 0, JOBS * sizeof *fresh);
    for (int m = 0; m < JOBS && status == XEP_OK; m++)
        status = xep_buffer_follow(group == NULL ? NULL : jobs[m].buffer, next, &fresh[m]);
    if (status == XEP_OK) return XEP_OK;
    MP_CHECK(is_failure_of_others(status));
    xep_group_abort(next);
    for (int m = 0; m < JOBS; m++) xep_buffer_destroy(fresh[m]);
    return status;
}

/* Buffers as before on another group, by those that have one; then the old group goes. Joiners may die. */
static void follow(xep_group_t *next)
{
    xep_buffer_t *fresh[JOBS];
    while (make_followers(next, fresh) != XEP_OK) {
        xep_group_t *less = NULL;
        MP_CHECK(group != NULL);
        MP_OK(xep_group_shrink(next, NULL, &less));
        xep_group_destroy(next);
        next = less;
    }
    for (int m = 0; group != NULL && m < JOBS; m++) mp_job_close(&jobs[m]);
    xep_group_destroy(group);
    group = next;
    mp_go_on(next);
    open_jobs();
    for (int m = 0; m < JOBS; m++) {
        jobs[m].buffer = fresh[m];
        check_params(&jobs[m]);
    }
}

static void shrink(void)
{
    xep_group_t *next = NULL;
    MP_OK(xep_group_shrink(group, NULL, &next));
    follow(next);
}

/* ---- growing ---- */

/* A caller's own way: here a file that the callbacks write and read. */
static int publish(void *ctx, const void *address, size_t bytes)
{
    char beside[512];
    snprintf(beside, sizeof beside, "%s.new", (const char *)ctx);
    if (bytes == 0) return unlink(ctx);
    FILE *file = fopen(beside, "w");
    int done = file != NULL && fwrite(address, 1, bytes, file) == bytes;
    return file != NULL && fclose(file) == 0 && done && rename(beside, ctx) == 0 ? 0 : 1;
}

static int lookup(void *ctx, void *address, size_t capacity, size_t *bytes_p)
{
    FILE *file = fopen(ctx, "r");
    *bytes_p = file == NULL ? 0 : fread(address, 1, capacity, file);
    if (file != NULL) fclose(file);
    return 0;
}

static xep_grow_args_t args_of(int called, uint32_t joiners)
{
    xep_grow_args_t args = XEP_GROW_ARGS_INIT;
    args.joiners = joiners;
    if (mp_rank() != 0) return args; /* its arguments alone count */
    if (called) args.publish = publish, args.publish_ctx = (void *)(uintptr_t)address_path;
    else args.path = address_path;
    return args;
}

/* Ranks keep their numbers; the joiners are behind them. */
static void check_grown(const xep_group_t *next, uint32_t before, uint32_t joiners)
{
    const xep_group_info_t info = mp_group_info(next);
    MP_CHECK(info.nranks == before + joiners && strcmp(info.boot, "grow") == 0);
    MP_CHECK(info.rank == mp_rank());
}

static void grow(int called, uint32_t joiners)
{
    xep_group_t *next = NULL;
    xep_grow_args_t args = args_of(called, joiners);
    MP_OK(xep_group_grow(group, &args, &next));
    check_grown(next, mp_nranks(), joiners);
    MP_CHECK(access(address_path, F_OK) != 0);
    MP_OK(play(ROUNDS)); /* the old one still works */
    follow(next);
}

/* What rank 0 says: whether the group grows once more, which joiners cannot know. */
static uint32_t ask_first(uint32_t mine)
{
    uint32_t *all = calloc(mp_nranks(), sizeof *all), first;
    MP_CHECK(all != NULL);
    MP_OK(xep_group_allgather(group, &mine, all, sizeof mine));
    first = all[0];
    free(all);
    return first;
}

static void finish(void)
{
    MP_OK(play(ROUNDS));
    for (int m = 0; m < JOBS; m++) mp_job_close(&jobs[m]);
    xep_group_destroy(group);
    printf("grown\n");
}

/* turns: so many more times, each with one joiner; the joiners of before take part. */
static void grow_on(uint32_t times)
{
    for (times = ask_first(times); times > 0; times = ask_first(times - 1)) {
        MP_OK(play(ROUNDS));
        grow(0, 1);
    }
}

/* ---- members ---- */

/* Rank 1 waits until what it has sent is on its way: others may still be in the operation before. */
static void replaced(void)
{
    if (mp_rank() == 1) mp_sleep_us(200 * 1000);
    if (mp_rank() == 1) raise(SIGKILL);
    xep_status_t status = play(0);
    MP_CHECK(is_failure_of_others(status));
    shrink();
    MP_OK(play(ROUNDS));
    grow(0, 1);
}

static void hear_warning(void *arg, xep_log_level_t level, const char *message)
{
    if (level == XEP_LOG_WARN && strstr(message, "half of the deadline has passed, after ") != NULL &&
        strstr(message, "xep_group_grow: 0 of 2 joiners came") != NULL)
        ++*(int *)arg;
}

/* The second time long enough for a warning, also on a machine that is busy. */
static void nobody(void)
{
    xep_group_t *next = NULL;
    int warned = 0;
    for (int i = 0; i < 2; i++) {
        xep_grow_args_t args = args_of(0, 2);
        args.timeout_ms = i == 0 ? 300 : 6000;
        if (i == 1) xep_log_set(hear_warning, &warned);
        MP_FAILS(XEP_ERR_TIMEOUT, xep_group_grow(group, &args, &next));
        xep_log_set(NULL, NULL);
        MP_CHECK(warned == (i == 1 && mp_rank() == 0));
        MP_REASON(i == 0 ? "0 of 2 joiners came in 300 ms to " : "0 of 2 joiners came in 6000 ms to ");
        MP_CHECK(next == NULL && access(address_path, F_OK) != 0);
        MP_OK(play(ROUNDS));
    }
}

static void absent(void)
{
    xep_group_t *next = NULL;
    xep_grow_args_t args = args_of(0, 1);
    if (mp_rank() == 1) {
        /* until the others have given up */
        for (int i = 0; i < 600 && xep_group_barrier(group) == XEP_OK; i++) mp_sleep_us(100 * 1000);
    } else {
        xep_status_t status = xep_group_grow(group, &args, &next);
        MP_CHECK(status == XEP_ERR_TIMEOUT || status == XEP_ERR_ABORTED); /* whoever is first shrinks the group */
        if (status == XEP_ERR_TIMEOUT) MP_REASON("still missing: rank 1");
        if (status == XEP_ERR_TIMEOUT) MP_REASON("xep_group_grow: ");
        if (mp_rank() == 0) MP_CHECK(access(address_path, F_OK) != 0);
    }
    shrink();
    grow(0, 1);
}

static void mark(const char *what)
{
    char path[512];
    snprintf(path, sizeof path, "%s.%s", address_path, what);
    FILE *file = fopen(path, "w");
    MP_CHECK(file != NULL && fclose(file) == 0);
}

static void await_mark(const char *what)
{
    char path[512];
    snprintf(path, sizeof path, "%s.%s", address_path, what);
    for (int i = 0; i < 6000 && access(path, F_OK) != 0; i++) mp_sleep_us(10 * 1000);
    MP_OK(unlink(path) == 0 ? XEP_OK : XEP_ERR_TIMEOUT);
}

/* So that the joiner is here at rank 0's first look: the first that it says is that all are. */
static int publish_and_wait(void *ctx, const void *address, size_t bytes)
{
    int failed = publish(ctx, address, bytes);
    if (bytes != 0) mp_sleep_us(1000 * 1000);
    return failed;
}

/*
 * Rank 0 finds the word that rank 1 has left, and waits in vain for the next; rank 1 hears of that in its next call. On
 * a machine that is slow the joiner may leave before rank 0 gives up: then that is what rank 1 hears, and calls again.
 */
static void again(void)
{
    xep_group_t *next = NULL;
    xep_grow_args_t args = args_of(1, 1);
    if (mp_rank() == 0) {
        args.publish = publish_and_wait;
        await_mark("late");
    }
    MP_FAILS(XEP_ERR_TIMEOUT, xep_group_grow(group, &args, &next));
    if (mp_rank() == 1) mark("late");
    if (mp_rank() == 1) await_mark("later");
    else mark("later");
    xep_status_t status = xep_group_grow(group, &args, &next);
    if (mp_rank() == 1 && status == XEP_ERR_PEER) status = xep_group_grow(group, &args, &next);
    MP_OK(status);
    check_grown(next, mp_nranks(), 1);
    follow(next);
}

static void wrong(void)
{
    xep_group_t *next = NULL;
    xep_grow_args_t args = args_of(0, 1);
    args.publish = mp_rank() == 0 ? publish : NULL;
    MP_SAYS(XEP_ERR_INVALID, "args.path and args.publish are both given", xep_group_grow(group, &args, &next));
    args = args_of(0, 1);
    if (mp_rank() == 0) args.path = "/nonexistent/address";
    MP_SAYS(XEP_ERR_BOOT, "cannot write the address file /nonexistent/address", xep_group_grow(group, &args, &next));
    args = args_of(0, 1);
    args.reserved = mp_rank() == 2;
    args.size = mp_rank() == 2 ? 3 : sizeof args;
    MP_SAYS(XEP_ERR_INVALID, mp_rank() == 2 ? "args" : "rank 2: ", xep_group_grow(group, &args, &next));
    MP_OK(play(ROUNDS));
}

/* Whoever comes plays until it is dead, or says that it stays. */
static int try_joiner(void)
{
    xep_group_t *next = NULL;
    uint32_t before = mp_nranks(), dies = 0, *all = calloc(before + 1, sizeof *all);
    xep_grow_args_t args = args_of(0, 1);
    xep_status_t status = xep_group_grow(group, &args, &next);
    MP_CHECK(all != NULL);
    if (status != XEP_OK) {
        MP_CHECK(is_failure_of_others(status) || status == XEP_ERR_PROTOCOL);
        MP_OK(play(ROUNDS));
        free(all);
        return 0;
    }
    check_grown(next, before, 1);
    follow(next);
    uint32_t mine = 0;
    if (mp_nranks() == before) status = XEP_ERR_PEER; /* it is dead */
    else status = xep_group_allgather(group, &mine, all, sizeof mine);
    if (status == XEP_OK) dies = all[before];
    free(all);
    if (mp_nranks() == before) return 0;
    if (status == XEP_OK && !dies) return 1;
    if (status == XEP_OK) status = play(0);
    MP_CHECK(is_failure_of_others(status));
    shrink();
    MP_CHECK(mp_nranks() == before);
    return 0;
}

static void dying(void)
{
    while (!try_joiner()) {}
}

static void be_member(const char *scenario)
{
    group = mp_group();
    open_jobs();
    for (int m = 0; m < JOBS; m++) mp_job_buffer(&jobs[m], group);
    MP_OK(play(ROUNDS));
    uint32_t more = 0;
    if (strcmp(scenario, "one") == 0) grow(0, 1);
    else if (strcmp(scenario, "two") == 0) grow(0, 2);
    else if (strcmp(scenario, "turns") == 0) grow(0, 1), more = 1;
    else if (strcmp(scenario, "called") == 0) grow(1, 1);
    else if (strcmp(scenario, "replaced") == 0) replaced();
    else if (strcmp(scenario, "nobody") == 0) nobody();
    else if (strcmp(scenario, "absent") == 0) absent();
    else if (strcmp(scenario, "again") == 0) again();
    else if (strcmp(scenario, "wrong") == 0) wrong();
    else if (strcmp(scenario, "dying") == 0) dying();
    else mp_fail(__FILE__, __LINE__, "no such scenario: %s", scenario);
    grow_on(more);
    finish();
}

/* ---- joiners ---- */

static int say_mortal(void)
{
    uint32_t mine = 1, *all = calloc(mp_nranks(), sizeof *all);
    MP_CHECK(all != NULL);
    int done = xep_group_allgather(group, &mine, all, sizeof mine) == XEP_OK;
    free(all);
    return done;
}

static void play_to_death(xep_group_t *next)
{
    follow(next);
    if (say_mortal())
        while (play(0) == XEP_OK) {}
    pause();
}

static void be_joiner(const char *how, uint64_t seed)
{
    xep_join_params_t params = XEP_JOIN_PARAMS_INIT;
    xep_group_t *next = NULL;
    const int comes_again = strcmp(how, "again") == 0;
    const int is_called = comes_again || strcmp(how, "called") == 0;
    if (is_called) params.lookup = lookup, params.lookup_ctx = (void *)(uintptr_t)address_path;
    else params.path = address_path;
    const int mortal = strcmp(how, "dying") == 0;
    if (mortal) mp_die_within(seed, SPREAD_US);
    if (strcmp(how, "late") == 0) {
        params.timeout_ms = 300;
        MP_SAYS(XEP_ERR_TIMEOUT, "no group accepted this process in 300 ms, by the address file ",
                xep_group_join(&params, &next));
        printf("grown\n");
        return;
    }
    xep_status_t status = xep_group_join(&params, &next);
    if (comes_again && status != XEP_OK) status = xep_group_join(&params, &next);
    MP_OK(status);
    if (mortal) {
        play_to_death(next);
        return;
    }
    follow(next);
    if (strcmp(how, "stays") == 0) (void)ask_first(0);
    grow_on(0);
    finish();
}

int main(int argc, char **argv)
{
    const char *part = argc > 3 ? argv[1] : "";
    uint64_t seed = argc > 4 ? strtoull(argv[4], NULL, 0) : 0;
    address_path = argc > 3 ? argv[3] : "";
    if (strcmp(part, "members") == 0) be_member(argv[2]);
    else if (strcmp(part, "joiner") == 0) be_joiner(argv[2], seed);
    else mp_fail(__FILE__, __LINE__, "grow members SCENARIO ADDRESS, or joiner HOW ADDRESS");
    return 0;
}
