/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1 2, brief: 2 */

/*
 * A rank forks while a dispatch is in flight. The child can use nothing that it has inherited, and may exit as any
 * process does, with handlers that take all of it apart; it may make a group of its own. Its parent notices nothing.
 * Both modes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mp_job.h"
#include "mp_rig.h"

static xep_group_t *group;
static mp_job_t job;
static xep_handle_t *done; /* received */
static xep_handle_t *sent; /* in flight */
static xep_request_t *req;
static pid_t parent;

#define REFUSES(_call)                      \
    do {                                    \
        MP_FAILS(XEP_ERR_INVALID, (_call)); \
        MP_REASON("forked");                \
    } while (0)

static void use_group(void)
{
    xep_group_info_t info = XEP_GROUP_INFO_INIT;
    xep_peer_info_t peer = XEP_PEER_INFO_INIT;
    xep_buffer_params_t params = mp_small_params();
    xep_buffer_t *buffer = NULL;
    xep_group_t *other = NULL;
    uint32_t count;
    char byte = 0, bytes[2];
    REFUSES(xep_group_barrier(group));
    REFUSES(xep_group_allgather(group, &byte, bytes, 1));
    REFUSES(xep_group_query(group, &info));
    REFUSES(xep_group_peer(group, 0, &peer));
    REFUSES(xep_group_mask_set(group, 1));
    REFUSES(xep_group_mask_query(group, NULL, 0, 0, &count));
    REFUSES(xep_group_shrink(group, NULL, &other));
    REFUSES(xep_group_grow(group, NULL, &other));
    REFUSES(xep_buffer_create(group, &params, &buffer));
    REFUSES(xep_buffer_follow(job.buffer, group, &buffer));
}

static void use_buffer(void)
{
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    xep_waits_t waits = XEP_WAITS_INIT;
    xep_dispatch_args_t args = XEP_DISPATCH_ARGS_INIT;
    xep_handle_t *handle = NULL;
    void *base;
    size_t bytes;
    REFUSES(xep_dispatch(job.buffer, &args, &handle, NULL));
    REFUSES(xep_buffer_reset(job.buffer));
    REFUSES(xep_buffer_memory(job.buffer, &base, &bytes));
    REFUSES(xep_buffer_send_memory(job.buffer, &base, &bytes));
    REFUSES(xep_buffer_query(job.buffer, &info));
    REFUSES(xep_buffer_waits(job.buffer, XEP_OP_DISPATCH, &waits));
}

static void use_operations(void)
{
    xep_combine_args_t args = XEP_COMBINE_ARGS_INIT;
    char out;
    REFUSES(xep_combine(done, &args, NULL));
    REFUSES(xep_handle_next(done, NULL, NULL));
    REFUSES(xep_handle_gather(done, &out, 0));
    MP_CHECK(mp_recv(done) == NULL);
    MP_CHECK(mp_input(done, NULL) == NULL);
    REFUSES(xep_request_test(req));
    REFUSES(xep_request_wait(req));
    REFUSES(xep_request_wait_counts(req));
    REFUSES(xep_request_stream_wait(req, NULL));
}

/* The sanitizer for leaks asks: a child cannot free what it has inherited. */
XEP_API int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return getpid() != parent;
}

/* As destructors of C++ do it. */
static void take_apart(void)
{
    if (getpid() == parent) return;
    xep_request_free(req);
    xep_handle_release(sent);
    xep_handle_release(done);
    xep_buffer_destroy(job.buffer);
    xep_group_abort(group);
    xep_group_destroy(group);
}

static void make_own(const mp_case_t *c)
{
    mp_job_t own;
    group = mp_group_alone();
    mp_go_on(group);
    mp_job_begin(&own, c, 2, group);
    mp_job_round(&own);
    mp_job_close(&own);
    xep_group_destroy(group);
    group = NULL;
}

enum { USES, EXITS, MAKES_OWN, CHILDREN };

static void fork_child(int kind)
{
    int state = 0;
    fflush(NULL);
    pid_t child = fork();
    MP_CHECK(child >= 0);
    if (child != 0) {
        MP_CHECK(waitpid(child, &state, 0) == child);
        if (state != 0) mp_fail(__FILE__, __LINE__, "child %d ended with state %#x", kind, state);
        return;
    }
    alarm(30);
    if (kind == USES) use_group(), use_buffer(), use_operations();
    if (kind == MAKES_OWN) take_apart(), make_own(job.c), _exit(0);
    exit(0);
}

static void fork_amid(const char *mode)
{
    const mp_case_t c = {.name = "inherited", .mode = mode, MP_SHAPE(8, 2, 32, 6), .slots = 3};
    mp_job_begin(&job, &c, 1, group);
    xep_dispatch_args_t d = mp_job_dispatch(&job);
    MP_OK(xep_dispatch(job.buffer, &d, &done, NULL));
    MP_OK(xep_dispatch(job.buffer, &d, &sent, &req));
    for (int kind = 0; kind < CHILDREN; kind++) fork_child(kind);
    mp_finish(req);
    mp_job_check_recv(&job, sent);
    mp_job_sum(&job, done);
    xep_handle_release(sent);
    xep_handle_release(done);
    mp_job_round(&job);
    mp_job_close(&job);
}

int main(void)
{
    static const char *progress[] = {"call", "thread"};
    parent = getpid();
    atexit(take_apart);
    for (int p = 0; p < 2; p++) {
        setenv("XEP_PROGRESS", progress[p], 1);
        MP_OK(xep_group_create(NULL, &group));
        mp_go_on(group);
        fork_amid("normal");
        fork_amid("ll");
        xep_group_destroy(group);
    }
    return 0;
}
