/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * For serving_ends.sh: how xep_serve() ends. Ranks 0 and 1 work, the last one serves.
 *
 * serving_ends MODE SCENARIO [mask]
 *
 * A rank that has seen what it should says "fine SCENARIO".
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "mp_job.h"
#include "mp_rig.h"

enum { LATE_US = 400 * 1000 };

static const char *scenario;
static mp_case_t base = {.name = "serving ends", MP_SHAPE(21, 4, 64, 20), .weights = 1, .served = 1, .slots = 3};
static xep_group_t *group;
static mp_job_t job, all; /* ranks 0 and 1 have tokens; all ranks have */
static pid_t *pids;
static xep_buffer_t *stopped;
static uint64_t calls, fail_at, die_at, stop_at, end_at; /* the function's, from 1 */

static xep_status_t run_experts(void *arg, xep_serve_call_t *call)
{
    mp_job_t *of = arg;
    calls++;
    if (calls == fail_at) {
        call->expert = 3;
        return XEP_ERR_UNSUPPORTED;
    }
    if (calls == die_at) raise(SIGKILL);
    if (calls == stop_at) xep_serve_stop(call->buffer);
    if (calls == end_at) {
        MP_SAYS(XEP_ERR_INVALID, "invalid buffer: it is served", xep_buffer_destroy(call->buffer));
        MP_SAYS(XEP_ERR_INVALID, "invalid buffer: it is served", xep_buffer_reset(call->buffer));
    }
    if (call->recv->out == NULL) mp_job_check_recv(of, call->handle);
    call->topk_weights = mp_job_combine(of, call->handle).topk_weights;
    return XEP_OK;
}

static xep_status_t serve(int32_t timeout_ms)
{
    xep_serve_args_t args = XEP_SERVE_ARGS_INIT;
    args.buffers = &job.buffer, args.count = 1, args.fn = run_experts, args.arg = &job, args.timeout_ms = timeout_ms;
    return xep_serve(&args);
}

/* A round whose rows are not looked at, as ranks may be out. */
static xep_status_t try_round(mp_job_t *of)
{
    xep_handle_t *handle;
    xep_dispatch_args_t d = mp_job_dispatch(of);
    xep_status_t status = xep_dispatch(job.buffer, &d, &handle, NULL);
    if (status != XEP_OK) return status;
    xep_combine_args_t c = mp_job_combine(of, handle);
    status = xep_combine(handle, &c, NULL);
    xep_handle_release(handle);
    return status;
}

static void end_step(uint32_t flags)
{
    MP_OK(xep_step_end(&job.buffer, 1, flags));
}

/* All work, the last rank too: it is in the same step as the others. */
static void work_together(void)
{
    mp_job_payload(&all, 77);
    mp_job_round(&all);
    end_step(0);
}

/* ---- nobody fails ---- */

