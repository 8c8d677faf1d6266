/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2 4, brief: 4, limit: 120, again: 2 */

/*
 * A rank that comes to an operation when the others have given it up ends at once, though its own deadline is far away,
 * and says who has given up; and all are together again by a reset, however often that had to be called. The same of
 * the group's allgather, which may also be called in vain for good: others of the group go on.
 */

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "mp_job.h"
#include "mp_rig.h"

enum { DEADLINE_MS = 3000, CALLS = 100, PART = 4072 };

static atomic_int *gave_up; /* calls of all ranks but the last, of those that it is late to */

static void give_up(void)
{
    if (!mp_is_last()) ++*gave_up;
}

/* The last rank: until all others have given so many more calls up. */
static void come_late(int calls)
{
    static int all;
    all += calls * ((int)mp_nranks() - 1);
    if (mp_is_last()) mp_await(gave_up, all);
}

/* resets: that the others give up, too, before the last rank comes */
static void in_operation(xep_group_t *group, mp_job_t *job, int resets)
{
    xep_status_t status;
    MP_OK(xep_group_barrier(group));
    come_late(1 + resets);
    MP_FAILS(XEP_ERR_TIMEOUT, mp_job_try_round(job, 3));
    give_up();
    if (mp_is_last()) MP_REASON("given up by rank ");
    if (mp_is_last()) MP_REASON(" s ago (deadline passed)");
    for (int i = 0; (status = xep_buffer_reset(job->buffer)) == XEP_ERR_TIMEOUT && i < CALLS; i++)
        if (i < resets) give_up();
    MP_OK(status);
    mp_job_payload(job, 4 + (uint64_t)resets);
    mp_job_round(job);
}

static void in_operations(xep_group_t *group, xep_group_t *second, const char *mode)
{
    const mp_case_t c = {.name = "given up",
                         .mode = mode,
                         MP_SHAPE(12, 4, 300, 30),
                         .weights = 1,
                         .slots = 2,
                         .timeout_ms = mp_is_last() ? MP_FAR_MS : DEADLINE_MS};
    mp_job_t job;
    mp_job_begin(&job, &c, 1, second);
    in_operation(group, &job, 0);
    in_operation(group, &job, 1);
    mp_job_close(&job);
}

/* What each rank gives: its number, in every byte. */
static void check_gathered(const uint8_t *recv, size_t bytes)
{
    for (size_t i = 0; i < mp_nranks() * bytes; i++) MP_CHECK(recv[i] == i / bytes + 1);
}

/* Again and again, until the last rank has come. */
static xep_status_t call_until(xep_group_t *group, const void *send, void *recv, size_t bytes)
{
    xep_status_t status;
    for (int i = 0; (status = xep_group_allgather(group, send, recv, bytes)) == XEP_ERR_TIMEOUT && i < CALLS; i++)
        continue;
    return status;
}

static void in_allgather(xep_group_t *group, xep_group_t *second, size_t bytes)
{
    uint8_t *send = mp_alloc(bytes, 0), *recv = mp_alloc(mp_nranks() * bytes, 0);
    xep_status_t status;
    memset(send, (int)mp_rank() + 1, bytes);
    MP_OK(xep_group_barrier(group));
    come_late(1);
    status = xep_group_allgather(second, send, recv, bytes);
    MP_CHECK(status == (mp_is_last() ? XEP_OK : XEP_ERR_TIMEOUT));
    give_up();
    if (status == XEP_ERR_TIMEOUT) MP_OK(call_until(second, send, recv, bytes));
    check_gathered(recv, bytes);
    mp_free(send, "send");
    mp_free(recv, "recv");
}

/* Another one of so many bytes, or a reset. */
static xep_status_t call_another(xep_group_t *group, mp_job_t *job, size_t bytes)
{
    xep_status_t status;
    if (job != NULL) return xep_buffer_reset(job->buffer);
    uint8_t *send = mp_alloc(bytes, 0), *recv = mp_alloc(mp_nranks() * bytes, 0);
    memset(send, (int)mp_rank() + 1, bytes);
    status = call_until(group, send, recv, bytes);
    if (status == XEP_OK) check_gathered(recv, bytes);
    mp_free(send, "send");
    mp_free(recv, "recv");
    return status;
}

/*
 * Another one is called in its place, and by the last rank behind it: that is in its first round still, or
 * (all_give_up) has given up the second one. All do that twice, so that they are seen to be in the same round.
 */
