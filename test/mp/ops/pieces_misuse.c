/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2 3, brief: 3, limit: 120 */

/* What can be asked wrongly of dispatches in pieces: every mistake has its sentence, and nothing is left half done. */

#include <string.h>

#include "mp_pieces.h"
#include "mp_rig.h"

static const mp_case_t base = {.name = "wrong",
                               MP_SHAPE(12, 3, 64, 20),
                               .weights = 1,
                               .slots = 2,
                               .copy_in = 1,
                               .combine_dtype = XEP_FP32,
                               .recv_rows = 6,
                               .pieces = 1};

static const mp_case_t by_expert = {.name = "by expert, wrong",
                                    .mode = "ll",
                                    MP_SHAPE(12, 3, 64, 20),
                                    .slots = 2,
                                    .copy_in = 1,
                                    .combine_dtype = XEP_FP32,
                                    .recv_rows = 16,
                                    .pieces = 1};

static void refuse_buffers(xep_group_t *group)
{
    xep_buffer_t *buffer;
    xep_buffer_size_t size = XEP_BUFFER_SIZE_INIT, worst = XEP_BUFFER_SIZE_INIT;
    xep_buffer_params_t p = mp_small_params();
    p.flags = XEP_BUFFER_PIECES;
    p.mode = "ll";
    p.on_failure = XEP_ON_FAILURE_MASK;
    MP_SAYS(XEP_ERR_UNSUPPORTED, "XEP_BUFFER_PIECES with XEP_ON_FAILURE_MASK", xep_buffer_create(group, &p, &buffer));
    MP_SAYS(XEP_ERR_UNSUPPORTED, "XEP_BUFFER_PIECES with XEP_ON_FAILURE_MASK", xep_buffer_size(&p, 4, &size));
    p.mode = "normal";
    p.on_failure = XEP_ON_FAILURE_MASK;
    MP_SAYS(XEP_ERR_UNSUPPORTED, "XEP_BUFFER_PIECES with XEP_ON_FAILURE_MASK", xep_buffer_create(group, &p, &buffer));
    p.on_failure = XEP_ON_FAILURE_FAIL;
    p.flags = 2 * XEP_BUFFER_SUM_BY_SELECTION; /* the highest */
    MP_FAILS(XEP_ERR_INVALID, xep_buffer_create(group, &p, &buffer));
    p.flags = XEP_BUFFER_PIECES;
    p.recv_rows = 5 + mp_rank() % 2;
    MP_SAYS(XEP_ERR_MISMATCH, "recv_rows", xep_buffer_create(group, &p, &buffer));
    p.recv_rows = 0;
    p.flags = mp_rank() % 2 == 0 ? XEP_BUFFER_PIECES : 0;
    MP_FAILS(XEP_ERR_MISMATCH, xep_buffer_create(group, &p, &buffer));
    /* what an even load needs and a quarter more: of 64 ranks with 4 experts each a token goes to 0.12 of them */
    p = (xep_buffer_params_t)XEP_BUFFER_PARAMS_INIT;
    p.mode = "normal", p.experts = 256, p.topk = 8, p.hidden = 7168, p.tokens = 4096;
    MP_OK(xep_buffer_size(&p, 64, &worst));
    p.flags = XEP_BUFFER_PIECES;
    MP_OK(xep_buffer_size(&p, 64, &size));
    MP_CHECK(worst.recv_rows == 64 * 4096 && size.recv_rows == 39300);
    MP_CHECK(size.node_bytes < worst.node_bytes / 4);
}

