/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1 4, limit: 120 */

/*
 * Mode ll with rows that are read where their source has them, or has cast them to: in both layouts, with scales and
 * weights, received in another order than sent. With checksums (XEP_CHECK_ROWS).
 */

#include <stdlib.h>
#include <string.h>

#include "mp_placed.h"
#include "mp_rig.h"

static const mp_case_t shapes[] = {
    {.name = "plain", .mode = "ll", MP_SHAPE(16, 4, 256, 96), .weights = 1, .in_place = 1},
    {.name = "odd",
     .mode = "ll",
     MP_SHAPE(13, 5, 77, 61),
     .ragged = 1,
     .mask = 200,
     .nscales = 3,
     .scales_dtype = XEP_U8,
     .payloads = 3,
     .weights = 1,
     .sent = 1,
     .alignment = 3,
     .strided = 1,
     .in_place = 1},
    {.name = "one rank sends", .mode = "ll", MP_SHAPE(9, 9, 1, 33), .ragged = 2, .in_place = 1},
    {.name = "cast",
     .mode = "ll",
     MP_SHAPE(8, 3, 520, 40),
     .weights = 1,
     .quant = XEP_QUANT_E4M3,
     .mask = 100,
     .slots = 3,
     .fixed_capacity = 1,
     .in_place = 1},
    {.name = "cast, elsewhere",
     .mode = "ll",
     MP_SHAPE(24, 6, 1000, 70),
     .dtype = XEP_FP32,
     .payloads = 8,
     .quant = XEP_QUANT_UE8M0,
     .ragged = 1,
     .threads = 3,
     .slots = 3,
     .in_place = 2},
    {.name = "elsewhere",
     .mode = "ll",
     MP_SHAPE(16, 2, 200, 64),
     .idx_dtype = XEP_INT32,
     .nscales = 2,
     .strided = 1,
     .biases = 3,
     .copy_in = 1,
     .in_place = 2},
};

/*
 * Rows that are cast are other rows than the user's: send memory stays the user's. Padded and compact, received in
 * another order than sent, and summed.
 */
static void in_flight(xep_group_t *group, xep_quant_t quant)
{
    mp_case_t c = {.name = "in flight", .mode = "ll", .experts = 8, .topk = 8, .tokens = 20, .in_place = 1};
    mp_job_t job;
    xep_handle_t *handle[2];
    xep_request_t *req[2];
    void *base, *again;
    size_t stride;
    c.quant = quant, c.weights = 1, c.hidden = 300, c.ragged = 1, c.slots = 3;
    mp_job_begin(&job, &c, 13, group);
    for (uint64_t round = 0; round < 4; round++) {
        for (uint64_t i = 0; i < 2; i++) {
            mp_job_payload(&job, 2 * round + i);
            xep_dispatch_args_t args = mp_job_dispatch(&job);
            mp_job_place(&job, &args);
            MP_OK(xep_buffer_send_memory(job.buffer, &base, &stride));
            args.arrangement = i == 0 ? XEP_ROWS_BY_EXPERT_PADDED : XEP_ROWS_BY_EXPERT_COMPACT;
            MP_OK(xep_dispatch(job.buffer, &args, &handle[i], &req[i]));
            MP_OK(xep_buffer_send_memory(job.buffer, &again, &stride));
            MP_CHECK((again == base) == (quant != XEP_QUANT_NONE || job.tokens == 0));
            memset(again, MP_POISON, c.tokens * stride);
        }
        for (uint64_t i = 2; i-- > 0;) {
            MP_OK(xep_request_wait(req[i]));
            xep_request_free(req[i]);
            mp_job_payload(&job, 2 * round + i);
            (void)mp_job_dispatch(&job);
            job.shape.padded = i == 0, job.shape.room = c.tokens;
            mp_job_check_recv(&job, handle[i]);
            mp_placed_check(group, &job, mp_recv(handle[i]));
            mp_placed_check_gather(&job, handle[i]);
            mp_placed_combine(&job, handle[i]);
            xep_handle_release(handle[i]);
        }
    }
    mp_job_close(&job);
}

int main(void)
{
    setenv("XEP_CHECK_ROWS", "yes", 1);
    xep_group_t *group = mp_group();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) mp_placed_shape(group, &shapes[i]);
    in_flight(group, XEP_QUANT_NONE);
    in_flight(group, XEP_QUANT_E4M3);
    xep_group_destroy(group);
    return 0;
}
