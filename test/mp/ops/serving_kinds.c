/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2 4, brief: 4, limit: 120 */

/*
 * Operations of all kinds that ranks take part in by serving: ranks of even number work, the others serve. What comes
 * is compared with the oracle on every rank. settings.sh runs it with the progress thread, and by nodes.
 */

#include <stdlib.h>

#include "mp_pieces.h"
#include "mp_rig.h"

enum { ROUNDS = 3, LAYERS = 9 /* more than a ring of announcements has */ };

/* Of which rank 0 has no experts, some ranks have those of others, and rows are copied, in pieces or in place. */
static mp_case_t make_case(uint32_t number)
{
    mp_case_t c = mp_shape(number, number % 2 == 0 ? "normal" : "ll");
    if (c.owners == NULL) c.owners = number == 0 ? "split:1" : number % 4 >= 2 ? "cyclic" : NULL;
    c.pieces = number / 2 % 3 == 1;
    c.recv_rows = c.pieces ? mp_pieces_room(&c) / 2 + c.alignment : 0; /* half of the ranks have tokens */
    c.in_place = number / 2 % 3 == 2;
    c.fixed_capacity = 0;
    c.copy_in = 0; /* experts of a rank that serves write where they are told to */
    c.works = 0x55555555;
    c.served = 1;
    c.timeout_ms = 30 * 1000;
    return c;
}

static mp_job_t job;
static mp_pieces_t pieces;
static uint64_t payload_of;

/* Combines whose rows of other nodes are encoded, at both ends; flags as the case has it. */
static void combine_quant(xep_combine_args_t *args)
{
    if (job.shape.sum_at_owner) args->flags = XEP_COMBINE_SUM_AT_OWNER;
    args->quant = job.shape.combine_quant;
}

/* more: another round follows, whose dispatch is announced early. */
static void work_round(int more)
{
    xep_dispatch_args_t args = mp_job_dispatch(&job);
    xep_handle_t *handle;
    if (job.c->pieces) {
        handle = mp_pieces_receive(&job, &args, 1);
    } else {
        if (job.c->in_place) mp_job_place(&job, &args);
        handle = mp_job_receive(&job, &args);
    }
    xep_combine_args_t combine = mp_job_combine(&job, handle);
    combine_quant(&combine);
    MP_OK(xep_combine(handle, &combine, NULL));
    mp_job_check_out(&job);
    if (more) MP_OK(xep_announce_dispatch(job.buffer));
    xep_handle_release(handle);
}

static xep_status_t run_experts(void *arg, xep_serve_call_t *call)
{
    (void)arg;
    mp_job_payload(&job, payload_of + call->dispatch);
    (void)mp_job_dispatch(&job);
    if (job.c->pieces) mp_pieces_served(&pieces, &job, call->handle);
    else mp_job_check_recv(&job, call->handle);
    call->topk_weights = mp_job_combine(&job, call->handle).topk_weights;
    return XEP_OK;
}

static void serve(void)
{
    xep_serve_args_t args = XEP_SERVE_ARGS_INIT;
    args.buffers = &job.buffer, args.count = 1, args.fn = run_experts;
    MP_OK(xep_serve(&args));
}

/* What follows is announced for each round, for all that follow at once, by one rank or by all, or not at all. */
static void work(uint32_t number)
{
    const uint64_t rounds = number % 3 == 1 && !job.c->pieces ? LAYERS : ROUNDS;
    for (uint64_t round = 0; round < rounds; round++) {
        mp_job_payload(&job, payload_of + round);
        if (rounds == LAYERS && round == 1 && (mp_rank() == 0 || number % 2 == 0))
            MP_OK(xep_announce_layers(job.buffer, LAYERS - 2));
        work_round(round + 1 < ROUNDS && rounds == ROUNDS && number % 3 == 0);
    }
    MP_OK(xep_step_end(&job.buffer, 1, XEP_STEP_LAST));
}

static void run(xep_group_t *group, uint32_t number)
{
    const mp_case_t c = make_case(number);
    const int is_quantized = number % 2 == 1 && !c.pieces && !c.sent && c.combine_dtype == XEP_DTYPE_DEFAULT;
    mp_job_begin(&job, &c, 7, group);
    job.shape.sum_at_owner = c.sent && job.shape.by_expert;
    job.shape.combine_quant = is_quantized ? XEP_QUANT_E4M3 : XEP_QUANT_NONE;
    payload_of = c.hidden;
    if (mp_rank() % 2 == 1) serve();
    else work(number);
    mp_job_close(&job);
}

int main(void)
{
    xep_group_t *group = mp_group();
    for (uint32_t i = 0; i < MP_SHAPES; i = mp_next_shape(i)) run(group, i);
    return mp_end(group);
}