static void refuse_dispatches(xep_group_t *group)
{
    mp_case_t c = base;
    mp_job_t job;
    xep_handle_t *handle;
    c.pieces = 0;
    mp_job_begin(&job, &c, 1, group);
    xep_dispatch_args_t args = mp_job_dispatch(&job);
    MP_FAILS(XEP_ERR_OVERFLOW, xep_dispatch(job.buffer, &args, &handle, NULL));
    args.flags = XEP_DISPATCH_PIECES;
    MP_REFUSES(&job, &args, XEP_ERR_UNSUPPORTED, "XEP_DISPATCH_PIECES (without XEP_BUFFER_PIECES)");
    mp_job_close(&job);
    c.pieces = 1;
    c.in_place = 1;
    mp_job_begin(&job, &c, 1, group);
    args = mp_job_dispatch(&job);
    args.flags = 0; /* who does not know of pieces must not see the first of them alone */
    uint64_t rows = 0;
    args.recv_rows_p = &rows;
    MP_SAYS(XEP_ERR_OVERFLOW, "params.recv_rows; or XEP_DISPATCH_PIECES",
            xep_dispatch(job.buffer, &args, &handle, NULL));
    MP_CHECK(rows != 0);
    args.flags = XEP_DISPATCH_PIECES | XEP_DISPATCH_IN_PLACE;
    MP_REFUSES(&job, &args, XEP_ERR_UNSUPPORTED, "XEP_DISPATCH_PIECES with XEP_DISPATCH_IN_PLACE");
    args.flags = XEP_DISPATCH_PIECES;
    args.capacity = 3;
    MP_REFUSES(&job, &args, XEP_ERR_INVALID, "invalid capacity: 3 rows (0 with XEP_DISPATCH_PIECES)");
    args.capacity = 0;
    args.flags = mp_rank() == 1 ? 0 : XEP_DISPATCH_PIECES;
    MP_REFUSES(&job, &args, XEP_ERR_MISMATCH, "piece, from 1 (0: without XEP_DISPATCH_PIECES): 1, 0");
    args.flags = XEP_DISPATCH_PIECES | 32;
    MP_FAILS(XEP_ERR_INVALID, xep_dispatch(job.buffer, &args, &handle, NULL));
    mp_job_close(&job);
}

#define WRONG_NEXT(_field, _value, _text) \
    MP_WRONG(next, _field, _value, XEP_ERR_INVALID, _text, xep_handle_next(handle, &next, NULL))

/* Each of these is refused on all ranks alike, and leaves the piece as it is. */
static void refuse_calls(mp_job_t *job, xep_handle_t *handle)
{
    xep_next_args_t next = mp_pieces_outputs(job, handle);
    xep_combine_args_t combine = mp_job_combine(job, handle);
    MP_FAILS(XEP_ERR_INVALID, xep_handle_next(NULL, &next, NULL));
    MP_SAYS(XEP_ERR_INVALID, "it shows piece 1 of", xep_combine(handle, &combine, NULL));
    WRONG_NEXT(size, 3, "size");
    WRONG_NEXT(reserved, 1, "invalid reserved: 1 (0)");
    WRONG_NEXT(x_stride, 1, "x_stride");
    WRONG_NEXT(dtype, XEP_E4M3, "invalid dtype: e4m3");
    WRONG_NEXT(hidden, 65, "row too long");
}

/* Ranks that want different things: nothing has moved then, and the same call, made alike, goes on. */
static void disagree(mp_job_t *job, xep_handle_t *handle)
{
    xep_next_args_t next = mp_pieces_outputs(job, handle);
    MP_SAYS(XEP_ERR_MISMATCH, "whether a piece has outputs: yes, no",
            xep_handle_next(handle, mp_rank() == 1 ? NULL : &next, NULL));
    next.hidden = mp_rank() == 1 ? 32 : 64;
    MP_SAYS(XEP_ERR_MISMATCH, "rank 0 and rank 1 disagree on hidden: 64, 32", xep_handle_next(handle, &next, NULL));
    next.hidden = 0;
    next.x_stride = mp_rank() == 1 ? 2 : 0; /* refused there alone, which all are told */
    MP_FAILS(mp_rank() == 1 ? XEP_ERR_INVALID : XEP_ERR_MISMATCH, xep_handle_next(handle, &next, NULL));
    next.x_stride = 0;
    MP_FAILS(XEP_ERR_MISMATCH, xep_handle_next(handle, &next, NULL));
    MP_CHECK(mp_recv(handle)->piece == 0);
}

/* Outputs of one kind, all the way. */
static void refuse_kinds(mp_job_t *job, xep_handle_t *handle)
{
    xep_next_args_t next = mp_pieces_outputs(job, handle);
    MP_SAYS(XEP_ERR_INVALID, "args must not be NULL, as with the first piece", xep_handle_next(handle, NULL, NULL));
    WRONG_NEXT(dtype, XEP_BF16, "invalid dtype: bf16 (fp32, as with the first piece)");
    WRONG_NEXT(hidden, 32, "invalid hidden: 32 (64, as with the first piece)");
    WRONG_NEXT(topk_weights, NULL, "topk_weights is NULL (with the first piece they were not)");
}

