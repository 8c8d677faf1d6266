/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Sequences of calls of xep.h on one to four ranks, with valid and with invalid arguments; ranks may fall silent, be
 * left out, or come later. All ranks run the program that the input describes. A call may have one field of its
 * arguments changed, on all ranks or on one. As long as nothing has gone wrong, every call that is right must succeed,
 * with the rows and sums that the oracle says, also after calls that were refused: an error before anything has begun
 * leaves everything as it was. Later anything may be returned, but nothing may crash, hang, leak, or write beside what
 * it was given.
 *
 * limit: 240
 */
#define _GNU_SOURCE
#include "fuzz_api.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "oracle.h"

const fuzz_target_t fuzz_target = {.name = "api", .unit = "calls", .runs = 400};

enum { MARGIN = 64, POISON = 0xa5, NO_RANK = 0xffffffff };

/* ---- what follows from a choice ---- */

uint64_t api_number(const api_call_t *call, uint32_t which, uint64_t n)
{
    uint64_t x = (call->choice + 1) * UINT64_C(0x9e3779b97f4a7c15) + which * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 30) * UINT64_C(0x94d049bb133111eb);
    return (x ^ x >> 31) % n;
}

/* ---- memory ---- */

typedef struct block {
    size_t output; /* bytes between the margins; SIZE_MAX: no output */
    char data[];
} block_t;

static char *add_block(api_run_t *run, size_t bytes, size_t output)
{
    block_t *block = calloc(1, sizeof *block + bytes);
    if (block == NULL || run->nblocks == API_BLOCKS) fuzz_fail("no memory");
    block->output = output;
    run->blocks[run->nblocks++] = block;
    return block->data;
}

char *api_memory(api_run_t *run, size_t bytes)
{
    return add_block(run, bytes, SIZE_MAX);
}

char *api_output(api_run_t *run, size_t bytes)
{
    char *data = add_block(run, bytes + 2 * MARGIN, bytes);
    memset(data, POISON, bytes + 2 * MARGIN);
    return data + MARGIN;
}

static void free_blocks(api_run_t *run)
{
    for (uint32_t i = 0; i < run->nblocks; i++) {
        block_t *block = run->blocks[i];
        for (size_t m = 0; block->output != SIZE_MAX && m < MARGIN; m++)
            if ((unsigned char)block->data[m] != POISON ||
                (unsigned char)block->data[MARGIN + block->output + m] != POISON)
                fuzz_fail("written beside an output");
        free(block);
    }
}

/* ---- judging ---- */

void api_check_status(const char *name, xep_status_t status)
{
    if (strcmp(xep_status_name(status), xep_status_name((xep_status_t)-9999)) == 0)
        fuzz_fail("%s returned %d", name, status);
    if (status < 0 && xep_last_error()[0] == '\0') fuzz_fail("%s returned %d without a reason", name, status);
}

static int keeps_ranks_together(xep_status_t status)
{
    return status == XEP_OK || status == XEP_ERR_INVALID || status == XEP_ERR_UNSUPPORTED ||
           status == XEP_ERR_OVERFLOW || status == XEP_ERR_MISMATCH || status == XEP_ERR_PLUGIN ||
           status == XEP_ERR_NO_MEMORY;
}

void api_judge(api_rank_t *rank, const char *name, xep_status_t status, int was_good)
{
    fuzz_count(1);
    api_check_status(name, status);
    if (was_good && status != XEP_OK && status != XEP_ERR_BUSY && !rank->run->dirty)
        fuzz_fail("rank %u: %s returned %d: %s", rank->rank, name, status, xep_last_error());
    if (!keeps_ranks_together(status) || (was_good && status != XEP_OK)) rank->run->dirty = 1;
}

void api_meet(const api_rank_t *rank, api_call_t *call, xep_status_t status)
{
    uint32_t nranks = rank->nranks;
    if (!call->patched || rank->run->dirty) return;
    call->status[rank->rank] = status;
    call->ended++;
    while (call->ended < nranks && !rank->run->dirty) fuzz_turn(1000);
    for (uint32_t r = 0; r < nranks; r++)
        if (call->status[r] != status) rank->run->dirty = 1;
}

/* With a patch on one rank alone the others do what it does not. */
const fuzz_patch_t *api_patch(const api_rank_t *rank, const api_call_t *call)
{
    if (!call->patched) return NULL;
    if (call->only != NO_RANK) rank->run->dirty = 1;
    return call->only == NO_RANK || call->only == rank->rank ? &call->patch : NULL;
}

/* ---- calls that ask ---- */

static const fuzz_field_t size_field[] = {{0, sizeof(size_t), FUZZ_SIZE}};