static double processor_s(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

/* Asleep while nobody calls; the other ranks are outside of xep. */
static void idle(void)
{
    if (mp_is_last()) {
        const double cpu = processor_s(), begin = mp_now();
        MP_OK(serve(0));
        MP_CHECK(mp_now() - begin < 1 || processor_s() - cpu < (mp_now() - begin) / 10); /* it may have come late */
    } else {
        mp_sleep_us(1500 * 1000);
        end_step(XEP_STEP_LAST);
    }
}

/* Many steps in which one rank has nothing to do; then all work. */
static void many(void)
{
    const char *count = getenv("STEPS");
    const uint64_t steps = count == NULL ? 500 : strtoull(count, NULL, 10);
    const double begin = mp_now(), cpu = processor_s();
    stop_at = steps;
    if (mp_is_last()) MP_OK(serve(0));
    for (uint64_t i = 0; !mp_is_last() && i < steps; i++) {
        mp_job_round(&job);
        end_step(0);
    }
    if (count != NULL)
        printf("%llu steps took %.2f s, %.2f of processor time\n", (unsigned long long)steps, mp_now() - begin,
               processor_s() - cpu);
    work_together();
}

static void *stop_soon(void *arg)
{
    mp_sleep_us(100 * 1000);
    xep_serve_stop(arg);
    return NULL;
}

static void handler(int signal)
{
    (void)signal;
    xep_serve_stop(stopped);
}

/* Between two steps it returns at once: asked before, by another thread, and by a signal handler. */
static void stops(void)
{
    const struct itimerval soon = {.it_value = {.tv_usec = 100 * 1000}};
    pthread_t thread;
    stopped = job.buffer;
    if (mp_is_last()) {
        xep_serve_stop(job.buffer);
        MP_OK(serve(0));
        MP_CHECK(pthread_create(&thread, NULL, stop_soon, job.buffer) == 0);
        MP_OK(serve(0));
        pthread_join(thread, NULL);
        MP_CHECK(signal(SIGALRM, handler) != SIG_ERR && setitimer(ITIMER_REAL, &soon, NULL) == 0);
        MP_OK(serve(0));
    }
    MP_OK(xep_group_barrier(group));
    work_together();
}

/* Each mistake within announced layers is refused, and they go on. */
static void wrong_layers(const xep_dispatch_args_t *d)
{
    xep_handle_t *first, *second, *none = NULL;
    MP_OK(xep_dispatch(job.buffer, d, &first, NULL));
    MP_OK(xep_announce_layers(job.buffer, 1));
    xep_combine_args_t c = mp_job_combine(&all, first);
    MP_SAYS(XEP_ERR_INVALID, "this rank has announced a dispatch (xep_announce_layers()): begin it first",
            xep_combine(first, &c, NULL));
    MP_OK(xep_dispatch(job.buffer, d, &second, NULL));
    MP_SAYS(XEP_ERR_INVALID,
            "this rank has announced a combine of its last dispatch (xep_announce_layers()): begin it first",
            xep_dispatch(job.buffer, d, &none, NULL));
    MP_FAILS(XEP_ERR_INVALID, xep_combine(first, &c, NULL));
    MP_FAILS(XEP_ERR_INVALID, xep_step_end(&job.buffer, 1, 0));
    MP_OK(xep_combine(second, &c, NULL));
    MP_SAYS(XEP_ERR_INVALID, "invalid handle: ranks that serve have released it since xep_announce_layers()",
            xep_combine(first, &c, NULL));
    MP_OK(xep_combine(second, &c, NULL));
    xep_handle_release(first);
    xep_handle_release(second);
}

/* With operations under way; bad_arguments.c has the rest. */
static void wrong(void)
{
    xep_handle_t *handle;
    xep_request_t *req;
    xep_dispatch_args_t d = mp_job_dispatch(&all);
    MP_OK(xep_dispatch(job.buffer, &d, &handle, &req));
    MP_SAYS(XEP_ERR_BUSY, "slot 0 holds a handle that was not released", serve(0));
    d.after = req;
    MP_REFUSES(&job, &d, XEP_ERR_UNSUPPORTED, "after must be NULL with XEP_BUFFER_SERVED");
    mp_finish(req);
    MP_OK(xep_announce_dispatch(job.buffer));
    MP_SAYS(XEP_ERR_INVALID, "this rank has announced a dispatch (xep_announce_dispatch()): begin it first",
            xep_announce_dispatch(job.buffer));
    MP_FAILS(XEP_ERR_INVALID, xep_step_end(&job.buffer, 1, 0));
    xep_combine_args_t c = mp_job_combine(&all, handle);
    MP_SAYS(XEP_ERR_INVALID, "this rank has announced a dispatch", xep_combine(handle, &c, NULL));
    xep_handle_release(handle);
    MP_SAYS(XEP_ERR_INVALID, "this rank has announced a dispatch", serve(0));
    mp_job_round(&all);
    MP_SAYS(XEP_ERR_INVALID, "invalid layers: 0 (at least 1)", xep_announce_layers(job.buffer, 0));
    d.after = NULL;
    wrong_layers(&d);
    end_step(0);
    work_together();
}

/* ---- ranks that fail ---- */

/* With masks the others go on without the rank as soon as it ends. */
static void fails_with_masks(void)
{
    xep_status_t status = XEP_OK;
    fail_at = 3;
    if (mp_is_last()) {
        MP_SAYS(XEP_ERR_FUNCTION, "the expert function failed for expert 17 (local 3)", serve(0));
        printf("fine %s\n", scenario);
        exit(0);
    }
    for (int i = 0; status == XEP_OK && i < 4; i++) status = try_round(&job);
    MP_CHECK(status == XEP_OK);
}

/* The function fails in the third dispatch: all ranks hear of it at once, and go on after a reset. */
static void fails(void)
{
    xep_status_t status = XEP_OK;
    if (base.on_failure == XEP_ON_FAILURE_MASK) {
        fails_with_masks();
        return;
    }
    fail_at = 3;
    if (mp_is_last()) {
        MP_SAYS(XEP_ERR_FUNCTION,
                "the expert function failed for expert 17 (local 3) in dispatch 2 of step 0, with -3 (not supported)",
                serve(0));
    }
    for (int i = 0; !mp_is_last() && status == XEP_OK && i < 4; i++) status = try_round(&job);
    if (!mp_is_last()) {
        MP_CHECK(status == XEP_ERR_FUNCTION);
        MP_REASON("given up by rank 2 ");
        MP_REASON("(the expert function of a rank failed, expert 17)");
    }
    MP_OK(xep_buffer_reset(job.buffer));
    fail_at = 0, stop_at = calls + 1;
    if (mp_is_last()) MP_OK(serve(0));
    else mp_job_round(&job), end_step(0);
    work_together();
}

/* A dispatch that was announced but had not begun when the buffer was reset never begins. */
static void forgets(void)
{
    work_together();
    if (!mp_is_last()) MP_OK(xep_announce_dispatch(job.buffer));
    MP_OK(xep_buffer_reset(job.buffer));
    stop_at = calls + 1;
    if (mp_is_last()) {
        MP_OK(serve(0));
    } else {
        mp_sleep_us(50 * 1000); /* the last rank looks for what comes */
        mp_job_round(&job);
        end_step(0);
    }
    work_together();
}

/* One rank cannot end a step of two buffers, as it has to begin a dispatch of the second: it has ended none. */
static void partly(void)
{
    mp_job_t other;
    mp_job_begin(&other, &base, 1, group);
    xep_buffer_t *both[] = {job.buffer, other.buffer}, *twice[] = {job.buffer, job.buffer};
    xep_serve_args_t args = XEP_SERVE_ARGS_INIT;
    args.buffers = both, args.count = 2, args.fn = run_experts, args.arg = &job;
    if (mp_is_last()) MP_OK(xep_serve(&args));
    else {
        mp_job_round(&other);
        if (mp_rank() == 0) {
            MP_OK(xep_announce_dispatch(other.buffer));
            MP_SAYS(XEP_ERR_INVALID, "this rank has announced a dispatch", xep_step_end(both, 2, 0));
            MP_SAYS(XEP_ERR_INVALID, "invalid buffers[1]: the same as buffers[0]", xep_step_end(twice, 2, 0));
        }
        mp_job_round(&other);
        MP_OK(xep_step_end(both, 2, XEP_STEP_LAST));
    }
    mp_job_close(&other);
    if (mp_is_last()) MP_OK(serve(0));
    else mp_job_round(&job), end_step(XEP_STEP_LAST); /* of a step that is the same on both */
}

/* XEP_STEP_LAST ends one call, however soon or late the next step begins. */
static void again(void)
{
    end_at = 2;
    for (uint64_t i = 1; i <= 2; i++) {
        if (mp_is_last()) {
            MP_OK(serve(0));
            MP_CHECK(calls == i);
        } else {
            mp_sleep_us(50 * 1000 * (unsigned)(i - 1));
            mp_job_round(&job);
            end_step(XEP_STEP_LAST);
        }
    }
    work_together();
}

/* The ranks that work are late within the step, with a dispatch that has no combine yet: the next call goes on. */
static void late(void)
{
    xep_handle_t *handle;
    atomic_int *told = mp_counter(group);
    stop_at = 1;
    if (mp_is_last()) {
        MP_SAYS(XEP_ERR_TIMEOUT, "step 0 has not ended: rank 0 has not called xep_step_end()", serve(MP_VAIN_MS));
        atomic_store(told, 1);
        xep_serve_stop(job.buffer);
        MP_OK(serve(0));
        MP_CHECK(calls == 1);
    } else {
        handle = mp_job_send(&job);
        xep_combine_args_t c = mp_job_combine(&job, handle);
        mp_await(told, 1);
        MP_OK(xep_combine(handle, &c, NULL));
        mp_job_check_out(&job);
        xep_handle_release(handle);
        end_step(0);
    }
    work_together();
}

/* An announced layer fails on all ranks: those behind it are announced no more, and the step goes on. */
static void fail_layer(int number)
{
    xep_dispatch_args_t d = mp_job_dispatch(&job);
    xep_handle_t *handle = NULL;
    MP_OK(xep_announce_layers(job.buffer, 4));
    for (int i = 0; i < number; i++) mp_job_round(&job);
    d.capacity = mp_rank() == 0 ? 1 : 0;
    MP_FAILS(XEP_ERR_OVERFLOW, xep_dispatch(job.buffer, &d, &handle, NULL));
    mp_sleep_us(20 * 1000); /* ranks that serve look for what comes next */
    mp_job_round(&job);
}

/* What is announced behind an operation in flight, which fails, has still to begin. */
static void fail_before_layers(void)
{
    xep_dispatch_args_t d = mp_job_dispatch(&job);
    xep_handle_t *handle = NULL;
    xep_request_t *req = NULL;
    d.capacity = mp_rank() == 0 ? 1 : 0;
    MP_OK(xep_dispatch(job.buffer, &d, &handle, &req));
    MP_OK(xep_announce_layers(job.buffer, 2));
    MP_FAILS(XEP_ERR_OVERFLOW, xep_request_wait(req));
    xep_request_free(req);
    xep_handle_release(handle);
    MP_FAILS(XEP_ERR_INVALID, xep_step_end(&job.buffer, 1, 0));
    for (int i = 0; i < 2; i++) mp_job_round(&job);
}

static void layers(void)
{
    stop_at = 1 + 2 + 1 + 2 + 1;
    if (mp_is_last()) MP_OK(serve(0));
    else {
        mp_job_round(&job);
        fail_layer(1);
        fail_layer(0);
        fail_before_layers();
        mp_job_round(&job);
        end_step(0);
    }
    work_together();
}

/* Rank 1 alone works, and is stopped before it ends the step. */
static void is_stopped(void)
{
    atomic_int *told = mp_counter(group);
    stop_at = 1;
    if (mp_rank() == 1) {
        mp_job_round(&job);
        raise(SIGSTOP);
        end_step(0);
    } else if (mp_rank() == 0) {
        mp_job_round(&job);
        mp_await(told, 1);
        kill(pids[1], SIGCONT);
        end_step(0);
    } else {
        MP_SAYS(XEP_ERR_TIMEOUT, "step 0 has not ended: rank 0 has not called xep_step_end()", serve(MP_VAIN_MS));
        atomic_store(told, 1);
        xep_serve_stop(job.buffer);
        MP_OK(serve(0));
    }
    work_together();
}

/* One rank ends the step behind another operation than the other. */
static void disagree(void)
{
    if (mp_rank() == 0) end_step(0);
    const xep_status_t status = mp_is_last() ? XEP_OK : try_round(&job);
    MP_CHECK(status == XEP_OK || status == XEP_ERR_MISMATCH); /* the last rank may find it meanwhile */
    if (mp_rank() == 1 && status == XEP_OK) end_step(0);
    if (!mp_is_last()) return;
    MP_SAYS(XEP_ERR_MISMATCH, "rank 1 and rank 0 disagree on the ", serve(0));
}

static void die(int dies)
{
    if (dies) raise(SIGKILL);
}

/* Rank 1 dies at the end of the step: rank 0 ends it, and the last rank works with it in the next one. */
static void worker_dies(void)
{
    stop_at = 2;
    if (mp_is_last()) {
        MP_OK(serve(0));
    } else {
        mp_job_round(&job);
        die(mp_rank() == 1);
        MP_OK(try_round(&job));
        end_step(0);
    }
    MP_OK(try_round(&all));
}

/* Rank 0 dies in layers that it alone has announced: rank 1 works them to their end, and the last rank serves them. */
static void announcer_dies(void)
{
    stop_at = 2;
    if (mp_is_last()) {
        MP_OK(serve(0));
    } else {
        mp_job_round(&job);
        if (mp_rank() == 0) MP_OK(xep_announce_layers(job.buffer, 4));
        for (int i = 0; i < 4; i++) {
            die(mp_rank() == 0 && i == 1);
            MP_OK(try_round(&job));
        }
        end_step(0);
    }
    MP_OK(try_round(&all));
}

/* Rank 1 dies where its step has ended, before it says so; rank 0 is late to say it. */
static void boundary(void)
{
    stop_at = 2;
    if (mp_is_last()) {
        MP_OK(serve(0));
    } else {
        for (int i = 0; i < 2; i++) mp_job_round(&job);
        die(mp_rank() == 1);
        mp_sleep_us(LATE_US);
        end_step(0);
    }
    MP_OK(try_round(&all));
}

/* Nobody is left who could end the step. */
static void workers_die(void)
{
    if (!mp_is_last()) {
        mp_job_round(&job);
        mp_sleep_us(100 * 1000); /* the last rank takes its part in it */
        die(1);
    }
    MP_FAILS(XEP_ERR_PEER, serve(0));
    if (base.on_failure == XEP_ON_FAILURE_MASK) MP_REASON("all ranks that worked in step 0 are out (make a new group)");
}

/* The others die before they have begun anything: there is nobody who could. */
static void abandoned(void)
{
    die(!mp_is_last());
    MP_SAYS(XEP_ERR_PEER, "there is no other rank that could work", serve(0));
}

/* Asked what it waits for, in a call that only the answer ends. */
static void stop_when_told(void *arg, xep_log_level_t level, const char *message)
{
    (void)arg, (void)level;
    if (strstr(message, "no rank has begun an operation (rank 0 works)") != NULL) xep_serve_stop(job.buffer);
}

static void *ask(void *arg)
{
    for (const atomic_int *ended = arg; !*ended; mp_sleep_us(10 * 1000)) kill(getpid(), SIGUSR1);
    return NULL;
}

static void asked(void)
{
    atomic_int ended = 0;
    pthread_t thread;
    if (mp_is_last()) {
        xep_log_set(stop_when_told, NULL);
        MP_CHECK(pthread_create(&thread, NULL, ask, &ended) == 0);
        MP_OK(serve(0));
        ended = 1;
        pthread_join(thread, NULL);
        xep_log_set(NULL, NULL);
    }
    MP_OK(xep_group_barrier(group));
    work_together();
}

/* The rank that serves dies in its function; the others go on without its experts, or fail. */
static void server_dies(void)
{
    die_at = 2;
    if (mp_is_last()) (void)serve(0);
    xep_status_t status = XEP_OK;
    for (int i = 0; i < 4 && status == XEP_OK; i++) status = try_round(&job);
    MP_CHECK(status == (base.on_failure == XEP_ON_FAILURE_MASK ? XEP_OK : XEP_ERR_PEER));
}

static const struct {
    const char *name;
    void (*run)(void);
} scenarios[] = {{"idle", idle},         {"many", many},           {"stops", stops},
                 {"wrong", wrong},       {"fails", fails},         {"stopped", is_stopped},
                 {"disagree", disagree}, {"again", again},         {"layers", layers},
                 {"late", late},         {"worker", worker_dies},  {"announcer", announcer_dies},
                 {"boundary", boundary}, {"workers", workers_die}, {"server", server_dies},
                 {"forgets", forgets},   {"abandoned", abandoned}, {"asked", asked},
                 {"partly", partly}};

int main(int argc, char **argv)
{
    mp_case_t of_all;
    const pid_t pid = getpid();
    if (argc < 3) return 2;
    job.may_be_out = all.may_be_out = argc > 3;
    base.mode = argv[1], scenario = argv[2], base.works = 3, base.timeout_ms = MP_FAR_MS;
    if (argc > 3) base.on_failure = XEP_ON_FAILURE_MASK;
    of_all = base, of_all.works = 0;
    group = mp_group();
    pids = calloc(mp_nranks(), sizeof *pids);
    MP_OK(xep_group_allgather(group, &pid, pids, sizeof pid));
    mp_job_open(&job, &base, 1);
    mp_job_open(&all, &of_all, 2);
    mp_job_buffer(&job, group);
    all.buffer = job.buffer, all.shape.node = job.shape.node;
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++)
        if (strcmp(scenarios[i].name, scenario) == 0) scenarios[i].run();
    printf("fine %s\n", scenario);
    all.buffer = NULL;
    mp_job_close(&all);
    mp_job_close(&job);
    xep_group_destroy(group);
    free(pids);
    return 0;
}
