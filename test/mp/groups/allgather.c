/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2 3 5, brief: 3, limit: 60 */

/*
 * The group's own allgather: as often as one likes, of any size, next to operations of a buffer and barriers; sizes
 * that differ are an error on every rank and no harm. 2,000 calls by way of PMIx would not end before the limit.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mp_job.h"
#include "mp_rig.h"

enum { CALLS = 2000, PART = 4072 };

static uint8_t byte_of(uint32_t rank, size_t i, uint32_t call)
{
    return (uint8_t)(rank * 89 + i * 7 + (i >> 8) + call * 31 + 1);
}

static void gather(xep_group_t *group, size_t bytes, uint32_t call)
{
    uint8_t *send = mp_alloc(bytes, 1), *recv = mp_alloc(mp_nranks() * bytes, 3);
    for (size_t i = 0; i < bytes; i++) send[i] = byte_of(mp_rank(), i, call);
    MP_OK(xep_group_allgather(group, send, recv, bytes));
    for (uint32_t r = 0; r < mp_nranks(); r++)
        for (size_t i = 0; i < bytes; i++) MP_CHECK(recv[r * bytes + i] == byte_of(r, i, call));
    mp_free(send, "send");
    mp_free(recv, "recv");
}

static void many(xep_group_t *group)
{
    for (uint32_t call = 0; call < CALLS; call++) {
        gather(group, sizeof(uint64_t), call);
        if (call % 100 == 0) MP_OK(xep_group_barrier(group));
    }
}

static void any_size(xep_group_t *group)
{
    static const size_t sizes[] = {1, PART - 1, PART, PART + 1, 2 * PART, 3 * PART + 5, (1 << 20) + 3};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) gather(group, sizes[i], (uint32_t)i);
}

static void sizes_differ(xep_group_t *group, size_t common, size_t of_last)
{
    size_t bytes = mp_is_last() ? of_last : common;
    uint8_t *send = calloc(1, bytes), *recv = calloc(mp_nranks(), bytes);
    MP_CHECK(send != NULL && recv != NULL);
    MP_SAYS(XEP_ERR_MISMATCH, "bytes to an allgather of", xep_group_allgather(group, send, recv, bytes));
    free(send);
    free(recv);
    gather(group, 100, 1);
}

/* A rank in another call is named with that call. */
static void calls_differ(xep_group_t *group)
{
    static const mp_case_t c = {.name = "allgather", MP_SHAPE(12, 4, 300, 30)};
    const int is_last = mp_is_last();
    xep_buffer_params_t params = XEP_BUFFER_PARAMS_INIT;
    xep_buffer_t *buffer;
    uint64_t send[3] = {0}, *recv = calloc(mp_nranks(), sizeof send);
    char reason[128];
    mp_job_t job;
    MP_CHECK(recv != NULL);
    params.mode = "normal", params.experts = 4, params.topk = 2, params.hidden = 16, params.tokens = 4;
    MP_FAILS(XEP_ERR_MISMATCH, is_last ? xep_buffer_create(group, &params, &buffer)
                                       : xep_group_allgather(group, send, recv, sizeof send));
    snprintf(reason, sizeof reason, "rank %u is in %s, this rank in %s (", is_last ? 0 : mp_nranks() - 1,
             is_last ? "xep_group_allgather" : "xep_buffer_create",
             is_last ? "xep_buffer_create" : "xep_group_allgather");
    MP_REASON(reason);
    mp_job_begin(&job, &c, 3, group);
    mp_job_round(&job);
    mp_job_close(&job);
    free(recv);
}

static void beside_operations(xep_group_t *group)
{
    static const mp_case_t c = {.name = "allgather", MP_SHAPE(12, 4, 300, 30), .slots = 2};
    mp_job_t job;
    mp_job_begin(&job, &c, 3, group);
    for (uint32_t i = 0; i < 20; i++) {
        mp_job_round(&job);
        gather(group, 3 * PART, i);
    }
    mp_job_close(&job);
}

int main(void)
{
    xep_group_t *group = mp_group();
    many(group);
    any_size(group);
    sizes_differ(group, 8, 16);
    sizes_differ(group, 3 * PART, 8);
    calls_differ(group);
    beside_operations(group);
    return mp_end(group);
}
