/* SPDX-License-Identifier: BSD-3-Clause */

/* A rank that gives its buffer up: what that ends here, and what the other rank hears of it. */

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "buffer.h"
#include "buffer_give_up.h"
#include "request.h"
#include "unit.h"
#include "unit_mirror.h"

enum { SOON_US = 50000, HANG_S = 60 };

void unit_before_each(void)
{
    alarm(HANG_S); /* a wait that does not look: none has a deadline here */
}

static xep_buffer_t *open_buffer(xep_group_t *group)
{
    xep_buffer_params_t params = XEP_BUFFER_PARAMS_INIT;
    xep_buffer_t *buffer = NULL;
    params.mode = "normal", params.experts = 4, params.topk = 2, params.hidden = 16, params.tokens = 4;
    params.timeout_ms = -1;
    assert_int_equal(xep_buffer_create(group, &params, &buffer), XEP_OK);
    return buffer;
}

static void close_group(xep_group_t *group)
{
    xep_group_abort(group);
    xep_group_destroy(group);
}

static xep_buffer_line_t *line_of(const xep_buffer_t *buffer, uint32_t rank)
{
    return (xep_buffer_line_t *)(void *)((char *)buffer->heap->base + buffer->areas.lines) + rank;
}

static void *wait_for(void *req)
{
    (void)xep_request_wait(req);
    return NULL;
}

/* Another thread gives the buffer up, and another rank has, too: the request ends once. */
TEST(a_request_ends_once)
{
    xep_group_t *group = unit_mirror_open_group();
    xep_buffer_t *buffer = open_buffer(group);
    xep_dispatch_args_t args = XEP_DISPATCH_ARGS_INIT;
    xep_handle_t *handle;
    xep_request_t *req;
    pthread_t thread;
    unit_mirror.how = MIRROR_SILENT;
    assert_int_equal(xep_dispatch(buffer, &args, &handle, &req), XEP_OK);
    assert_int_equal(pthread_create(&thread, NULL, wait_for, req), 0);
    usleep(SOON_US);
    line_of(buffer, 1)->why = XEP_ERR_TIMEOUT;
    atomic_store((_Atomic uint64_t *)&line_of(buffer, 1)->given_up, buffer->epoch);
    xep_buffer_abort(buffer);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(xep_request_wait(req) < 0);
    assert_int_equal(buffer->active, 0);
    assert_int_equal(atomic_load(&group->active), 0);
    xep_request_free(req);
    xep_handle_release(handle);
    unit_mirror.how = MIRROR_FINE;
    xep_buffer_destroy(buffer);
    close_group(group);
}

/* What was given up first counts, until a reset: a rank that has not looked yet waits for that. */
TEST(giving_up_is_said_once)
{
    xep_group_t *group = unit_mirror_open_group();
    xep_buffer_t *buffer = open_buffer(group);
    for (int resets = 0; resets < 2; resets++) {
        const uint64_t next = buffer->epoch + 1;
        for (int again = 0; again < 3; again++) {
            xep_buffer_abort(buffer);
            assert_int_equal(line_of(buffer, 1)->given_up, next); /* as the mirror has it */
        }
        assert_int_equal(xep_buffer_reset(buffer), XEP_OK);
        assert_true(buffer->reset_epoch >= next);
    }
    xep_buffer_destroy(buffer);
    close_group(group);
}

typedef struct resetting {
    xep_buffer_t *buffer;
    xep_status_t status;
    atomic_int done;
} resetting_t;

static void *reset(void *arg)
{
    resetting_t *resetting = arg;
    resetting->status = xep_buffer_reset(resetting->buffer);
    atomic_store(&resetting->done, 1);
    return NULL;
}

/* In each step, in which rank 1 is silent. The next reset is as any other. */
TEST(abort_ends_a_reset)
{
    for (int answered = 0; answered < 3; answered++) {
        xep_group_t *group = unit_mirror_open_group();
        xep_buffer_t *buffer = open_buffer(group);
        resetting_t resetting = {.buffer = buffer};
        pthread_t thread;
        unit_mirror.how = answered == 0 ? MIRROR_SILENT : MIRROR_FINE;
        unit_mirror.silent_after = answered;
        assert_int_equal(pthread_create(&thread, NULL, reset, &resetting), 0);
        usleep(SOON_US);
        while (!atomic_load(&resetting.done)) {
            xep_buffer_abort(buffer);
            usleep(1000);
        }
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(resetting.status, XEP_ERR_BROKEN);
        unit_mirror.how = MIRROR_FINE;
        unit_mirror.silent_after = 0;
        assert_int_equal(xep_buffer_reset(buffer), XEP_OK);
        assert_int_equal(xep_buffer_destroy(buffer), XEP_OK);
        close_group(group);
    }
}

static uint64_t resets_of(const xep_buffer_t *buffer, uint32_t rank)
{
    return atomic_load((const _Atomic uint64_t *)&line_of(buffer, rank)->came);
}

/*
 * An abort ends the first step of a reset, and the other rank has given that reset up because of it. Called again, it
 * begins the next one, in which that no longer counts.
 */
TEST(a_reset_that_was_aborted_is_followed_by_the_next)
{
    xep_group_t *group = unit_mirror_open_group();
    xep_buffer_t *buffer = open_buffer(group);
    resetting_t resetting = {.buffer = buffer};
    pthread_t thread;
    unit_mirror.how = MIRROR_SILENT;
    assert_int_equal(pthread_create(&thread, NULL, reset, &resetting), 0);
    while (resets_of(buffer, 0) != 1) usleep(1000);
    while (!atomic_load(&resetting.done)) {
        xep_buffer_abort(buffer);
        usleep(1000);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(resetting.status, XEP_ERR_BROKEN);
    line_of(buffer, 1)->given_up = line_of(buffer, 0)->given_up;
    unit_mirror.how = MIRROR_FINE;
    unit_mirror.silent_after = 2; /* it comes to the next one, and is quiet later */
    resetting = (resetting_t){.buffer = buffer};
    assert_int_equal(pthread_create(&thread, NULL, reset, &resetting), 0);
    while (resets_of(buffer, 1) != 2 && !atomic_load(&resetting.done)) usleep(1000);
    atomic_store((_Atomic uint64_t *)&line_of(buffer, 1)->quiet, UINT64_MAX);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(resetting.status, XEP_OK);
    unit_mirror.how = MIRROR_FINE;
    assert_int_equal(xep_buffer_destroy(buffer), XEP_OK);
    close_group(group);
}
