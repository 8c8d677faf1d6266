/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A program that looks by itself whether rows are here, while the thread of the group brings them. Alone, since a
 * sanitizer for threads sees nothing of other processes.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <xep/inspect.h>
#include <xep/xep.h>

#include "unit.h"

enum { TOKENS = 8, HIDDEN = 32, ROUNDS = 1000, CALLS = 50, SLOTS = 2, LIMIT_S = 30 };

static const xep_recv_t *poll_rows(const xep_handle_t *handle, const xep_buffer_t *buffer)
{
    const xep_recv_t *recv = NULL;
    const time_t end = time(NULL) + LIMIT_S;
    xep_status_t status;
    while ((status = xep_handle_recv(handle, &recv)) == XEP_INPROGRESS && time(NULL) < end) {
        xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
        assert_int_equal(xep_buffer_query(buffer, &info), XEP_OK);
        assert_true(info.free_slots < SLOTS);
        sched_yield();
    }
    if (status != XEP_OK) fail_msg("%s: %s", xep_status_name(status), xep_last_error());
    return recv;
}

static void play(xep_group_t *group, const char *mode)
{
    static uint16_t x[TOKENS][HIDDEN];
    static int64_t idx[TOKENS][1];
    xep_buffer_params_t params = XEP_BUFFER_PARAMS_INIT;
    xep_buffer_t *buffer;
    params.mode = mode, params.experts = 2, params.topk = 1, params.hidden = HIDDEN, params.tokens = TOKENS;
    params.slots = SLOTS;
    assert_int_equal(xep_buffer_create(group, &params, &buffer), XEP_OK);
    for (int i = 0; i < ROUNDS; i++) {
        xep_dispatch_args_t args = XEP_DISPATCH_ARGS_INIT;
        xep_handle_t *handle;
        xep_request_t *req;
        memset(x, i + 1, sizeof x);
        args.x = x, args.topk_idx = idx, args.tokens = TOKENS;
        assert_int_equal(xep_dispatch(buffer, &args, &handle, &req), XEP_OK);
        const xep_recv_t *recv = poll_rows(handle, buffer);
        assert_int_equal(recv->rows, TOKENS);
        assert_memory_equal(recv->x, x, sizeof x[0]);
        xep_request_free(req);
        xep_handle_release(handle);
    }
    xep_buffer_destroy(buffer);
}

TEST(rows_are_there_when_they_are_shown)
{
    xep_group_t *group;
    setenv("XEP_BOOT", "single", 1);
    setenv("XEP_PROGRESS", "thread", 1);
    assert_int_equal(xep_group_create(NULL, &group), XEP_OK);
    play(group, "normal");
    play(group, "ll");
    xep_group_destroy(group);
}

/* ---- a release, while other threads are in the buffer ---- */

typedef struct tester {
    xep_request_t *req;
    atomic_int round, begun, done;
} tester_t;

/* More and fewer calls, so that a release meets any of them, the last one too. */
static void *test_each_round(void *arg)
{
    tester_t *tester = arg;
    for (int i = 1; i <= ROUNDS; i++) {
        while (atomic_load(&tester->round) != i) sched_yield();
        atomic_store(&tester->begun, i);
        for (int k = 0; k < i % CALLS; k++) (void)xep_request_test(tester->req);
        atomic_store(&tester->done, i);
    }
    return NULL;
}

/* No later call on the buffer is needed. */
static void await_free(const xep_buffer_t *buffer)
{
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    const time_t end = time(NULL) + LIMIT_S;
    do assert_int_equal(xep_buffer_query(buffer, &info), XEP_OK);
    while (info.free_slots != SLOTS && time(NULL) < end);
    assert_int_equal(info.free_slots, SLOTS);
}

/* This thread releases while another one is in a short call, whose end may come between any two steps of that. */
static void release_beside(xep_buffer_t *buffer)
{
    static uint16_t x[TOKENS][HIDDEN];
    static int64_t idx[TOKENS][1];
    tester_t tester = {.req = NULL};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, test_each_round, &tester), 0);
    for (int i = 1; i <= ROUNDS; i++) {
        xep_dispatch_args_t args = XEP_DISPATCH_ARGS_INIT;
        xep_handle_t *handle;
        args.x = x, args.topk_idx = idx, args.tokens = TOKENS;
        assert_int_equal(xep_dispatch(buffer, &args, &handle, &tester.req), XEP_OK);
        assert_int_equal(xep_request_wait(tester.req), XEP_OK);
        atomic_store(&tester.round, i);
        while (atomic_load(&tester.begun) != i) sched_yield();
        xep_handle_release(handle);
        while (atomic_load(&tester.done) != i) sched_yield();
        await_free(buffer);
        xep_request_free(tester.req);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void play_release(const char *progress)
{
    xep_buffer_params_t params = XEP_BUFFER_PARAMS_INIT;
    xep_group_t *group;
    xep_buffer_t *buffer;
    setenv("XEP_BOOT", "single", 1);
    setenv("XEP_PROGRESS", progress, 1);
    params.mode = "normal", params.experts = 2, params.topk = 1, params.hidden = HIDDEN, params.tokens = TOKENS;
    params.slots = SLOTS;
    assert_int_equal(xep_group_create(NULL, &group), XEP_OK);
    assert_int_equal(xep_buffer_create(group, &params, &buffer), XEP_OK);
    release_beside(buffer);
    xep_buffer_destroy(buffer);
    xep_group_destroy(group);
}

TEST(a_slot_is_free_when_it_is_released)
{
    play_release("call");
    play_release("thread");
}