static void leave_allgather(xep_group_t *group, xep_group_t *second, mp_job_t *job, size_t bytes, int all_give_up)
{
    const int ends = bytes <= PART || all_give_up;
    uint8_t *send = mp_alloc(bytes, 0), *recv = mp_alloc(mp_nranks() * bytes, 0);
    xep_status_t status;
    memset(send, (int)mp_rank() + 1, bytes);
    MP_OK(xep_group_barrier(group));
    come_late(1);
    status = xep_group_allgather(second, send, recv, bytes);
    give_up();
    if (!mp_is_last() || all_give_up) MP_CHECK(status == XEP_ERR_TIMEOUT);
    else MP_CHECK(status == (ends ? XEP_OK : XEP_ERR_MISMATCH));
    if (mp_is_last() && !ends) MP_REASON("is in another call, this rank in xep_group_allgather");
    if (mp_is_last() && status == XEP_OK) check_gathered(recv, bytes);
    memset(recv, 0xee, mp_nranks() * bytes);
    if (all_give_up) MP_OK(xep_group_barrier(group));
    for (int i = 0; (status = call_another(second, job, 100)) == XEP_ERR_TIMEOUT && i < CALLS; i++) continue;
    MP_OK(status);
    MP_OK(call_another(second, NULL, 2 * PART));
    for (size_t i = 0; i < mp_nranks() * bytes; i++) MP_CHECK(recv[i] == 0xee);
    if (job != NULL) mp_job_round(job);
    mp_free(send, "send");
    mp_free(recv, "recv");
}

/*
 * Called again behind another one, which comes to its deadline as well, it is a new one: its memory has other bytes by
 * then. The last rank has given it up in its first round, the others in the second one.
 */
static void come_back(xep_group_t *group, xep_group_t *hasty)
{
    const size_t bytes = PART + 5;
    uint8_t *send = mp_alloc(bytes, 0), *recv = mp_alloc(mp_nranks() * bytes, 0);
    memset(send, 0x55, bytes);
    MP_OK(xep_group_barrier(group));
    if (mp_is_last()) MP_FAILS(XEP_ERR_TIMEOUT, xep_group_allgather(hasty, send, recv, bytes));
    MP_OK(xep_group_barrier(group));
    if (!mp_is_last()) {
        MP_FAILS(XEP_ERR_TIMEOUT, xep_group_allgather(hasty, send, recv, bytes));
        MP_FAILS(XEP_ERR_TIMEOUT, xep_group_allgather(hasty, send, recv, 8));
        memset(recv, 0xee, mp_nranks() * bytes);
    }
    MP_OK(xep_group_barrier(group));
    if (mp_is_last()) MP_OK(call_until(hasty, send, recv, bytes));
    memset(send, (int)mp_rank() + 1, bytes);
    MP_OK(call_until(hasty, send, recv, bytes));
    check_gathered(recv, bytes);
    MP_OK(call_another(hasty, NULL, 2 * PART));
    mp_free(send, "send");
    mp_free(recv, "recv");
}

static void leave_allgathers(xep_group_t *group, xep_group_t *second)
{
    const mp_case_t c = {.name = "left", MP_SHAPE(12, 4, 300, 30), .slots = 2};
    xep_group_t *hasty = mp_second_group(group, DEADLINE_MS);
    mp_job_t job;
    mp_job_begin(&job, &c, 1, second);
    leave_allgather(group, second, NULL, 8, 0);
    leave_allgather(group, second, NULL, 3 * PART + 5, 0);
    leave_allgather(group, second, &job, 24, 0);
    leave_allgather(group, hasty, NULL, 3 * PART + 5, 1);
    come_back(group, hasty);
    mp_job_close(&job);
    xep_group_destroy(hasty);
}

/*
 * A rank gives the buffer up, by an operation that fails on it alone, and does not come to its end, in which the others
 * are by then: they wait 2 s for it, and not until their deadline.
 */
static void at_the_end(xep_group_t *group)
{
    const mp_case_t c = {.name = "the end", MP_SHAPE(12, 4, 300, 30), .slots = 2, .timeout_ms = MP_FAR_MS};
    mp_job_t job;
    xep_handle_t *handle;
    mp_job_begin(&job, &c, 1, group);
    xep_dispatch_args_t d = mp_job_dispatch(&job);
    d.timeout_ms = DEADLINE_MS;
    if (mp_is_last()) MP_FAILS(XEP_ERR_TIMEOUT, xep_dispatch(job.buffer, &d, &handle, NULL));
    else mp_job_close(&job);
    MP_OK(xep_group_barrier(group));
    if (mp_is_last()) mp_job_close(&job);
}

/*
 * The others give up an operation, and perhaps a reset, and leave. The last rank is in a reset by then, or comes to
 * theirs behind them: it hears at once that they leave, and its words do not let them believe that it leaves, too, and
 * frees its memory.
 */
