/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2 */

/*
 * A dispatch that comes after one that fails on every rank never begins. Its turn counts all the same, and a rank must
 * not run ahead of another by it: what the slow rank 1 has not read yet of dispatch 0 is still there when rank 0 has
 * begun dispatch 4. Found by the model of ll (test/model, -DUNBORN).
 */

#include "mp_rig.h"

enum { TOKENS = 4, EXPERTS = 4, HIDDEN = 16, SLOTS = 2, AHEAD = 5 };

static float x[AHEAD][TOKENS][HIDDEN];
static int32_t topk[TOKENS][1] = {{0}, {1}, {2}, {3}};

static xep_buffer_t *buffer_of(xep_group_t *group, const char *mode)
{
    xep_buffer_params_t p = XEP_BUFFER_PARAMS_INIT;
    xep_buffer_t *buffer;
    p.mode = mode, p.experts = EXPERTS, p.topk = 1, p.hidden = HIDDEN, p.tokens = TOKENS, p.slots = SLOTS;
    p.dtype = p.combine_dtype = XEP_FP32;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    return buffer;
}

/* dispatch number n; in the second rank 1 brings shorter rows, and all get XEP_ERR_MISMATCH */
static xep_request_t *begin(xep_buffer_t *buffer, int n, xep_request_t *after, xep_handle_t **handle_p)
{
    xep_dispatch_args_t a = XEP_DISPATCH_ARGS_INIT;
    xep_request_t *req;
    a.tokens = TOKENS, a.x = x[n], a.topk_idx = topk, a.topk_idx_dtype = XEP_INT32, a.after = after;
    a.x_stride = sizeof x[n][0];
    if (n == 1 && mp_rank() == 1) a.hidden = HIDDEN / 2;
    MP_OK(xep_dispatch(buffer, &a, handle_p, &req));
    return req;
}

static void fail(xep_request_t *req, xep_handle_t *handle)
{
    MP_FAILS(XEP_ERR_MISMATCH, xep_request_wait(req));
    xep_handle_release(handle);
}

/* every value of a row is 100 * its rank + its dispatch */
static void check(const xep_handle_t *handle, int n)
{
    const xep_recv_t *recv = mp_recv(handle);
    MP_CHECK(recv != NULL && recv->rows == TOKENS);
    for (uint64_t row = 0; row < recv->rows; row++) {
        float value = *(const float *)(const void *)((const char *)recv->x + row * recv->x_stride);
        MP_CHECK((int)value % 100 == n);
    }
}

static void finish(xep_request_t *req, xep_handle_t *handle, int n)
{
    mp_finish(req);
    check(handle, n);
    xep_handle_release(handle);
}

static void run_ahead(xep_group_t *group, const char *mode)
{
    xep_buffer_t *buffer = buffer_of(group, mode);
    xep_handle_t *handle[AHEAD];
    xep_request_t *req[AHEAD];
    atomic_int *ahead = mp_counter(group);
    req[0] = begin(buffer, 0, NULL, &handle[0]);
    req[1] = begin(buffer, 1, NULL, &handle[1]);
    if (mp_rank() == 1) mp_await(ahead, 1); /* in no call between: any other would make progress */
    finish(req[0], handle[0], 0);
    fail(req[1], handle[1]);
    req[2] = begin(buffer, 2, req[1], &handle[2]);
    fail(req[2], handle[2]);
    req[3] = begin(buffer, 3, NULL, &handle[3]);
    req[4] = begin(buffer, 4, NULL, &handle[4]);
    if (mp_rank() == 0) (*ahead)++;
    finish(req[3], handle[3], 3);
    finish(req[4], handle[4], 4);
    xep_request_free(req[1]);
    xep_request_free(req[2]);
    xep_buffer_destroy(buffer);
}

int main(void)
{
    xep_group_t *group = mp_group();
    for (int n = 0; n < AHEAD; n++)
        for (int i = 0; i < TOKENS * HIDDEN; i++) x[n][i / HIDDEN][i % HIDDEN] = (float)(100 * mp_rank() + (uint32_t)n);
    if (!mp_is_mapped(group, 1 - mp_rank())) return mp_skip("what is put does not leave while its rank is in no call");
    run_ahead(group, "ll"); /* in normal no rank can be ahead of one that is in no call */
    return mp_end(group);
}
