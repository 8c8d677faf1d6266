/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2 4, brief: 4, limit: 120, again: 2 */

/* Ranks that come late, or stay away: errors with names in time, and recovery by reset. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mp_job.h"
#include "mp_rig.h"

static mp_case_t base = {.name = "failure", MP_SHAPE(12, 4, 300, 30), .weights = 1, .slots = 2};

static char warning[512]; /* the last one that came before a deadline */

static void count_logged(void *arg, xep_log_level_t level, const char *message)
{
    if (level == XEP_LOG_WARN && strstr(message, "half of the deadline has passed") != NULL)
        snprintf(warning, sizeof warning, "%s", message);
    else if (strstr(message, "dispatch") != NULL || strstr(message, "combine") != NULL) ++*(int *)arg;
    if (strstr(message, "failed: dispatch") != NULL || strstr(message, "failed: combine") != NULL)
        mp_fail(__FILE__, __LINE__, "names the operation twice: %s", message);
}

/*
 * A warning comes from the first look behind half of the deadline. Whoever gets no processor from there to the deadline
 * makes none.
 */
enum { WARNED_MS = 6000 };

static void check_warning(const char *what, const char *whom)
{
    if (strstr(warning, what) == NULL || strstr(warning, whom) == NULL)
        mp_fail(__FILE__, __LINE__, "no warning of \"%s\" and \"%s\" but \"%s\"", what, whom, warning);
}

/* This rank dispatches, with a request or blocking, and is told in time who is missing. */
static void dispatch_in_vain(mp_job_t *job, int with_request, uint32_t timeout_ms)
{
    xep_dispatch_args_t a = mp_job_dispatch(job);
    xep_handle_t *handle = NULL;
    xep_request_t *req;
    char missing[32];
    a.timeout_ms = timeout_ms;
    warning[0] = '\0';
    snprintf(missing, sizeof missing, "rank %u at ", mp_nranks() - 1);
    if (with_request) {
        MP_OK(xep_dispatch(job->buffer, &a, &handle, &req));
        MP_FAILS(XEP_ERR_TIMEOUT, xep_request_wait(req));
        MP_FAILS(XEP_ERR_TIMEOUT, xep_request_test(req));
        xep_request_free(req);
        MP_CHECK(mp_recv(handle) == NULL);
        xep_handle_release(handle);
        handle = NULL;
    } else {
        MP_REFUSES(job, &a, XEP_ERR_TIMEOUT, "dispatch");
        MP_REASON(missing);
        MP_CHECK(handle == NULL);
    }
    if (timeout_ms == WARNED_MS) check_warning("dispatch", missing);
    MP_REFUSES(job, &a, XEP_ERR_BROKEN, "xep_buffer_reset");
}

/* The last rank does not dispatch; after a reset all is well again. A warning is looked for in one round. */
static void stays_away(xep_group_t *group, int warned)
{
    mp_job_t job;
    mp_job_begin(&job, &base, 1, group);
    for (int round = 0; round < 3; round++) {
        int logged = 0;
        mp_job_round(&job);
        xep_log_set(count_logged, &logged);
        if (!mp_is_last()) {
            dispatch_in_vain(&job, round == 1, round == warned ? WARNED_MS : MP_VAIN_MS);
            MP_CHECK(logged > 0); /* said once, with the reason */
        }
        xep_log_set(NULL, NULL);
        MP_OK(xep_buffer_reset(job.buffer));
        mp_job_payload(&job, 50 + (uint64_t)round);
    }
    mp_job_round(&job);
    mp_job_close(&job);
}

/* A combine that one rank never makes; requests in flight end with it. A warning is looked for in one of them. */
static void no_combine(xep_group_t *group, int is_warned)
{
    mp_job_t job;
    int logged = 0;
    mp_job_begin(&job, &base, 2, group);
    xep_handle_t *handle = mp_job_send(&job);
    xep_combine_args_t c = mp_job_combine(&job, handle);
    c.timeout_ms = is_warned ? WARNED_MS : MP_VAIN_MS;
    warning[0] = '\0';
    xep_log_set(count_logged, &logged);
    if (mp_rank() != 0) {
        MP_SAYS(XEP_ERR_TIMEOUT, "combine", xep_combine(handle, &c, NULL));
        MP_REASON("rank 0");
        MP_CHECK(logged > 0);
        if (is_warned) check_warning("combine 2 of mode ", "rank 0");
    }
    xep_log_set(NULL, NULL);
    MP_OK(xep_buffer_reset(job.buffer));
    MP_FAILS(XEP_ERR_INVALID, xep_combine(handle, &c, NULL)); /* a reset releases all handles */
    mp_job_round(&job);
    mp_job_close(&job);
}

/* Late, but not too late. */
static void comes_late(xep_group_t *group)
{
    mp_job_t job;
    mp_job_begin(&job, &base, 3, group);
    for (uint32_t late = 0; late < mp_nranks(); late++) {
        if (mp_rank() == late) mp_sleep_us(200 * 1000);
        mp_job_round(&job);
    }
    mp_job_close(&job);
}

/* The last rank stays away from a barrier, and from the making of a buffer, until the others have given it up. */
static void in_group_calls(xep_group_t *group)
{
    char missing[32];
    atomic_int *done = mp_counter(group);
    snprintf(missing, sizeof missing, "still missing: rank %u", mp_nranks() - 1);
    for (int i = 0; i < 2; i++) {
        xep_group_t *second = mp_second_group(group, WARNED_MS); /* a barrier has its group's deadline */
        int logged = 0;
        mp_job_t job;
        mp_job_open(&job, &base, 5);
        warning[0] = '\0';
        xep_log_set(count_logged, &logged);
        if (!mp_is_last()) {
            MP_FAILS(XEP_ERR_TIMEOUT, i == 0 ? xep_group_barrier(second) : mp_job_try_buffer(&job, second));
            check_warning(i == 0 ? "barrier: " : "xep_buffer_create: ", missing);
        }
        xep_log_set(NULL, NULL);
        ++*done;
        mp_await(done, (2 * i + 1) * (int)mp_nranks());
        if (i == 0 && mp_is_last()) MP_OK(xep_group_barrier(second)); /* it comes after all */
        ++*done;
        mp_await(done, (2 * i + 2) * (int)mp_nranks());
        mp_job_close(&job);
        xep_group_abort(second);
        xep_group_destroy(second);
    }
}

int main(void)
{
    xep_group_t *group = mp_group();
    for (int m = 0; m < 2; m++) {
        base.mode = mp_modes[m];
        stays_away(group, m);
        no_combine(group, m);
        comes_late(group);
    }
    in_group_calls(group);
    return mp_end(group);
}