static void leave_reset(xep_group_t *group, xep_group_t *second, int in_reset)
{
    const mp_case_t c = {.name = "left",
                         MP_SHAPE(12, 4, 300, 30),
                         .slots = 2,
                         .timeout_ms = mp_is_last() ? MP_FAR_MS : 2 * DEADLINE_MS};
    mp_job_t job;
    xep_handle_t *handle;
    mp_job_begin(&job, &c, 1, second);
    MP_OK(xep_group_barrier(group));
    come_late(in_reset ? 2 : 1);
    xep_dispatch_args_t d = mp_job_dispatch(&job);
    if (!mp_is_last()) d.timeout_ms = DEADLINE_MS;
    MP_FAILS(XEP_ERR_TIMEOUT, xep_dispatch(job.buffer, &d, &handle, NULL));
    give_up();
    if (mp_is_last()) {
        MP_SAYS(XEP_ERR_BROKEN, " destroys the buffer", xep_buffer_reset(job.buffer));
    } else {
        if (in_reset) MP_CHECK(xep_buffer_reset(job.buffer) != XEP_OK), give_up();
        else mp_sleep_us(DEADLINE_MS * 200);
        MP_CHECK(xep_buffer_destroy(job.buffer) != XEP_OK);
        job.buffer = NULL;
    }
    MP_OK(xep_group_barrier(group));
    MP_OK(call_another(second, NULL, 8)); /* the reset has left nothing of its own to the group */
    mp_job_close(&job);
}

/* The others hear of it in their operation. */
static void aborted(xep_group_t *group)
{
    const mp_case_t c =
        {.name = "aborted", .mode = "ll", MP_SHAPE(12, 4, 300, 30), .weights = 1, .slots = 2, .timeout_ms = MP_FAR_MS};
    mp_job_t job;
    mp_job_begin(&job, &c, 1, group);
    mp_job_round(&job);
    if (mp_is_last()) xep_buffer_abort(job.buffer);
    MP_SAYS(XEP_ERR_BROKEN, mp_is_last() ? "this rank called xep_buffer_abort()" : "given up by rank ",
            mp_job_try_round(&job, 2));
    MP_OK(xep_buffer_reset(job.buffer));
    mp_job_round(&job);
    mp_job_close(&job);
}

typedef struct resetting {
    xep_buffer_t *buffer;
    xep_status_t status;
    atomic_int is_done;
} resetting_t;

static void *reset(void *arg)
{
    resetting_t *resetting = arg;
    resetting->status = xep_buffer_reset(resetting->buffer);
    atomic_store(&resetting->is_done, 1);
    return NULL;
}

static void abort_reset(xep_buffer_t *buffer)
{
    resetting_t resetting = {.buffer = buffer};
    pthread_t thread;
    MP_CHECK(pthread_create(&thread, NULL, reset, &resetting) == 0);
    do {
        mp_sleep_us(50 * 1000);
        xep_buffer_abort(buffer);
    } while (!atomic_load(&resetting.is_done));
    MP_CHECK(pthread_join(thread, NULL) == 0 && resetting.status == XEP_ERR_BROKEN);
}

/* The last rank gives up a reset in which it waits for the others: they hear it in theirs, and the next is of all. */
static void aborted_in_reset(xep_group_t *group)
{
    const mp_case_t c = {.name = "aborted in reset",
                         MP_SHAPE(12, 4, 300, 30),
                         .weights = 1,
                         .slots = 2,
                         .timeout_ms = MP_FAR_MS};
    mp_job_t job;
    mp_job_begin(&job, &c, 1, group);
    mp_job_round(&job);
    if (mp_is_last()) abort_reset(job.buffer);
    MP_OK(xep_group_barrier(group));
    xep_status_t status = xep_buffer_reset(job.buffer);
    if (!mp_is_last() && status == XEP_ERR_BROKEN) status = xep_buffer_reset(job.buffer);
    MP_OK(status);
    mp_job_round(&job);
    mp_job_close(&job);
}

int main(void)
{
    xep_group_t *group = mp_group(), *second = mp_second_group(group, mp_is_last() ? MP_FAR_MS : DEADLINE_MS);
    gave_up = mp_counter(group);
    in_allgather(group, second, 8);
    in_allgather(group, second, 3 * PART + 5);
    leave_allgathers(group, second);
    in_operations(group, second, "normal");
    in_operations(group, second, "ll");
    aborted(group);
    aborted_in_reset(group);
    at_the_end(group);
    leave_reset(group, second, 1);
    leave_reset(group, second, 0);
    xep_group_destroy(second);
    return mp_end(group);
}
