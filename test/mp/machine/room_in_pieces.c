/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * For shared_memory.sh: where there is no room for any routing, a buffer for which nobody has asked for rows has room
 * for an even load. More is an error on all ranks that says what to do, and comes in pieces where that is allowed.
 * Ranks that have asked for all of it get none: "all" as argument.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mp_rig.h"

enum { EXPERTS = 8, HIDDEN = 3584, TOKENS = 256, SLOTS = 2, EXIT_NO_ROOM = 3 };

static float x[TOKENS][HIDDEN], out[TOKENS][HIDDEN];
static int64_t expert[TOKENS][1];

static xep_status_t create(xep_group_t *group, const char *mode, uint64_t rows, xep_buffer_t **buffer_p)
{
    xep_buffer_params_t params = XEP_BUFFER_PARAMS_INIT;
    params.mode = mode, params.experts = EXPERTS, params.topk = 1, params.hidden = HIDDEN, params.tokens = TOKENS;
    params.dtype = params.combine_dtype = XEP_FP32;
    params.slots = SLOTS;
    params.recv_rows = rows;
    return xep_buffer_create(group, &params, buffer_p);
}

/* All to the first expert, or to one after the other. */
static void route(int evenly)
{
    for (int t = 0; t < TOKENS; t++) expert[t][0] = evenly ? (t + (int)mp_rank()) % EXPERTS : 0;
    memset(out, 0xa5, sizeof out);
}

static xep_status_t dispatch(xep_buffer_t *buffer, uint32_t flags, uint64_t *rows_p, xep_handle_t **handle_p)
{
    xep_dispatch_args_t args = XEP_DISPATCH_ARGS_INIT;
    args.tokens = TOKENS, args.x = x, args.topk_idx = expert, args.flags = flags, args.recv_rows_p = rows_p;
    return xep_dispatch(buffer, &args, handle_p, NULL);
}

/* Experts give back what they got, so sums of one row are that row. */
static uint64_t give_back(xep_handle_t *handle)
{
    const xep_recv_t *recv = mp_recv(handle);
    uint64_t rows = recv->rows;
    while (recv->piece + 1 < recv->pieces) {
        xep_next_args_t next = XEP_NEXT_ARGS_INIT;
        next.x = recv->x, next.x_stride = recv->x_stride;
        MP_OK(xep_handle_next(handle, &next, NULL));
        recv = mp_recv(handle);
        rows += recv->rows;
    }
    xep_combine_args_t args = XEP_COMBINE_ARGS_INIT;
    args.x = recv->x, args.x_stride = recv->x_stride, args.out = out;
    MP_OK(xep_combine(handle, &args, NULL));
    xep_handle_release(handle);
    MP_CHECK(memcmp(out, x, sizeof x) == 0);
    return rows;
}

static void use(xep_buffer_t *buffer)
{
    const uint64_t worst = (uint64_t)TOKENS * mp_nranks();
    xep_handle_t *handle = NULL;
    uint64_t rows = 0;
    const xep_buffer_info_t info = mp_buffer_info(buffer);
    MP_CHECK((info.flags & XEP_BUFFER_PIECES) != 0);
    MP_CHECK(info.recv_rows >= TOKENS && info.recv_rows < worst);

    route(1);
    MP_OK(dispatch(buffer, 0, &rows, &handle));
    MP_CHECK(give_back(handle) == rows && rows == TOKENS);
    handle = NULL, route(0);
    MP_CHECK(dispatch(buffer, 0, &rows, &handle) == XEP_ERR_OVERFLOW && handle == NULL);
    MP_CHECK(strstr(xep_last_error(), "XEP_DISPATCH_PIECES") != NULL);
    MP_CHECK(rows == (mp_rank() == 0 ? worst : 0));
    MP_OK(dispatch(buffer, XEP_DISPATCH_PIECES, &rows, &handle));
    MP_CHECK(mp_recv(handle)->pieces > 1);
    MP_CHECK(give_back(handle) == (mp_rank() == 0 ? worst : 0));
}

int main(int argc, char **argv)
{
    xep_group_t *group = mp_group();
    const int all = argc > 1 && strcmp(argv[1], "all") == 0;
    int made = 0;
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HIDDEN; h++) x[t][h] = (float)(1 + t + h % 7) / (float)(1 + mp_rank());
    for (int m = 0; m < 2; m++) {
        xep_buffer_t *buffer = NULL;
        /* one that insists, among others that do not */
        MP_CHECK(create(group, mp_modes[m], mp_rank() == 1 ? (uint64_t)TOKENS * mp_nranks() : 0, &buffer) ==
                 XEP_ERR_MISMATCH);
        MP_CHECK(strstr(xep_last_error(), "recv_rows") != NULL && buffer == NULL);
        xep_status_t status = create(group, mp_modes[m], all ? (uint64_t)TOKENS * mp_nranks() : 0, &buffer);
        if (status != XEP_OK) {
            fprintf(stderr, "rank %u: %s\n", mp_rank(), xep_last_error());
            MP_CHECK(status == XEP_ERR_NO_MEMORY && buffer == NULL);
            continue;
        }
        use(buffer);
        made++;
        xep_buffer_destroy(buffer);
        MP_OK(xep_group_barrier(group)); /* memory is free when all have let go of it */
    }
    xep_group_destroy(group);
    return made == 2 ? 0 : EXIT_NO_ROOM;
}
