/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2 4, brief: 4, limit: 120 */

/*
 * With XEP_EXPLAIN a process that is asked by a signal says what it waits for: while the group is made, in a barrier,
 * an allgather, an operation, between two tests. The last rank stays away from each call until the others have said
 * that it is the one they wait for.
 */

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mp_job.h"
#include "mp_rig.h"

enum { ASK_US = 50 * 1000, HANG_S = 60 };

static mp_case_t base = {.name = "explained", MP_SHAPE(12, 4, 300, 30), .weights = 1, .slots = 2};

static atomic_int *said;  /* by how many ranks, over all calls */
static atomic_int *begun; /* combines of the last rank */
static int calls;         /* so far: each is explained by all ranks but the last */

/* ---- asking ---- */

static struct {
    pthread_t thread;
    const char *expected[2]; /* what one message has to hold */
    atomic_int heard;
} asking;

static void listen(void *arg, xep_log_level_t level, const char *message)
{
    (void)arg;
    if (level != XEP_LOG_WARN || strstr(message, "asked what it waits for, after ") == NULL) return;
    for (int i = 0; i < 2; i++)
        if (strstr(message, asking.expected[i]) == NULL) return;
    atomic_store(&asking.heard, 1);
}

/* Until it has said the right thing: at first the rank may not be in its wait yet. */
static void *ask(void *arg)
{
    double end = mp_now() + HANG_S;
    (void)arg;
    while (!atomic_load(&asking.heard) && mp_now() < end) {
        mp_sleep_us(ASK_US);
        kill(getpid(), SIGUSR2);
    }
    if (!atomic_load(&asking.heard))
        mp_fail(__FILE__, __LINE__, "nothing like \"%s ... %s\"", asking.expected[0], asking.expected[1]);
    ++*said;
    return NULL;
}

static void begin_asking(const char *what, const char *whom)
{
    asking.expected[0] = what, asking.expected[1] = whom;
    atomic_store(&asking.heard, 0);
    MP_CHECK(pthread_create(&asking.thread, NULL, ask, NULL) == 0);
}

static void end_asking(void)
{
    MP_CHECK(pthread_join(asking.thread, NULL) == 0);
}

/* The last rank is late until all others have said that they wait for it. */
static void begin(const char *what, const char *before)
{
    static char whom[32];
    snprintf(whom, sizeof whom, "%srank %u", before, mp_nranks() - 1);
    calls++;
    if (mp_is_last()) mp_await(said, calls * ((int)mp_nranks() - 1));
    else begin_asking(what, whom);
}

static void end(void)
{
    if (!mp_is_last()) end_asking();
}

/* ---- what is waited in ---- */

static void in_collectives(xep_group_t *group)
{
    uint32_t mine = mp_rank(), *all = calloc(mp_nranks(), sizeof mine);
    begin("barrier", "still missing: ");
    MP_OK(xep_group_barrier(group));
    end();
    begin("allgather", "still missing: ");
    MP_OK(xep_group_allgather(group, &mine, all, sizeof mine));
    end();
    free(all);
}

static void in_tests(mp_job_t *job)
{
    xep_dispatch_args_t d = mp_job_dispatch(job);
    xep_handle_t *handle;
    xep_request_t *req;
    xep_status_t status;
    char what[64];
    snprintf(what, sizeof what, "of mode %s; epoch 3 waits for ", base.mode);
    begin(what, "");
    MP_OK(xep_dispatch(job->buffer, &d, &handle, &req));
    while ((status = xep_request_test(req)) == XEP_INPROGRESS) mp_sleep_us(1000);
    MP_OK(status);
    end();
    xep_request_free(req);
    xep_handle_release(handle);
}

/* The last rank has begun its combine before the others, so it reads nothing yet. Only of mapped ranks is anything read
 * there. */
