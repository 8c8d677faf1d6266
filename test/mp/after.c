/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1 2 3 */

/* Operations that begin when others are done, while what they were given is freed, released, destroyed or fails. Both modes. */

#include <stdlib.h>
#include <string.h>

#include "mp_rig.h"

enum { TOKENS = 6, TOPK = 2, EXPERTS = 8, HIDDEN = 32, SLOTS = 3 };

static float x[TOKENS][HIDDEN];
static int32_t topk[TOKENS][TOPK];

static xep_buffer_t *buffer_of(xep_group_t *group, const char *mode, uint64_t recv_rows)
{
    xep_buffer_params_t p = XEP_BUFFER_PARAMS_INIT;
    xep_buffer_t *buffer;
    p.mode = mode, p.experts = EXPERTS, p.topk = TOPK, p.hidden = HIDDEN, p.tokens = TOKENS, p.slots = SLOTS;
    p.recv_rows = recv_rows;
    p.dtype = p.combine_dtype = XEP_FP32;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    return buffer;
}

static xep_dispatch_args_t args_of(xep_handle_t *cached, xep_request_t *after)
{
    xep_dispatch_args_t a = XEP_DISPATCH_ARGS_INIT;
    a.tokens = TOKENS, a.x = x, a.topk_idx_dtype = XEP_INT32;
    a.topk_idx = cached == NULL ? topk : NULL;
    a.cached = cached, a.after = after;
    return a;
}

static void wait_and_free(xep_request_t *req)
{
    MP_OK(xep_request_wait(req));
    xep_request_free(req);
}

static void freed_request(xep_group_t *group, const char *mode)
{
    xep_buffer_t *buffer = buffer_of(group, mode, 0);
    xep_dispatch_args_t a = args_of(NULL, NULL);
    xep_handle_t *handle, *none = NULL;
    xep_request_t *req;
    MP_OK(xep_dispatch(buffer, &a, &handle, &req));
    wait_and_free(req);
    MP_FAILS(XEP_ERR_INVALID, xep_request_wait(req));
    MP_REASON("req was freed");
    MP_FAILS(XEP_ERR_INVALID, xep_request_wait_counts(req));
    MP_REASON("req was freed");
    MP_FAILS(XEP_ERR_INVALID, xep_request_test(req));
    xep_request_free(req); /* twice: nothing happens */
    a.after = req;
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(buffer, &a, &none, NULL));
    MP_REASON("after was freed");
    xep_handle_release(handle);
    xep_buffer_destroy(buffer);
}

static int alone(void *ctx, const void *send, void *recv, size_t bytes)
{
    (void)ctx;
    memcpy(recv, send, bytes);
    return 0;
}

static void other_group(xep_group_t *group, const char *mode)
{
    xep_group_params_t params = XEP_GROUP_PARAMS_INIT;
    xep_group_t *own;
    params.allgather = alone, params.nranks = 1;
    MP_OK(xep_group_create(&params, &own));
    xep_buffer_t *buffer = buffer_of(group, mode, 0), *other = buffer_of(own, mode, 0);
    xep_dispatch_args_t a = args_of(NULL, NULL);
    xep_handle_t *handle, *none = NULL;
    xep_request_t *req;
    MP_OK(xep_dispatch(other, &a, &handle, &req));
    a.after = req;
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(buffer, &a, &none, NULL));
    MP_REASON("after is a request of another group");
    wait_and_free(req);
    xep_buffer_destroy(other);
    xep_group_destroy(own);
    xep_buffer_destroy(buffer);
}

/* Freed at once, so nobody but the operation that comes after it is told; neither moves anything. */
static void failed_and_freed(xep_group_t *group, const char *mode)
{
    xep_buffer_t *small = buffer_of(group, mode, 1), *buffer = buffer_of(group, mode, 0);
    xep_dispatch_args_t a = args_of(NULL, NULL);
    xep_handle_t *full, *handle;
    xep_request_t *first, *second;
    MP_OK(xep_dispatch(small, &a, &full, &first));
    a.after = first;
    MP_OK(xep_dispatch(buffer, &a, &handle, &second));
    xep_request_free(first);
    MP_FAILS(XEP_ERR_OVERFLOW, xep_request_wait(second));
    MP_REASON("the operation it came after failed");
    xep_request_free(second);
    xep_handle_release(full);
    xep_handle_release(handle);
    a.after = NULL;
    MP_OK(xep_dispatch(buffer, &a, &handle, NULL)); /* overflow breaks nothing */
    xep_handle_release(handle);
    xep_buffer_destroy(small);
    xep_buffer_destroy(buffer);
}