/* Structs to be filled, of any size; what lies behind the size they say stays 0. */
static void ask(api_rank_t *rank, const api_call_t *call)
{
    static const size_t most = 4096;
    size_t size = sizeof(xep_group_info_t);
    const fuzz_patch_t *patch = call->patched ? &call->patch : NULL;
    xep_buffer_t *buffer = rank->buffers[call->buffer];
    xep_status_t status = XEP_OK;
    void *base;
    size_t bytes;
    switch (api_number(call, 40, 7)) {
    case 0: status = xep_group_query(rank->group, FUZZ_PATCHED(size, size_field, patch)); break;
    case 1:
        status = xep_group_peer(rank->group, (uint32_t)api_number(call, 41, FUZZ_MOST_RANKS + 1),
                                FUZZ_PATCHED(size, size_field, patch));
        break;
    case 2: status = xep_library_query(FUZZ_PATCHED(size, size_field, patch)); break;
    case 3: status = xep_buffer_query(buffer, FUZZ_PATCHED(size, size_field, patch)); break;
    case 4:
        size = sizeof(xep_waits_t);
        status =
            xep_buffer_waits(buffer, (xep_op_kind_t)api_number(call, 41, 4), FUZZ_PATCHED(size, size_field, patch));
        break;
    case 5: status = xep_buffer_memory(buffer, &base, api_number(call, 41, 2) ? &bytes : NULL); break;
    default: xep_expert_range((uint32_t)call->choice, (uint32_t)call->patch.value, (uint32_t)most, NULL, NULL);
    }
    api_check_status("a question", status);
    if (xep_dtype_name((xep_dtype_t)call->patch.value) == NULL ||
        xep_quant_name((xep_quant_t)call->patch.value) == NULL || xep_status_text((xep_status_t)call->choice) == NULL)
        fuzz_fail("a value without a name");
    fuzz_count(3);
}

static const fuzz_field_t layout_fields[] = {
    FUZZ_FIELD(xep_layout_args_t, size, FUZZ_SIZE),
    FUZZ_FIELD(xep_layout_args_t, experts, FUZZ_NUMBER),
    FUZZ_FIELD(xep_layout_args_t, nranks, FUZZ_NUMBER),
    FUZZ_FIELD(xep_layout_args_t, ranks_per_node, FUZZ_NUMBER),
    FUZZ_FIELD(xep_layout_args_t, topk_idx, FUZZ_POINTER),
    FUZZ_FIELD(xep_layout_args_t, topk_idx_stride, FUZZ_STRIDE),
    FUZZ_FIELD(xep_layout_args_t, topk_idx_dtype, FUZZ_NUMBER),
    FUZZ_FIELD(xep_layout_args_t, reserved, FUZZ_NUMBER),
};

/* Where an argument is changed the arrays, whose lengths follow from it, are left out. */
static void lay_out(api_rank_t *rank, const api_call_t *call)
{
    enum { TOKENS = 5, TOPK = 2, EXPERTS = 6, RANKS = 3 };
    int64_t idx[TOKENS * 32] = {0};
    int32_t ranks[RANKS], experts[EXPERTS], seen[EXPERTS] = {0};
    xep_layout_args_t args = XEP_LAYOUT_ARGS_INIT;
    xep_layout_t layout = XEP_LAYOUT_INIT;
    args.tokens = TOKENS;
    args.topk = TOPK;
    args.experts = EXPERTS;
    args.nranks = RANKS;
    args.topk_idx = idx;
    for (uint32_t i = 0; i < TOKENS * TOPK; i++) {
        idx[i] = (int64_t)api_number(call, 50 + i, EXPERTS + 1) - 1;
        if (idx[i] >= 0) seen[idx[i]]++;
    }
    if (!call->patched) layout.tokens_per_rank = ranks, layout.tokens_per_expert = experts;
    xep_status_t status = xep_layout(FUZZ_PATCHED(args, layout_fields, call->patched ? &call->patch : NULL), &layout);
    api_check_status("xep_layout", status);
    if (!call->patched && (status != XEP_OK || memcmp(seen, experts, sizeof seen) != 0))
        fuzz_fail("a layout of rank %u: status %d, or wrong counts", rank->rank, status);
    fuzz_count(1);
}