static void in_input(mp_job_t *job)
{
    static int rounds;
    xep_dispatch_args_t d = mp_job_dispatch(job);
    xep_handle_t *handle;
    xep_request_t *req;
    char what[96];
    MP_OK(xep_dispatch(job->buffer, &d, &handle, NULL));
    xep_combine_args_t c = mp_job_combine(job, handle);
    rounds++;
    if (!mp_is_last()) mp_await(begun, rounds);
    MP_OK(xep_combine(handle, &c, &req));
    if (mp_is_last()) ++*begun;
    snprintf(what, sizeof what, "the combine input of slot 0 of mode %s, whose last rows are still read: epoch 5",
             base.mode);
    if (!mp_is_last()) MP_OK(xep_request_wait(req));
    begin(what, "");
    if (mp_is_last()) MP_OK(xep_request_wait(req));
    else MP_CHECK(mp_input(handle, NULL) != NULL);
    end();
    xep_request_free(req);
    xep_handle_release(handle);
}

static void in_operations(xep_group_t *group)
{
    mp_job_t job;
    xep_handle_t *handle;
    char what[64];
    mp_job_begin(&job, &base, 1, group);
    xep_dispatch_args_t d = mp_job_dispatch(&job);
    snprintf(what, sizeof what, "dispatch 1 of mode %s; epoch 1 waits for ", base.mode);
    begin(what, "");
    MP_OK(xep_dispatch(job.buffer, &d, &handle, NULL));
    end();
    xep_combine_args_t c = mp_job_combine(&job, handle);
    snprintf(what, sizeof what, "combine 2 of mode %s; epoch 2 waits for ", base.mode);
    begin(what, "");
    MP_OK(xep_combine(handle, &c, NULL));
    end();
    xep_handle_release(handle);
    in_tests(&job);
    if (mp_buffer_info(job.buffer).mapped_peers == mp_nranks()) in_input(&job);
    mp_job_close(&job);
}

/* ---- no wait ---- */

static char line[256]; /* what the handler wrote on stderr */

static void ask_here(void)
{
    int ends[2], stderr_was = dup(STDERR_FILENO);
    MP_CHECK(pipe(ends) == 0 && stderr_was >= 0 && dup2(ends[1], STDERR_FILENO) >= 0);
    raise(SIGUSR2);
    dup2(stderr_was, STDERR_FILENO);
    close(ends[1]);
    ssize_t n = read(ends[0], line, sizeof line - 1);
    line[n > 0 ? n : 0] = '\0';
    close(ends[0]);
    close(stderr_was);
}

static int gather(void *group, const void *send, void *recv, size_t bytes)
{
    ask_here();
    return xep_group_allgather(group, send, recv, bytes) == XEP_OK ? 0 : -1;
}

static void outside(xep_group_t *group)
{
    xep_group_params_t params = XEP_GROUP_PARAMS_INIT;
    xep_group_t *other;
    ask_here();
    MP_CHECK(strstr(line, "is not waiting in xep\n") != NULL);
    params.rank = mp_rank(), params.nranks = mp_nranks(), params.allgather = gather, params.allgather_ctx = group;
    MP_OK(xep_group_create(&params, &other));
    MP_CHECK(strstr(line, "the program's allgather") != NULL);
    xep_group_destroy(other);
}

static void refused(void)
{
    xep_group_t *group;
    setenv("XEP_EXPLAIN", "SIGKILL", 1);
    MP_SAYS(XEP_ERR_INVALID, "sigusr2", xep_group_create(NULL, &group));
}

static void handler_of_program(int number)
{
    (void)number;
}

static void taken(void)
{
    xep_group_t *group;
    signal(SIGUSR1, handler_of_program);
    setenv("XEP_EXPLAIN", "sigusr1", 1);
    MP_SAYS(XEP_ERR_INVALID, "has a handler of the program", xep_group_create(NULL, &group));
    setenv("XEP_EXPLAIN", "sigusr2", 1);
}

int main(void)
{
    refused();
    taken();
    xep_group_t *group = mp_group();
    said = mp_counter(group);
    begun = mp_counter(group);
    xep_log_set(listen, NULL);
    in_collectives(group);
    for (int m = 0; m < 2; m++) {
        base.mode = mp_modes[m];
        in_operations(group);
    }
    xep_log_set(NULL, NULL);
    outside(group);
    return mp_end(group);
}
