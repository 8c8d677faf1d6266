/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Rows that are copied to the experts while others come (XEP_DISPATCH_WILL_EXPAND): wherever the rows of a dispatch are
 * to be, they are, and are those that this dispatch has brought. Its rows are others than those of the one before it,
 * and what belonged to those is poisoned.
 */
#include "cuda_parts.h"

#include <stdlib.h>
#include <string.h>

#include "cuda_rig.h"
#include "mp_rig.h"

enum { POISON = 0x5a, ALIGNMENT = 16, ROUNDS = 5 };

/* Made before the dispatch, so that nothing is between it and what follows. */
typedef struct coming {
    cuda_job_t job;
    xep_expand_args_t args;
    size_t row, words; /* bytes of a row, of its scales */
    uint64_t room;     /* rows of a slot */
} coming_t;

static void *poisoned(size_t bytes)
{
    void *from = malloc(bytes + 1), *there;
    MP_CHECK(from != NULL);
    memset(from, POISON, bytes + 1);
    there = cuda_rig_alloc(from, bytes + 1);
    free(from);
    return there;
}

static void *get(const coming_t *coming, const void *from, size_t bytes)
{
    void *to = malloc(bytes + 1);
    MP_CHECK(to != NULL);
    if (bytes != 0) cuda_rig_get(to, from, bytes, coming->job.stream);
    return to;
}

static void begin(coming_t *coming, const mp_case_t *c, xep_group_t *group, void *stream)
{
    cuda_job_open(&coming->job, c, 31, group, stream);
    coming->job.counts_there = c->fixed_capacity;
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    MP_OK(xep_buffer_query(coming->job.host.buffer, &info));
    const uint64_t experts = c->experts;
    coming->room = info.recv_rows;
    coming->row = c->hidden * xep_dtype_size(coming->job.host.shape.dtype);
    coming->words = c->nscales * 4ul;
    coming->args = (xep_expand_args_t){.size = sizeof coming->args,
                                       .capacity = info.recv_rows * c->topk + experts * ALIGNMENT,
                                       .expert_alignment = ALIGNMENT,
                                       .slots = poisoned(info.recv_rows * c->topk * 4),
                                       .expert_begin = poisoned(experts * 8),
                                       .expert_count = poisoned(experts * 8),
                                       .stream = stream};
    coming->args.x = poisoned(coming->args.capacity * coming->row);
    if (c->weights) coming->args.topk_weights = poisoned(coming->args.capacity * 4);
    if (c->nscales != 0) coming->args.scales = poisoned(coming->args.capacity * coming->words);
}

static void end(coming_t *coming)
{
    const xep_expand_args_t *a = &coming->args;
    void *arrays[] = {a->slots, a->expert_begin, a->expert_count, a->x, a->topk_weights, a->scales};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        if (arrays[i] != NULL) cuda_rig_free(arrays[i]);
    cuda_job_close(&coming->job);
}

/* ---- what came ---- */

static int64_t index_at(const xep_recv_t *recv, const void *idx, uint64_t i)
{
    return recv->topk_idx_dtype == XEP_INT64 ? ((const int64_t *)idx)[i] : ((const int32_t *)idx)[i];
}

/* Elements of bytes each, by expert; of selection i that at i / each. */
static void check_array(const coming_t *coming, const char *what, const int32_t *slot, const void *there,
                        const void *from_there, size_t stride, size_t bytes, uint32_t each, const xep_recv_t *recv)
{
    const uint64_t all = recv->capacity * recv->topk;
    if (there == NULL || bytes == 0) return;
    char *found = get(coming, there, coming->args.capacity * bytes);
    char *from = get(coming, from_there, all / each * stride);
    for (uint64_t i = 0; i < all; i++)
        if (slot[i] >= 0 && memcmp(found + (size_t)slot[i] * bytes, from + i / each * stride, bytes) != 0)
            mp_fail(__FILE__, __LINE__, "case %s: %s of selection %llu of %llu differ in row %d",
                    coming->job.host.c->name, what, (unsigned long long)i, (unsigned long long)all, slot[i]);
    free(found), free(from);
}

