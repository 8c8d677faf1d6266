/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2 4, brief: 4, limit: 120 */

/*
 * Steps in which some ranks work and all others serve, in turn: a rank that has tokens again begins with the first
 * operation of the next step. Two buffers, one of each mode, are served together; what comes is compared with the
 * oracle, and the function checks which step and dispatch it is in.
 */

#include <string.h>

#include "mp_job.h"
#include "mp_rig.h"

enum { BUFFERS = 2, SETS = 4, STEPS = 12, ROUNDS = 2, PER_ROUND = 3 /* dispatches */ };

typedef struct steps {
    mp_case_t cases[BUFFERS][SETS];
    mp_job_t jobs[BUFFERS][SETS]; /* of a buffer, by who works */
    xep_buffer_t *buffers[BUFFERS];
    uint64_t step, stop_at; /* that this rank is in, by its own count; in which it asks to return */
    uint64_t dispatches[BUFFERS], calls;
    int works_not; /* this rank serves to the end */
} steps_t;

static uint32_t set_of(uint64_t step)
{
    return (uint32_t)(step * 7 + step / 3) % SETS;
}

static uint32_t workers(uint32_t set)
{
    const uint32_t last = 1u << (mp_nranks() - 1), sets[SETS] = {1, last, 1 | last, 2 * last - 1};
    return sets[set];
}

static int works(uint64_t step)
{
    return (workers(set_of(step)) >> mp_rank() & 1) != 0;
}

static uint64_t payload(uint64_t step, uint64_t dispatch)
{
    return step * 100 + dispatch / PER_ROUND + 3;
}

static void open_steps(steps_t *steps, xep_group_t *group, mp_case_t first, mp_case_t second)
{
    const mp_case_t cases[BUFFERS] = {first, second};
    *steps = (steps_t){0};
    for (uint32_t b = 0; b < BUFFERS; b++)
        for (uint32_t s = 0; s < SETS; s++) {
            steps->cases[b][s] = cases[b];
            steps->cases[b][s].works = workers(s);
            steps->cases[b][s].served = 1;
            mp_job_open(&steps->jobs[b][s], &steps->cases[b][s], 11 + b);
            if (s == 0) mp_job_buffer(&steps->jobs[b][0], group);
            steps->jobs[b][s].buffer = steps->buffers[b] = steps->jobs[b][0].buffer;
            steps->jobs[b][s].shape.node = steps->jobs[b][0].shape.node;
        }
}

static void close_steps(steps_t *steps)
{
    for (uint32_t b = 0; b < BUFFERS; b++)
        for (uint32_t s = 0; s < SETS; s++) {
            if (s != 0) steps->jobs[b][s].buffer = NULL;
            mp_job_close(&steps->jobs[b][s]);
        }
}

/* A dispatch; one with its routing, combined first; then the combine of the former, twice. */
static void work_round(mp_job_t *job)
{
    xep_handle_t *first, *second;
    xep_request_t *req;
    xep_dispatch_args_t d = mp_job_dispatch(job);
    MP_OK(xep_dispatch(job->buffer, &d, &first, &req));
    mp_finish(req);
    mp_job_check_recv(job, first);
    xep_combine_args_t c1 = mp_job_combine(job, first);
    d = mp_job_cached(job, first);
    second = mp_job_receive(job, &d);
    mp_job_sum(job, second);
    xep_handle_release(second);
    (void)mp_job_dispatch(job); /* what checks expect */
    for (int i = 0; i < 2; i++) {
        if (i == 1) c1 = mp_job_combine(job, first);
        MP_OK(xep_combine(first, &c1, NULL));
        mp_job_check_out(job);
    }
    xep_handle_release(first);
    mp_job_round(job);
}

static void work_step(steps_t *steps)
{
    for (uint64_t round = 0; round < ROUNDS; round++)
        for (uint32_t b = 0; b < BUFFERS; b++) {
            mp_job_t *job = &steps->jobs[b][set_of(steps->step)];
            mp_job_payload(job, payload(steps->step, round * PER_ROUND));
            work_round(job);
        }
    MP_OK(xep_step_end(steps->buffers, BUFFERS, 0));
    steps->step++;
}

static xep_status_t run_experts(void *arg, xep_serve_call_t *call)
{
    steps_t *steps = arg;
    const uint32_t b = call->buffer == steps->buffers[1];
    mp_job_t *job = &steps->jobs[b][set_of(call->step)];
    MP_CHECK(call->buffer == steps->buffers[b]);
    MP_CHECK(call->step >= steps->step && call->dispatch < ROUNDS * PER_ROUND);
    MP_CHECK(steps->works_not || !works(call->step));
    mp_job_payload(job, payload(call->step, call->dispatch));
    if (call->dispatch % PER_ROUND == 1) (void)mp_job_cached(job, call->handle);
    else (void)mp_job_dispatch(job);
    mp_job_check_recv(job, call->handle);
    xep_combine_args_t c = mp_job_combine(job, call->handle);
    call->topk_weights = c.topk_weights;
    MP_CHECK(call->recv->rows == 0 || (call->out != NULL && call->dtype == job->shape.combine_dtype));
    if (call->step == steps->stop_at) {
        xep_serve_args_t args = XEP_SERVE_ARGS_INIT;
        args.buffers = steps->buffers, args.count = 1, args.fn = run_experts, args.arg = arg;
        MP_SAYS(XEP_ERR_INVALID, "served already", xep_serve(&args));
        xep_serve_stop(call->buffer);
    }
    steps->calls++;
    return XEP_OK;
}

/* Until the step in which this rank works next. */
static void serve(steps_t *steps)
{
    xep_serve_args_t args = XEP_SERVE_ARGS_INIT;
    uint64_t next = steps->step;
    while (next < STEPS && (steps->works_not || !works(next))) next++;
    args.buffers = steps->buffers, args.count = BUFFERS, args.fn = run_experts, args.arg = steps;
    steps->stop_at = next - 1;
    steps->calls = 0;
    MP_OK(xep_serve(&args));
    MP_CHECK(steps->calls == (next - steps->step) * BUFFERS * ROUNDS * (PER_ROUND + 1));
    steps->step = next;
}

static void all_steps(xep_group_t *group, mp_case_t first, mp_case_t second)
{
    steps_t steps;
    open_steps(&steps, group, first, second);
    while (steps.step < STEPS)
        if (works(steps.step)) work_step(&steps);
        else serve(&steps);
    close_steps(&steps);
}

int main(void)
{
    const mp_case_t normal = {.name = "serving, normal", .owners = "cyclic", MP_SHAPE(21, 5, 72, 40), .weights = 1},
                    ll = {.name = "serving, ll",
                          .mode = "ll",
                          MP_SHAPE(13, 4, 264, 33),
                          .idx_dtype = XEP_INT32,
                          .quant = XEP_QUANT_E4M3,
                          .weights = 1,
                          .sent = 1,
                          .slots = 3};
    xep_group_t *group = mp_group();
    all_steps(group, normal, ll);
    return mp_end(group);
}