/* The handle whose routing a dispatch will use keeps its slot until that has begun. */
static void released_before_begun(xep_group_t *group, const char *mode)
{
    xep_buffer_t *buffer = buffer_of(group, mode, 0);
    xep_dispatch_args_t a = args_of(NULL, NULL), c;
    xep_handle_t *routed, *between, *cached, *none = NULL, *fourth;
    xep_request_t *first, *second;
    MP_OK(xep_dispatch(buffer, &a, &routed, NULL));
    uint64_t rows = xep_handle_recv(routed)->rows;
    if (mp_rank() != 0) MP_OK(xep_group_barrier(group));
    MP_OK(xep_dispatch(buffer, &a, &between, &first));
    c = args_of(routed, first);
    MP_OK(xep_dispatch(buffer, &c, &cached, &second));
    xep_handle_release(routed);
    MP_CHECK(xep_handle_recv(routed) == NULL);
    if (mp_rank() == 0) {
        /* the others have not begun the first, so the second cannot have begun here */
        if (mp_nranks() > 1) MP_FAILS(XEP_ERR_BUSY, xep_dispatch(buffer, &a, &none, NULL));
        MP_OK(xep_group_barrier(group));
    }
    wait_and_free(second);
    wait_and_free(first);
    MP_CHECK(xep_handle_recv(cached)->rows == rows);
    MP_CHECK(memcmp(xep_handle_recv(cached)->src_token, xep_handle_recv(between)->src_token, rows * sizeof(int32_t)) == 0);
    MP_OK(xep_dispatch(buffer, &a, &fourth, NULL));
    MP_CHECK(fourth == routed); /* whose slot is free again */
    xep_buffer_destroy(buffer);
}

/* What another buffer's operation comes after goes away: that one ends with the same error, and nothing is read after free. */
static void destroyed(xep_group_t *group, const char *mode)
{
    xep_buffer_t *gone = buffer_of(group, mode, 0), *buffer = buffer_of(group, mode, 0);
    xep_dispatch_args_t a = args_of(NULL, NULL);
    xep_handle_t *handle;
    xep_request_t *first, *second = NULL;
    if (mp_rank() == 0) {
        MP_OK(xep_dispatch(gone, &a, &handle, &first)); /* alone: it stays in flight */
        a.after = first;
        MP_OK(xep_dispatch(buffer, &a, &handle, &second));
    }
    xep_buffer_destroy(gone);
    if (second != NULL) {
        MP_FAILS(XEP_ERR_ABORTED, xep_request_wait(second));
        MP_REASON("the buffer was destroyed");
    }
    MP_OK(xep_buffer_reset(buffer));
    a.after = NULL;
    MP_OK(xep_dispatch(buffer, &a, &handle, NULL));
    xep_buffer_destroy(buffer);
}

/* A deadline names the operation that was waited for. */
static void deadline(xep_group_t *group, const char *mode)
{
    xep_buffer_t *buffer = buffer_of(group, mode, 0);
    xep_dispatch_args_t a = args_of(NULL, NULL);
    xep_handle_t *handle, *other;
    xep_request_t *first, *second;
    if (mp_rank() == 0) {
        MP_OK(xep_dispatch(buffer, &a, &handle, &first));
        a.after = first, a.timeout_ms = 50;
        MP_OK(xep_dispatch(buffer, &a, &other, &second));
        MP_FAILS(XEP_ERR_TIMEOUT, xep_request_wait(second));
        MP_REASON("waits for the end of the dispatch 1 of mode");
    }
    MP_OK(xep_buffer_reset(buffer));
    xep_buffer_destroy(buffer);
}

static void drop(void *arg, xep_log_level_t level, const char *message)
{
    (void)arg, (void)level, (void)message;
}

int main(void)
{
    static const char *const modes[] = {"normal", "ll"};
    xep_group_t *group = mp_group();
    for (int t = 0; t < TOKENS; t++)
        for (int k = 0; k < TOPK; k++) topk[t][k] = (t + 5 * k) % EXPERTS;
    xep_log_set(drop, NULL); /* of the failures that are wanted here */
    for (int m = 0; m < 2; m++) {
        freed_request(group, modes[m]);
        other_group(group, modes[m]);
        failed_and_freed(group, modes[m]);
        released_before_begun(group, modes[m]);
        if (mp_nranks() > 1) destroyed(group, modes[m]);
        if (mp_nranks() > 1) deadline(group, modes[m]);
    }
    xep_group_destroy(group);
    return 0;
}
