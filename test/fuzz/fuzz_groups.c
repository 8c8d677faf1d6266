/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Groups that come of others: shrunk, whether or not somebody is gone, and grown, by a joiner or in vain. Buffers
 * follow, and where nothing was wrong before, nothing is after it.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fuzz_api.h"

enum { VAIN_MS = 50, JOIN_MS = 10000 };

static void learn_group(api_rank_t *rank)
{
    xep_group_info_t info = XEP_GROUP_INFO_INIT;
    if (xep_group_query(rank->group, &info) != XEP_OK) fuzz_fail("no info: %s", xep_last_error());
    if (info.nranks != rank->nranks || info.rank != rank->rank) rank->run->dirty |= info.nranks <= rank->nranks;
    rank->rank = info.rank;
    rank->nranks = info.nranks;
}

/* All that this rank has goes over to the group, and the old one ends. */
static void follow(api_rank_t *rank, xep_group_t *group)
{
    xep_group_t *old = rank->group;
    rank->group = group;
    rank->goes_on = 0;
    learn_group(rank);
    for (uint32_t b = 0; b < API_BUFFERS; b++) {
        xep_buffer_t *buffer = NULL;
        if (rank->buffers[b] == NULL && (old != NULL || !rank->run->had[b])) continue;
        xep_status_t status = xep_buffer_follow(rank->buffers[b], group, &buffer);
        api_judge(rank, "xep_buffer_follow", status, 1);
        if ((status == XEP_OK) != (buffer != NULL)) fuzz_fail("status %d with buffer %p", status, (void *)buffer);
        api_destroy(rank, b);
        rank->buffers[b] = buffer;
        rank->goes_on |= status == XEP_OK && rank->params[b].on_failure == XEP_ON_FAILURE_MASK;
    }
    xep_group_destroy(old);
}

/* ---- fewer ---- */

static const fuzz_field_t shrink_fields[] = {
    FUZZ_FIELD(xep_shrink_args_t, size, FUZZ_SIZE),
    FUZZ_FIELD(xep_shrink_args_t, timeout_ms, FUZZ_TIMEOUT),
    FUZZ_FIELD(xep_shrink_args_t, least, FUZZ_NUMBER),
};

static void check_origins(const api_rank_t *rank, const uint32_t *origins, uint32_t nranks, uint32_t before)
{
    for (uint32_t r = 0; r < nranks; r++)
        if (origins[r] >= before || (r > 0 && origins[r] <= origins[r - 1]) ||
            (r == rank->rank && origins[r] != rank->origin))
            fuzz_fail("rank %u of %u was rank %u of %u", r, nranks, origins[r], before);
}

void api_shrink(api_rank_t *rank, api_call_t *call)
{
    const fuzz_patch_t *patch = api_patch(rank, call);
    uint32_t before = rank->nranks, *origins = (void *)api_output(rank->run, before * sizeof *origins);
    xep_shrink_args_t args = XEP_SHRINK_ARGS_INIT;
    xep_group_t *made = NULL;
    args.least = (uint32_t)api_number(call, 100, before + 1);
    args.origins = origins;
    rank->origin = rank->rank;
    call->came++; /* whoever is still in an operation would be called out of it */
    while (call->came < before && !rank->run->dirty) fuzz_turn(1000);
    xep_status_t status = xep_group_shrink(rank->group, FUZZ_PATCHED(args, shrink_fields, patch),
                                           api_number(call, 101, 16) == 0 ? NULL : &made);
    int asked = api_number(call, 101, 16) != 0;
    if (!asked && status != XEP_ERR_INVALID) fuzz_fail("a group to nowhere: %d", status);
    api_judge(rank, "xep_group_shrink", status, asked && patch == NULL);
    api_meet(rank, call, status);
    if ((status == XEP_OK) != (made != NULL)) fuzz_fail("status %d with group %p", status, (void *)made);
    if (status != XEP_OK) return;
    follow(rank, made);
    if (!call->patched) check_origins(rank, origins, rank->nranks, before);
}

/* ---- more ---- */

static const fuzz_field_t grow_fields[] = {
    FUZZ_FIELD(xep_grow_args_t, size, FUZZ_SIZE),          FUZZ_FIELD(xep_grow_args_t, joiners, FUZZ_NUMBER),
    FUZZ_FIELD(xep_grow_args_t, timeout_ms, FUZZ_TIMEOUT), FUZZ_FIELD(xep_grow_args_t, flags, FUZZ_NUMBER),
    FUZZ_FIELD(xep_grow_args_t, reserved, FUZZ_NUMBER),
};

static const fuzz_field_t join_fields[] = {
    FUZZ_FIELD(xep_join_params_t, size, FUZZ_SIZE),
    FUZZ_FIELD(xep_join_params_t, lookup_ctx, FUZZ_POINTER),
    FUZZ_FIELD(xep_join_params_t, timeout_ms, FUZZ_TIMEOUT),
    FUZZ_FIELD(xep_join_params_t, reserved, FUZZ_NUMBER),
};

static int publish(void *ctx, const void *address, size_t bytes)
{
    api_run_t *run = ctx;
    if (bytes > sizeof run->address) fuzz_fail("an address of %zu bytes", bytes);
    if (bytes > 0) memcpy(run->address, address, bytes);
    run->address_bytes = bytes;
    return 0;
}

static int look_up(void *ctx, void *address, size_t capacity, size_t *bytes_p)
{
    const api_run_t *run = ctx;
    if (run->address_bytes > capacity) fuzz_fail("room for %zu bytes", capacity);
    memcpy(address, run->address, run->address_bytes);
    *bytes_p = run->address_bytes;
    return 0;
}