/* What is never right, whatever came before: it is refused, and forgotten. */
static void misuse(const api_rank_t *rank, const api_call_t *call)
{
    const api_handle_t *handle = &rank->handles[call->buffer][call->slot];
    xep_status_t status = XEP_ERR_INVALID;
    xep_handle_t *made = NULL;
    char word[8] = {0};
    switch (api_number(call, 60, 9)) {
    case 0: status = xep_dispatch(NULL, NULL, &made, NULL); break;
    case 1: status = xep_combine(NULL, NULL, NULL); break;
    case 2: status = xep_request_wait(NULL); break;
    case 3: status = xep_group_allgather(rank->group, NULL, word, 8); break;
    case 4: status = xep_group_allgather(rank->group, word, word, 0); break;
    case 5: status = xep_group_create(&(xep_group_params_t){.size = 3}, NULL); break;
    case 6:
        if (handle->released && api_recv(handle->handle) != NULL) fuzz_fail("a released handle has rows");
        break;
    case 7:
        if (handle->released) status = xep_combine(handle->handle, NULL, NULL);
        break;
    default:
        xep_trace_end("none", xep_trace_begin());
        xep_request_free(NULL);
        xep_handle_release(NULL);
    }
    if (status >= 0 || made != NULL) fuzz_fail("a wrong call returned %d", status);
    fuzz_count(1);
}

/* ---- calls of all ranks ---- */

static void meet_others(api_rank_t *rank, const api_call_t *call)
{
    uint32_t nranks = rank->nranks;
    size_t bytes = 1 + api_number(call, 70, 5000);
    char *send = api_memory(rank->run, bytes), *recv = api_memory(rank->run, nranks * bytes);
    api_judge(rank, "xep_group_barrier", xep_group_barrier(rank->group), 1);
    for (size_t i = 0; i < bytes; i++) send[i] = (char)(i * 7 + rank->rank);
    xep_status_t status = xep_group_allgather(rank->group, send, recv, bytes);
    api_judge(rank, "xep_group_allgather", status, 1);
    for (size_t i = 0; status == XEP_OK && !rank->run->dirty && i < nranks * bytes; i++)
        if (recv[i] != (char)(i % bytes * 7 + i / bytes)) fuzz_fail("byte %zu of an allgather is wrong", i);
}

static void reset(api_rank_t *rank, const api_call_t *call)
{
    if (rank->buffers[call->buffer] == NULL) return;
    for (uint32_t i = 0; i < API_SLOTS; i++) rank->handles[call->buffer][i] = (api_handle_t){0};
    api_judge(rank, "xep_buffer_reset", xep_buffer_reset(rank->buffers[call->buffer]), 1);
}

/* Looks at what is in flight without waiting for its end, or gives it up, so that nobody will hear how it ended. */
static void look(api_rank_t *rank, const api_call_t *call)
{
    api_handle_t *handle = &rank->handles[call->buffer][call->slot];
    uint64_t what = api_number(call, 80, 4);
    if (handle->req == NULL) return;
    if (what == 0) api_check_status("xep_request_test", xep_request_test(handle->req));
    if (what == 1) api_check_status("xep_request_wait_counts", xep_request_wait_counts(handle->req));
    if (what == 2) {
        xep_request_free(handle->req);
        if (xep_request_test(handle->req) != XEP_ERR_INVALID) fuzz_fail("a request that was freed is tested");
        *handle = (api_handle_t){.handle = handle->handle};
    }
    fuzz_count(1);
}

const xep_recv_t *api_recv(const xep_handle_t *handle)
{
    const xep_recv_t *recv = NULL;
    return xep_handle_recv(handle, &recv) == XEP_OK ? recv : NULL;
}

static void want_input(api_rank_t *rank, const api_call_t *call)
{
    api_handle_t *handle = &rank->handles[call->buffer][call->slot];
    size_t stride = 0;
    void *base = NULL;
    api_check_status("xep_handle_combine_input", xep_handle_combine_input(handle->handle, &base, &stride));
    const xep_recv_t *recv = api_recv(handle->handle);
    if (base != NULL && recv != NULL && recv->rows > 0) memset(base, 0, (recv->rows - 1) * stride + 2);
    fuzz_count(2);
}

static void run_call(api_rank_t *rank, api_call_t *call)
{
    switch (call->kind) {
    case 0: api_create(rank, call); break;
    case 1:
    case 2:
    case 3:
    case 4: api_dispatch(rank, call); break;
    case 5:
    case 6:
    case 7: api_combine(rank, call); break;
    case 8: api_wait(rank, &rank->handles[call->buffer][call->slot]); break;
    case 9: api_release(rank, &rank->handles[call->buffer][call->slot]); break;
    case 10: ask(rank, call); break;
    case 11: lay_out(rank, call); break;
    case 12: misuse(rank, call); break;
    case 13: meet_others(rank, call); break;
    case 14: reset(rank, call); break;
    case 15: look(rank, call); break;
    case 16: want_input(rank, call); break;
    case 17:
        if (rank->buffers[call->buffer] != NULL) api_destroy(rank, call->buffer);
        break;
    case 18: api_next(rank, call); break;
    case 20: api_mask(rank, call); break;
    case 21: api_fall_silent(rank, call); break;
    case 22: api_shrink(rank, call); break;
    case 23: api_grow(rank, call); break;
    case 24: api_misuse_groups(rank, call); break;
    default:
        if (call->only != rank->rank) break;
        rank->run->dirty = 1;
        xep_group_abort(rank->group);
    }
}