/* Ranks that ask for pieces of two handles, which look alike in all else; of different pieces; of one and of none. */
static void ask_apart(mp_job_t *job)
{
    mp_pieces_t all[2];
    xep_dispatch_args_t args = mp_job_dispatch(job);
    xep_handle_t *handle[2], *none;
    for (int i = 0; i < 2; i++) handle[i] = mp_pieces_begin(&all[i], job, &args);
    MP_SAYS(XEP_ERR_MISMATCH, "disagree on the handle whose next piece it is",
            xep_handle_next(handle[mp_rank() == 1], NULL, NULL));
    MP_CHECK(mp_recv(handle[0])->piece == 0 && mp_recv(handle[1])->piece == 0);
    mp_pieces_next(&all[0], job, handle[0], 0, 0);
    MP_SAYS(XEP_ERR_MISMATCH, "rank 0 and rank 1 disagree on piece, from 1 (0: without XEP_DISPATCH_PIECES): 3, 2",
            xep_handle_next(handle[mp_rank() == 1], NULL, NULL));
    xep_handle_release(handle[1]);
    oracle_pieces_free(&all[1].all);
    if (mp_rank() == 1) MP_FAILS(XEP_ERR_MISMATCH, xep_dispatch(job->buffer, &args, &none, NULL));
    else MP_FAILS(XEP_ERR_MISMATCH, xep_handle_next(handle[0], NULL, NULL));
    MP_REASON("rank 0 and rank 1 disagree on piece, from 1 (0: without XEP_DISPATCH_PIECES): 3, 1");
    mp_pieces_rest(&all[0], job, handle[0], 0);
    xep_handle_release(handle[0]);
}

static void refuse_pieces(xep_group_t *group)
{
    mp_case_t c = base;
    mp_job_t job;
    mp_pieces_t all;

    mp_job_begin(&job, &c, 5, group);
    xep_dispatch_args_t args = mp_job_dispatch(&job);
    xep_handle_t *handle = mp_pieces_begin(&all, &job, &args);
    MP_CHECK(all.pieces >= 3);
    refuse_calls(&job, handle);
    disagree(&job, handle);
    mp_pieces_next(&all, &job, handle, 1, 0);
    refuse_kinds(&job, handle);
    mp_pieces_rest(&all, &job, handle, 1);
    xep_next_args_t next = mp_pieces_outputs(&job, handle);
    MP_SAYS(XEP_ERR_INVALID, "it shows the last of", xep_handle_next(handle, &next, NULL));
    xep_combine_args_t combine = mp_job_combine(&job, handle);
    MP_WRONG(combine, hidden, 32, XEP_ERR_INVALID, "as with the first piece", xep_combine(handle, &combine, NULL));
    MP_OK(xep_combine(handle, &combine, NULL));
    mp_job_check_out(&job);
    MP_SAYS(XEP_ERR_INVALID, "it was combined (once, with", xep_combine(handle, &combine, NULL));
    xep_handle_release(handle);
    ask_apart(&job);
    mp_job_close(&job);
}

/* No outputs, no combine; and a dispatch of one piece has no next one. */
static void refuse_ends(xep_group_t *group)
{
    mp_case_t c = base;
    mp_job_t job;
    mp_pieces_t all;
    mp_job_begin(&job, &c, 5, group);
    xep_dispatch_args_t args = mp_job_dispatch(&job);
    xep_handle_t *handle = mp_pieces_begin(&all, &job, &args);
    for (uint64_t i = 1; i < all.pieces; i++) {
        xep_next_args_t next = mp_pieces_outputs(&job, handle);
        if (i > 1) MP_FAILS(XEP_ERR_INVALID, xep_handle_next(handle, &next, NULL));
        mp_pieces_next(&all, &job, handle, 0, 0);
    }
    xep_combine_args_t combine = mp_job_combine(&job, handle);
    MP_SAYS(XEP_ERR_INVALID, "earlier pieces had no outputs", xep_combine(handle, &combine, NULL));
    xep_handle_release(handle);
    MP_FAILS(XEP_ERR_INVALID, xep_handle_next(handle, NULL, NULL));
    args.tokens = 0;
    MP_OK(xep_dispatch(job.buffer, &args, &handle, NULL));
    MP_CHECK(mp_recv(handle)->pieces == 1 && mp_recv(handle)->all_rows == 0);
    MP_SAYS(XEP_ERR_INVALID, "it shows the last of 1 piece", xep_handle_next(handle, NULL, NULL));
    xep_handle_release(handle);
    mp_job_close(&job);
}