static int is_hopeless(void *ctx)
{
    const api_run_t *run = ctx;
    return !run->has_joined && run->alive == 0;
}

static const char *address_file(void)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/address", fuzz_folder());
    return path;
}

/* Never the file of a group that grows: a joiner that finds that one is let in, and the group hears that it left. */
static const char *nonsense_file(const api_call_t *call)
{
    static char path[512];
    char address[300];
    size_t bytes = api_number(call, 112, sizeof address);
    snprintf(path, sizeof path, "%s/nonsense.%d", fuzz_folder(), (int)getpid());
    for (size_t i = 0; i < bytes; i++) address[i] = (char)api_number(call, 113 + (uint32_t)i, 256);
    if (api_number(call, 111, 2)) fuzz_write(path, address, bytes);
    return path;
}

/* With a joiner it is made, and what comes then it does, too; without one all ranks hear that nobody came. */
void api_grow(api_rank_t *rank, api_call_t *call)
{
    api_run_t *run = rank->run;
    const fuzz_patch_t *patch = api_patch(rank, call);
    xep_grow_args_t args = XEP_GROW_ARGS_INIT;
    xep_group_t *made = NULL;
    int in_vain = run->options.joiners == 0 || (run->has_joined && run->joined_at != call - run->calls);
    if (in_vain) args.timeout_ms = VAIN_MS;
    if (api_number(call, 102, 4) == 0 && in_vain) args.path = address_file();
    else args.publish = publish, args.publish_ctx = run;
    if (!in_vain) run->may_join = 1, run->joined_at = call - run->calls;
    for (uint32_t b = 0; b < API_BUFFERS; b++)
        if (rank->buffers[b] != NULL) run->had[b] = 1, run->params[b] = rank->params[b];
        else run->had[b] = 0;
    xep_status_t status = xep_group_grow(rank->group, FUZZ_PATCHED(args, grow_fields, patch), &made);
    if (in_vain && patch == NULL && !run->dirty && status != XEP_ERR_TIMEOUT)
        fuzz_fail("nobody came: %d: %s", status, xep_last_error());
    if (in_vain && status == XEP_ERR_TIMEOUT) api_check_status("xep_group_grow", status);
    else api_judge(rank, "xep_group_grow", status, patch == NULL);
    api_meet(rank, call, status);
    if ((status == XEP_OK) != (made != NULL)) fuzz_fail("status %d with group %p", status, (void *)made);
    if (status == XEP_OK) follow(rank, made);
    fuzz_count(1);
}

/* Once ranks call for a joiner, this process comes. They may have come to an error all the same: it tries again. */
int api_join(api_rank_t *rank)
{
    api_run_t *run = rank->run;
    xep_join_params_t params = XEP_JOIN_PARAMS_INIT;
    while (!run->may_join && run->alive > 0) fuzz_turn(1000 * 1000);
    params.lookup = look_up;
    params.lookup_ctx = run;
    params.timeout_ms = JOIN_MS;
    params.interrupted = is_hopeless;
    params.interrupted_ctx = run;
    while (rank->group == NULL) {
        if (run->alive == 0) return 0;
        xep_status_t status = xep_group_join(&params, &rank->group);
        api_check_status("xep_group_join", status);
        if ((status == XEP_OK) != (rank->group != NULL)) fuzz_fail("a joiner got %d", status);
    }
    run->has_joined = 1;
    run->alive++;
    memcpy(rank->params, run->params, sizeof rank->params);
    xep_group_t *group = rank->group;
    rank->group = NULL;
    follow(rank, group);
    return 1;
}

/* ---- wrong calls ---- */

static int nonsense(void *ctx, void *address, size_t capacity, size_t *bytes_p)
{
    const api_call_t *call = ctx;
    if (call == NULL || ((uintptr_t)call & 1) != 0) return 1;
    size_t bytes = api_number(call, 110, 3) == 0 ? api_number(call, 111, 2 * capacity) : api_number(call, 112, 300);
    for (size_t i = 0; i < bytes && i < capacity; i++)
        ((char *)address)[i] = (char)api_number(call, 113 + (uint32_t)i, 256);
    *bytes_p = bytes;
    return (int)api_number(call, 114, 8) == 0;
}

static int at_once(void *ctx)
{
    (void)ctx;
    return 1;
}

/* A joiner that finds nonsense, or nothing; and groups that are asked for what is never right. */
void api_misuse_groups(const api_rank_t *rank, const api_call_t *call)
{
    xep_join_params_t params = XEP_JOIN_PARAMS_INIT;
    xep_group_t *made = NULL;
    xep_buffer_t *buffer = NULL;
    xep_status_t status;
    params.lookup = nonsense;
    params.lookup_ctx = (void *)(uintptr_t)call;
    params.timeout_ms = 20;
    params.interrupted = api_number(call, 115, 2) ? at_once : NULL;
    if (api_number(call, 116, 4) == 0) params.path = nonsense_file(call), params.lookup = NULL;
    switch (api_number(call, 103, 6)) {
    case 0: status = xep_group_shrink(NULL, NULL, &made); break;
    case 1: status = xep_group_grow(NULL, NULL, &made); break;
    case 2: status = xep_buffer_follow(rank->buffers[call->buffer], NULL, &buffer); break;
    case 3: status = xep_group_join(&params, NULL); break;
    default: status = xep_group_join(FUZZ_PATCHED(params, join_fields, call->patched ? &call->patch : NULL), &made);
    }
    api_check_status("a wrong call on groups", status);
    if (status >= 0 || made != NULL || buffer != NULL) fuzz_fail("a wrong call on groups returned %d", status);
    fuzz_count(1);
}
