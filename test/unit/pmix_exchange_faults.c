/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * An exchange whose server answers as it likes: a libpmix of a few functions, in which this process is one of four
 * ranks. Who is named where a value does not come, and where ranks have died, or have left because another one did.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host.h"
#include "pmix/pmix_client.h"
#include "unit.h"

enum {
    RANKS = 4,
    SELF = 1,
    BYTES = 16,
    LONG_MS = 60000, /* for what ends before its deadline, however seldom this process runs */
    SHORT_MS = 300,  /* for what waits in vain from the beginning */
    LATER_MS = 5000  /* for what waits in vain in the end, and must have come to that */
};

/** As pmix_life.c has them. */
typedef struct life {
    uint64_t processes, start;
    int32_t pid;
    uint32_t reserved;
} life_t;

typedef struct exit_report {
    uint32_t dead, reserved;
} exit_report_t;

/* What the server does and knows. */
static struct {
    pmix_status_t fence, get; /* how they end */
    uint32_t never, fails;    /* ranks whose values never come, and end as get */
    size_t bytes;             /* of a value */
    pthread_mutex_t silent;   /* locked: commits have no answer */
    pid_t pids[RANKS];        /* 0: it has put nothing yet */
    uint64_t start[RANKS];
    int said[RANKS]; /* its exit report */
    exit_report_t exit_reports[RANKS];
    exit_report_t ours; /* what this rank has said */
    int ours_count;
    /* what it has not answered: it does so when nobody waits any more */
    pmix_op_cbfunc_t fenced;
    pmix_value_cbfunc_t got;
    void *fenced_arg, *got_arg;
} server;

static xep_pmix_client_t client;

static pmix_status_t put(pmix_scope_t scope, const char *key, pmix_value_t *value)
{
    (void)scope;
    if (strcmp(key, "xep.exit_report") != 0) return PMIX_SUCCESS;
    assert_int_equal(value->data.bo.size, sizeof server.ours);
    memcpy(&server.ours, value->data.bo.bytes, sizeof server.ours);
    server.ours_count++;
    return PMIX_SUCCESS;
}

static pmix_status_t commit(void)
{
    pthread_mutex_lock(&server.silent);
    pthread_mutex_unlock(&server.silent);
    return PMIX_SUCCESS;
}

static pmix_status_t fence(const pmix_proc_t procs[], size_t nprocs, const pmix_info_t info[], size_t ninfo,
                           pmix_op_cbfunc_t done, void *arg)
{
    (void)procs, (void)nprocs, (void)info, (void)ninfo;
    if (server.fence != PMIX_ERR_TIMEOUT) done(server.fence, arg);
    else server.fenced = done, server.fenced_arg = arg;
    return PMIX_SUCCESS;
}

static void give(pmix_value_cbfunc_t done, void *arg, void *data, size_t bytes)
{
    pmix_value_t value = {.type = PMIX_BYTE_OBJECT, .data.bo = {.bytes = data, .size = bytes}};
    done(PMIX_SUCCESS, &value, arg);
}

static void give_life(uint32_t rank, pmix_value_cbfunc_t done, void *arg)
{
    life_t life = {.processes = xep_host_processes(), .start = server.start[rank], .pid = server.pids[rank]};
    if (life.pid == 0) done(PMIX_ERR_NOT_FOUND, NULL, arg);
    else give(done, arg, &life, sizeof life);
}

static pmix_status_t get(const pmix_proc_t *proc, const char key[], const pmix_info_t info[], size_t ninfo,
                         pmix_value_cbfunc_t done, void *arg)
{
    static char bytes[BYTES * 2];
    uint32_t rank = proc->rank;
    (void)info, (void)ninfo;
    if (strcmp(key, "xep.life") == 0) give_life(rank, done, arg);
    else if (strcmp(key, "xep.exit_report") == 0 && server.said[rank])
        give(done, arg, &server.exit_reports[rank], sizeof server.exit_reports[rank]);
    else if (strcmp(key, "xep.exit_report") == 0) done(PMIX_ERR_NOT_FOUND, NULL, arg);
    else if (rank == server.fails) done(server.get, NULL, arg);
    else if (rank != server.never) give(done, arg, bytes, server.bytes);
    else server.got = done, server.got_arg = arg;
    return PMIX_SUCCESS;
}

static const char *error_string(pmix_status_t status)
{
    return status == PMIX_ERR_NOT_FOUND ? "NOT_FOUND" : "ERROR";
}