static void live(void *arg, uint32_t number, xep_group_t *group, xep_status_t status)
{
    api_run_t *run = arg;
    api_rank_t rank = {.run = run, .rank = number, .nranks = run->options.nranks, .group = group};
    ptrdiff_t first = 0;
    if (status != XEP_OK && !run->dirty) fuzz_fail("no group: %s", xep_last_error());
    if (status != XEP_OK) { /* others had it, and have ended it already */
        run->alive--;
        return;
    }
    if (number >= run->options.nranks) {
        if (!api_join(&rank)) return;
        first = run->joined_at + 1;
    }
    for (ptrdiff_t i = first; i < run->ncalls && !rank.is_dead; i++) run_call(&rank, &run->calls[i]);
    if (rank.is_dead) xep_group_abort(rank.group); /* nobody is there any more who would hear it */
    for (uint32_t b = 0; b < API_BUFFERS; b++)
        if (rank.buffers[b] != NULL) api_destroy(&rank, b);
    xep_group_destroy(rank.group);
    run->alive -= (uint32_t)!rank.is_dead;
}

/* ---- an input ---- */

/* Seven bytes, with a patch eight and more. One input in three has patches on single ranks at all. */
static void take_call(api_run_t *run, fuzz_input_t *input)
{
    api_call_t *call = &run->calls[run->ncalls++];
    call->kind = (uint32_t)fuzz_below(input, 25);
    call->buffer = (uint32_t)fuzz_below(input, API_BUFFERS);
    call->slot = (uint32_t)fuzz_below(input, API_SLOTS);
    call->choice = (uint32_t)fuzz_take(input, 2);
    uint64_t patch = fuzz_take(input, 1), who = fuzz_take(input, 1);
    call->patched = patch >= 160;
    call->only = who < 224 ? NO_RANK : (uint32_t)(who % run->options.nranks);
    if (call->patched) call->patch = (fuzz_patch_t){.field = (uint32_t)patch - 160, .value = fuzz_number(input)};
}

static void ignore(void *arg, xep_log_level_t level, const char *message)
{
    (void)arg, (void)level, (void)message;
}

/*
 * For good: libFuzzer reads the counters of an object also when that was unloaded. Those for the memory of devices,
 * which a patch of an argument asks for, are there where they were built.
 */
static void load_modes(void)
{
    static const char *const names[] = {"normal", "ll", "normal_cuda", "ll_cuda"};
    static int loaded;
    const char *folder = getenv("XEP_PLUGIN_PATH");
    char path[PATH_MAX];
    if (loaded++) return;
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/xep_%s.so", folder == NULL ? ".libs" : folder, names[i]);
        if (i >= 2 && access(path, F_OK) != 0) continue;
        if (dlopen(path, RTLD_NOW | RTLD_LOCAL) == NULL) fuzz_fail("no mode: %s", dlerror());
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static api_run_t run;
    fuzz_input_t input = {data, data + size};
    run = (api_run_t){.options = {.timeout_ms = 10000, .run = live, .arg = &run}};
    uint64_t ranks = fuzz_take(&input, 1); /* with one of 128 and more there is a joiner, where there is room */
    run.options.nranks = run.alive = 1 + (uint32_t)ranks % FUZZ_MOST_RANKS;
    run.options.joiners = ranks >= 128 && run.options.nranks < FUZZ_MOST_RANKS;
    uint64_t nodes = fuzz_take(&input, 1);
    run.options.seed = fuzz_take(&input, 2);
    for (uint32_t r = 0; r < FUZZ_MOST_RANKS; r++) run.options.node[r] = (uint32_t)(nodes >> 2 * r & 3);
    while (run.ncalls < API_CALLS && input.at < input.end) take_call(&run, &input);
    xep_log_set(ignore, NULL);
    load_modes();
    fuzz_world_run(&run.options);
    for (uint32_t i = 0; i < run.ncalls; i++)
        for (uint32_t n = 0; n < FUZZ_MOST_RANKS; n++)
            if (run.truths[i][n].routing != NULL) oracle_routing_destroy(run.truths[i][n].routing);
    free_blocks(&run);
    return 0;
}
