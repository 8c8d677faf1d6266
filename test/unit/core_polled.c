/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A program that looks by itself whether rows are here, while the thread of the group brings them. Alone, since a
 * sanitizer for threads sees nothing of other processes.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <xep/inspect.h>
#include <xep/xep.h>

#include "unit.h"

enum { TOKENS = 8, HIDDEN = 32, ROUNDS = 1000, SLOTS = 2, LIMIT_S = 30 };

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
