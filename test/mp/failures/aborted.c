/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2 4, brief: 4, limit: 120 */

/*
 * One rank aborts its group, from its program or from a signal handler, while the others are in a call that waits for
 * it without a deadline: all of them come back, and are told which rank it was.
 */
#include <signal.h>
#include <stdio.h>

#include "mp_job.h"
#include "mp_rig.h"

static const mp_case_t base = {.name = "aborted", MP_SHAPE(13, 3, 136, 24), .slots = 2, .timeout_ms = -1};

typedef struct scene {
    const char *name, *mode;
    void (*wait)(mp_job_t *job, xep_group_t *group);
} scene_t;

static void in_barrier(mp_job_t *job, xep_group_t *group)
{
    (void)job;
    MP_FAILS(XEP_ERR_ABORTED, xep_group_barrier(group));
}

static void in_allgather(mp_job_t *job, xep_group_t *group)
{
    uint64_t mine = 7, all[16];
    (void)job;
    MP_FAILS(XEP_ERR_ABORTED, xep_group_allgather(group, &mine, all, sizeof mine));
}

static void in_dispatch(mp_job_t *job, xep_group_t *group)
{
    xep_handle_t *handle = NULL;
    xep_dispatch_args_t d = mp_job_dispatch(job);
    (void)group;
    MP_FAILS(XEP_ERR_ABORTED, xep_dispatch(job->buffer, &d, &handle, NULL));
}

/* a request that is only tested, now and then */
static void in_test(mp_job_t *job, xep_group_t *group)
{
    xep_handle_t *handle = NULL;
    xep_request_t *req = NULL;
    xep_dispatch_args_t d = mp_job_dispatch(job);
    xep_status_t status = xep_dispatch(job->buffer, &d, &handle, &req);
    (void)group;
    while (status == XEP_OK && (status = xep_request_test(req)) == XEP_INPROGRESS) {
        mp_sleep_us(100);
        status = XEP_OK;
    }
    MP_CHECK(status == XEP_ERR_ABORTED);
    xep_request_free(req);
}

/* All have the dispatch, and its rows stay readable; the combine waits for the rank that is gone. */
static void in_combine(mp_job_t *job, xep_group_t *group)
{
    xep_handle_t *handle = NULL;
    xep_dispatch_args_t d = mp_job_dispatch(job);
    atomic_int *done = mp_counter(group);
    MP_OK(xep_dispatch(job->buffer, &d, &handle, NULL));
    ++*done;
    if (mp_is_last()) {
        mp_await(done, (int)mp_nranks());
        return;
    }
    mp_job_check_recv(job, handle);
    xep_combine_args_t c = mp_job_combine(job, handle);
    MP_FAILS(XEP_ERR_ABORTED, xep_combine(handle, &c, NULL));
    mp_job_check_recv(job, handle);
}

static void in_destroy(mp_job_t *job, xep_group_t *group)
{
    mp_job_close(job);
    job->buffer = NULL;
    (void)group;
}

static const scene_t scenes[] = {
    {"barrier", "normal", in_barrier},
    {"allgather", "ll", in_allgather},
    {"dispatch", "normal", in_dispatch},
    {"dispatch of ll", "ll", in_dispatch},
    {"test", "ll", in_test},
    {"combine", "normal", in_combine},
    {"combine of ll", "ll", in_combine},
    {"end of a buffer", "ll", in_destroy},
};

static xep_group_t *to_abort;

static void abort_in_handler(int number)
{
    (void)number;
    xep_group_abort(to_abort);
}

/* The reason stays the same for all later calls. */
static void check_reason(xep_group_t *group)
{
    char who[64];
    snprintf(who, sizeof who, "aborted by rank %u: it called xep_group_abort()", mp_nranks() - 1);
    MP_SAYS(XEP_ERR_ABORTED, who, xep_group_barrier(group));
}

static void play(const scene_t *scene, int by_signal)
{
    xep_group_params_t params = XEP_GROUP_PARAMS_INIT;
    xep_group_t *group;
    mp_case_t c = base;
    mp_job_t job;
    params.timeout_ms = -1;
    MP_OK(xep_group_create(&params, &group));
    c.mode = scene->mode;
    mp_job_begin(&job, &c, 3, group);
    atomic_int *here = mp_counter(group);
    mp_job_round(&job);
    ++*here;
    mp_await(here, (int)mp_nranks()); /* an abort also ends the round of those that have not left it */
    if (!mp_is_last()) {
        scene->wait(&job, group);
        check_reason(group);
    } else {
        if (scene->wait == in_combine) in_combine(&job, group);
        mp_sleep_us(30 * 1000); /* most of the time the others wait by then; what they get is the same if not */
        to_abort = group;
        if (by_signal) raise(SIGUSR1);
        else xep_group_abort(group);
        MP_SAYS(XEP_ERR_ABORTED, "aborted by this rank", xep_group_barrier(group));
        const xep_dispatch_args_t d = mp_job_dispatch(&job);
        MP_REFUSES(&job, &d, XEP_ERR_ABORTED, "aborted by this rank");
        MP_FAILS(XEP_ERR_ABORTED, xep_buffer_reset(job.buffer));
    }
    if (job.buffer != NULL) mp_job_close(&job);
    xep_group_destroy(group);
}

int main(void)
{
    (void)mp_group();
    signal(SIGUSR1, abort_in_handler);
    for (size_t i = 0; i < sizeof scenes / sizeof scenes[0]; i++) play(&scenes[i], i % 2 == 1);
    MP_OK(xep_group_barrier(mp_group())); /* another group is none the worse for it */
    return mp_end(mp_group());
}