static void check(coming_t *coming, const xep_handle_t *handle)
{
    const xep_recv_t *recv = mp_recv(handle);
    const xep_expand_args_t *a = &coming->args;
    const uint64_t all = recv->capacity * recv->topk, experts = recv->local_experts;
    const size_t idx_bytes = all * xep_dtype_size(recv->topk_idx_dtype);
    void *idx = get(coming, recv->topk_idx, idx_bytes);
    int32_t *slot = get(coming, a->slots, all * 4);
    uint64_t *begin = get(coming, a->expert_begin, experts * 8), *count = get(coming, a->expert_count, experts * 8);
    uint64_t end = 0;
    for (uint64_t x = 0; x < experts; x++) {
        MP_CHECK(begin[x] == (end + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
        end = begin[x];
        for (uint64_t i = 0; i < all; i++)
            if (index_at(recv, idx, i) == (int64_t)x) MP_CHECK(slot[i] == (int32_t)end++);
        MP_CHECK(end - begin[x] == count[x]);
    }
    for (uint64_t i = 0; i < all; i++) MP_CHECK((slot[i] < 0) == (index_at(recv, idx, i) < 0));
    check_array(coming, "rows", slot, a->x, recv->x, recv->x_stride, coming->row, recv->topk, recv);
    check_array(coming, "weights", slot, a->topk_weights, recv->topk_weights, 4, 4, 1, recv);
    check_array(coming, "scales", slot, a->scales, recv->scales, coming->words, coming->words, recv->topk, recv);
    cuda_job_check_recv(&coming->job, handle);
    memset(idx, POISON, idx_bytes);
    cuda_rig_put((void *)(uintptr_t)recv->topk_idx, idx, idx_bytes, coming->job.stream);
    cuda_rig_wait(coming->job.stream);
    free(idx), free(slot), free(begin), free(count);
}

/* ---- cases ---- */

static xep_handle_t *dispatch(coming_t *coming, xep_handle_t *cached, void *stream)
{
    xep_dispatch_args_t a = cuda_job_dispatch(&coming->job, cached);
    xep_handle_t *handle;
    a.flags |= XEP_DISPATCH_WILL_EXPAND;
    a.stream = stream;
    MP_OK(xep_dispatch(coming->job.host.buffer, &a, &handle, NULL));
    return handle;
}

/* Twice, then by the routing of the first, then with something between, then once more. */
static void run(xep_group_t *group, const mp_case_t *c, void *stream)
{
    coming_t coming;
    xep_handle_t *first = NULL;
    begin(&coming, c, group, stream);
    for (int round = 0; round < ROUNDS; round++) {
        cuda_job_payload(&coming.job, 100 + (uint64_t)round);
        xep_handle_t *handle = dispatch(&coming, round == 2 && !c->weights && c->nscales == 0 ? first : NULL, stream);
        if (round == 3) cuda_rig_copy(coming.args.x, 16, coming.args.x, 16, 16, 1, stream);
        MP_OK(xep_handle_expand(handle, &coming.args));
        check(&coming, handle);
        if (round == 0) first = handle;
        else xep_handle_release(handle);
    }
    xep_handle_release(first);
    end(&coming);
}

/* The next operation is on another stream, and nothing was expanded: it still comes behind the dispatch. */
static void change_streams(xep_group_t *group, void *stream)
{
    const mp_case_t c = {.name = "will expand, and does not", MP_SHAPE(8, 2, 1024, 300), MP_CUDA};
    void *other = cuda_rig_stream();
    coming_t coming;
    begin(&coming, &c, group, stream);
    for (uint64_t round = 0; round < 4; round++) {
        cuda_job_payload(&coming.job, 200 + round);
        cuda_rig_wait(stream);
        xep_handle_t *handle = dispatch(&coming, NULL, round % 2 ? other : stream);
        xep_combine_args_t a = XEP_COMBINE_ARGS_INIT;
        MP_CHECK(mp_input(handle, NULL) != NULL);
        a.out = coming.job.out, a.stream = round % 2 ? stream : other;
        MP_OK(xep_combine(handle, &a, NULL));
        cuda_rig_wait(other);
        cuda_job_check_recv(&coming.job, handle);
        xep_handle_release(handle);
    }
    end(&coming);
}

/* As a graph, which is replayed for other rows. */
static void replay(xep_group_t *group, void *stream)
{
    const mp_case_t c = {.name = "will expand, replayed",
                         MP_SHAPE(8, 2, 7168, 700),
                         .weights = 1,
                         .fixed_capacity = 1,
                         MP_CUDA};
    coming_t coming;
    begin(&coming, &c, group, stream);
    cuda_rig_capture(stream);
    xep_handle_t *handle = dispatch(&coming, NULL, stream);
    MP_OK(xep_handle_expand(handle, &coming.args));
    void *graph = cuda_rig_graph(stream);
    for (uint64_t round = 0; round < 3; round++) {
        cuda_job_payload(&coming.job, 300 + round);
        cuda_rig_replay(graph, stream);
        check(&coming, handle);
    }
    cuda_rig_free_graph(graph);
    xep_handle_release(handle);
    end(&coming);
}

void cuda_coming(xep_group_t *group, void *stream)
{
    static const mp_case_t cases[] = {
        {.name = "will expand, many rows", MP_SHAPE(8, 2, 7168, 1200), MP_CUDA},
        {.name = "will expand, scales", MP_SHAPE(16, 3, 4096, 900), .weights = 1, .nscales = 3, MP_CUDA},
        {.name = "will expand, odd", MP_SHAPE(61, 5, 333, 640), .strided = 1, .mask = 100, MP_CUDA},
        {.name = "will expand, few rows", MP_SHAPE(32, 4, 256, 65), .weights = 1, MP_CUDA},
        {.name = "will expand, nothing", MP_SHAPE(8, 2, 64, 20), .mask = 1000, MP_CUDA},
        {.name = "will expand, counts there", MP_SHAPE(24, 6, 2048, 1100), .fixed_capacity = 1, MP_CUDA},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run(group, &cases[i], stream);
    change_streams(group, stream);
    replay(group, stream);
}