/* A consumer that asks no more: the others say whom they wait for; the reset makes all of it usable again. */
static void stop_asking(xep_group_t *group, const mp_case_t *shape, const char *next, const char *waits)
{
    mp_case_t c = *shape;
    mp_job_t job;
    mp_pieces_t all;
    mp_job_begin(&job, &c, 5, group);
    xep_dispatch_args_t args = mp_job_dispatch(&job);
    xep_handle_t *handle = mp_pieces_begin(&all, &job, &args);
    if (mp_rank() != 1) {
        xep_next_args_t in_vain = mp_pieces_outputs(&job, handle);
        in_vain.timeout_ms = MP_VAIN_MS;
        MP_SAYS(XEP_ERR_TIMEOUT, next, xep_handle_next(handle, &in_vain, NULL));
        MP_REASON(waits);
        MP_FAILS(XEP_ERR_BROKEN, xep_handle_next(handle, NULL, NULL));
    }
    MP_OK(xep_group_barrier(group));
    MP_OK(xep_buffer_reset(job.buffer));
    oracle_pieces_free(&all.all);
    mp_pieces_t again;
    handle = mp_pieces_begin(&again, &job, &args);
    mp_pieces_rest(&again, &job, handle, 0);
    xep_handle_release(handle); /* in the middle, too, on all ranks */
    handle = mp_pieces_begin(&again, &job, &args);
    mp_pieces_next(&again, &job, handle, 0, 0);
    xep_handle_release(handle);
    oracle_pieces_free(&again.all);
    handle = mp_pieces_begin(&again, &job, &args);
    mp_pieces_rest(&again, &job, handle, 1);
    mp_job_sum(&job, handle);
    xep_handle_release(handle);
    mp_job_close(&job);
}

/* What is only so by expert. */
static void refuse_by_expert(xep_group_t *group)
{
    mp_case_t c = by_expert;
    mp_job_t job;
    mp_pieces_t all;
    xep_handle_t *handle;
    mp_job_begin(&job, &c, 5, group);
    xep_dispatch_args_t args = mp_job_dispatch(&job);
    args.arrangement = XEP_ROWS_BY_EXPERT_PADDED;
    MP_REFUSES(&job, &args, XEP_ERR_UNSUPPORTED, "XEP_ROWS_BY_EXPERT_PADDED (with XEP_DISPATCH_PIECES: compact)");
    args.arrangement = XEP_ROWS_DEFAULT;
    args.expert_alignment = mp_rank() == 1 ? 17 : 16;
    MP_REFUSES(&job, &args, XEP_ERR_OVERFLOW,
               "expert_alignment of rank 1 is more than a slot has rows: 17 (params.recv_rows: 16)");
    args.expert_alignment = 0;
    args.flags = mp_rank() == 1 ? 0 : XEP_DISPATCH_PIECES;
    MP_REFUSES(&job, &args, XEP_ERR_MISMATCH,
               "rank 0 and rank 1 disagree on piece, from 1 (0: without XEP_DISPATCH_PIECES): 1, 0");
    args.flags = 0;
    MP_SAYS(XEP_ERR_OVERFLOW, "it has room for 16 (params.recv_rows; or XEP_DISPATCH_PIECES)",
            xep_dispatch(job.buffer, &args, &handle, NULL));
    args.flags = XEP_DISPATCH_PIECES;
    handle = mp_pieces_begin(&all, &job, &args);
    MP_CHECK(all.pieces >= 3);
    xep_next_args_t next = XEP_NEXT_ARGS_INIT;
    float weights[16] = {0}; /* a slot has so many rows */
    MP_CHECK(mp_input(handle, NULL) != NULL);
    next.topk_weights = weights;
    MP_SAYS(XEP_ERR_UNSUPPORTED, "mode ll does not support topk_weights and out_weights of a combine",
            xep_handle_next(handle, &next, NULL));
    disagree(&job, handle);
    mp_pieces_rest(&all, &job, handle, 1);
    mp_job_sum(&job, handle);
    xep_handle_release(handle);
    ask_apart(&job);
    mp_job_close(&job);
}

int main(void)
{
    xep_group_t *group = mp_group();
    refuse_buffers(group);
    refuse_dispatches(group);
    refuse_pieces(group);
    refuse_ends(group);
    stop_asking(group, &base, "next piece 2 of mode normal", "waits for counts: rank 1 at 0 of 2");
    refuse_by_expert(group);
    stop_asking(group, &by_expert, "next piece 2 of mode ll", "waits for rows: rank 1 at 0 of 2");
    return mp_end(group);
}