static const xep_pmix_api_t api = {.put = put,
                                   .commit = commit,
                                   .fence_nb = fence,
                                   .get_nb = get,
                                   .error_string = error_string};

/* Processes that live, of the other ranks; unit.c calls it before each test. */
void unit_before_each(void)
{
    memset(&server, 0, sizeof server);
    pthread_mutex_init(&server.silent, NULL);
    server.never = server.fails = UINT32_MAX;
    server.bytes = BYTES;
    client = (xep_pmix_client_t){.api = &api,
                                 .self = {.rank = SELF},
                                 .nranks = RANKS,
                                 .lock = PTHREAD_MUTEX_INITIALIZER,
                                 .dead_rank = UINT32_MAX};
    for (uint32_t r = 0; r < RANKS; r++) server.pids[r] = getpid(), server.start[r] = xep_host_start(getpid());
}

/* A process that was there, and is no more. */
static void kill_rank(uint32_t rank)
{
    pid_t pid = fork();
    if (pid == 0) pause();
    server.pids[rank] = pid;
    server.start[rank] = xep_host_start(pid);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void leave_rank(uint32_t rank, uint32_t dead)
{
    kill_rank(rank);
    server.said[rank] = 1;
    server.exit_reports[rank].dead = dead;
}

static void exchange_within(int timeout_ms, xep_status_t status, const char *reason)
{
    char send[BYTES] = {0}, recv[RANKS * BYTES];
    xep_boot_t boot = {.rank = SELF, .nranks = RANKS, .timeout_ms = timeout_ms};
    assert_int_equal(xep_pmix_exchange(&client, &boot, send, recv, BYTES), status);
    if (server.fenced != NULL) server.fenced(PMIX_ERR_TIMEOUT, server.fenced_arg);
    if (server.got != NULL) server.got(PMIX_ERR_TIMEOUT, NULL, server.got_arg);
    server.fenced = NULL, server.got = NULL;
    if (status != XEP_OK && strstr(xep_last_error(), reason) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", xep_last_error(), reason);
}

static void exchange(xep_status_t status, const char *reason)
{
    exchange_within(LONG_MS, status, reason);
}

TEST(all_is_well)
{
    exchange(XEP_OK, "");
    assert_int_equal(server.ours_count, 0);
}

static int is_interrupted(void *asked)
{
    return ++*(int *)asked > 2;
}

/* The exchange of another group that has no deadline: this one keeps its own, and can be interrupted. */
TEST(a_turn_is_waited_for_until_the_deadline)
{
    char send[BYTES] = {0}, recv[RANKS * BYTES];
    int asked = 0;
    xep_boot_t boot = {.rank = SELF, .nranks = RANKS, .timeout_ms = -1, .interrupted = is_interrupted};
    boot.interrupted_ctx = &asked;
    pthread_mutex_lock(&client.lock);
    exchange_within(SHORT_MS, XEP_ERR_TIMEOUT, "another group's exchange over PMIx is still under way");
    assert_int_equal(xep_pmix_exchange(&client, &boot, send, recv, BYTES), XEP_ERR_ABORTED);
    pthread_mutex_unlock(&client.lock);
    exchange(XEP_ERR_BOOT, "an earlier exchange over PMIx was given up");
}

/* As one that is stopped: libpmix itself would wait for ever. */
TEST(a_commit_is_waited_for_until_the_deadline)
{
    pthread_mutex_lock(&server.silent);
    exchange_within(SHORT_MS, XEP_ERR_TIMEOUT,
                    "exchange 1 over PMIx: the launcher's server has not answered PMIx_Commit");
    assert_int_equal(server.ours_count, 0);
    exchange(XEP_ERR_BOOT, "an earlier exchange over PMIx was given up");
    pthread_mutex_unlock(&server.silent);
    while (client.commits != 0) usleep(1000);
}

TEST(a_value_that_is_not_there_names_its_rank)
{
    server.fails = 3;
    server.get = PMIX_ERR_NOT_FOUND;
    exchange(XEP_ERR_BOOT, "exchange 1 over PMIx: nothing from rank 3: NOT_FOUND");
    assert_int_equal(server.ours_count, 1);
    assert_int_equal(server.ours.dead, UINT32_MAX);
    exchange(XEP_ERR_BOOT, "an earlier exchange over PMIx was given up");
    assert_int_equal(server.ours_count, 1);
}

TEST(a_value_that_never_comes_names_its_rank)
{
    server.never = 2;
    exchange_within(LATER_MS, XEP_ERR_TIMEOUT, "exchange 1 over PMIx: nothing from rank 2");
}

TEST(a_value_of_another_size_names_its_rank)
{
    server.bytes = BYTES - 1;
    exchange(XEP_ERR_MISMATCH, "rank 0 gave 15 bytes to an exchange of 16");
}

/* The server gives up rank 0, which lives, because rank 2 has died. */
TEST(the_dead_one_is_named_where_a_value_is_not_there)
{
    server.fails = 0;
    server.get = PMIX_ERR_NOT_FOUND;
    kill_rank(2);
    exchange(XEP_ERR_PEER, "rank 2 has died");
    assert_int_equal(server.ours.dead, 2);
}

TEST(processes_are_not_looked_up_where_that_is_off)
{
    char send[BYTES] = {0}, recv[RANKS * BYTES];
    xep_boot_t boot = {.rank = SELF, .nranks = RANKS, .timeout_ms = LONG_MS, .ignores_processes = 1};
    server.fails = 0;
    server.get = PMIX_ERR_NOT_FOUND;
    kill_rank(2);
    assert_int_equal(xep_pmix_exchange(&client, &boot, send, recv, BYTES), XEP_ERR_BOOT);
}

TEST(who_left_because_of_another_is_not_named)
{
    server.fence = PMIX_ERR_PARTIAL_SUCCESS;
    leave_rank(0, 2);
    kill_rank(2);
    exchange(XEP_ERR_PEER, "rank 2 has died");
}

/* That one is on another host, say: what those say that have left is all there is. */
TEST(whom_the_others_have_found_is_named)
{
    server.fence = PMIX_ERR_TIMEOUT;
    leave_rank(0, 3);
    leave_rank(2, UINT32_MAX);
    exchange(XEP_ERR_PEER, "rank 3 has died");
    assert_int_equal(server.ours.dead, 3);
}

/* The server is silent, reports a death while it is asked to commit, and answers when that was given up. */
static void *report_in_a_commit(void *arg)
{
    pthread_mutex_lock(&server.silent);
    atomic_store((atomic_int *)arg, 1);
    while (atomic_load(&client.commits) == 0) usleep(1000);
    atomic_store(&client.dead_rank, 2);
    while (!atomic_load(&client.broken)) usleep(1000);
    pthread_mutex_unlock(&server.silent);
    return NULL;
}

TEST(an_exit_report_follows_a_commit_that_a_death_has_ended)
{
    pthread_t thread;
    atomic_int is_silent = 0;
    assert_int_equal(pthread_create(&thread, NULL, report_in_a_commit, &is_silent), 0);
    while (!atomic_load(&is_silent)) usleep(1000);
    exchange(XEP_ERR_PEER, "rank 2 has died");
    assert_int_equal(server.ours_count, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

/* The launcher has reported the first death before this rank could hear of it. */
TEST(whom_the_launcher_reports_has_left_because_of_another)
{
    leave_rank(0, 2);
    atomic_store(&client.dead_rank, 0);
    exchange(XEP_ERR_PEER, "rank 2 has died");
    assert_int_equal(server.ours.dead, 2);
}

TEST(whom_the_launcher_reports_is_named)
{
    kill_rank(3);
    atomic_store(&client.dead_rank, 3);
    exchange(XEP_ERR_PEER, "rank 3 has died");
}

TEST(who_never_came_is_named_before_those_that_left)
{
    server.fence = PMIX_ERR_PARTIAL_SUCCESS;
    leave_rank(0, UINT32_MAX);
    server.pids[3] = 0;
    exchange(XEP_ERR_PEER, "rank 3 has died");
}

TEST(who_left_for_no_reason_is_named)
{
    server.fence = PMIX_ERR_PARTIAL_SUCCESS;
    leave_rank(0, UINT32_MAX);
    exchange(XEP_ERR_PEER, "rank 0 has died");
}

/* An exit report is another process's word: ranks that there are not, and this one itself, count for nothing. */
TEST(a_exit_report_that_makes_no_sense_counts_for_nothing)
{
    server.fence = PMIX_ERR_PARTIAL_SUCCESS;
    leave_rank(0, SELF);
    leave_rank(2, RANKS);
    exchange(XEP_ERR_PEER, "rank 0 has died");
}
