/* SPDX-License-Identifier: BSD-3-Clause */

#include "normal_coded.h"

#include "normal_steps.h"

/* ---- memory ---- */

void normal_lay_coded(normal_t *mode)
{
    const xep_shape_t *shape = mode->kit.shape;
    const uint64_t per_slot = mode->layout.common.recv_rows * mode->layout.coded_stride;
    if (mode->kit.all_mapped || shape->in_pieces) return;
    mode->decoded = xep_kit_reserve(&mode->kit, mode->kit.env->threads,
                                    (mode->layout.max_dests + UINT64_C(2)) * normal_thread_row(mode));
    mode->coded = xep_kit_reserve(&mode->kit, shape->slots, normal_goes_to_ranks(mode) ? per_slot : 1);
    for (uint32_t s = 0; s < shape->slots && mode->coded != NULL; s++)
        normal_slot(mode, s)->coded = mode->coded + s * per_slot;
}

/* ---- as an owner ---- */

typedef struct encoding {
    const normal_t *mode;
    const xep_op_t *op;
    uint64_t begin, end; /* rows of the slot */
} encoding_t;

static void encode_share(void *arg, uint32_t thread, uint32_t nthreads)
{
    const encoding_t *encoding = arg;
    const xep_codec_t *codec = &normal_state(encoding->op)->codec;
    const uint64_t rows = encoding->end - encoding->begin, end = encoding->begin + rows * (thread + 1) / nthreads;
    char *coded = normal_slot(encoding->mode, encoding->op->slot)->coded;
    size_t stride;
    const char *outputs = xep_combine_outputs(&encoding->mode->kit, encoding->op, &stride);
    for (uint64_t i = encoding->begin + rows * thread / nthreads; i < end; i++)
        xep_codec_encode(codec, coded + i * codec->stride, outputs + i * stride);
}

/* As many as are put at once, by the whole team: while the wire has these, the next ones are encoded. */
static uint64_t encode(const normal_t *mode, const xep_op_t *op, uint64_t row, uint64_t end)
{
    const uint64_t most = XEP_PUT_BYTES / normal_state(op)->codec.stride + 1;
    encoding_t encoding = {.mode = mode, .op = op, .begin = row, .end = end - row < most ? end : row + most};
    mode->kit.env->parallel(mode->kit.env, encode_share, &encoding);
    return encoding.end;
}

/* Rows that the wire has refused are asked for again: those that are encoded go from one row of the slot to another. */
static int cut_coded(const void *opaque, const xep_op_t *op, uint32_t reader, uint32_t number, uint64_t *row_p,
                     xep_put_t *put)
{
    const normal_t *mode = opaque;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const normal_range_t range = normal_shows(mode, slot, reader);
    const uint64_t begin = normal_returned_begin(mode, slot, reader, mode->kit.shape->rank), row = range.at + *row_p;
    normal_state_t *state = normal_state(op);
    (void)number;
    if (*row_p >= range.rows) return 0;
    if (row < state->coded_begin || row >= state->coded_end) {
        state->coded_begin = row;
        state->coded_end = encode(mode, op, row, range.at + range.rows);
    }
    const char *from = slot->coded + row * state->codec.stride;
    const uint64_t rows = state->codec.quant == XEP_QUANT_LOGFMT ? 1 : state->coded_end - row;
    *put = (xep_put_t){.src = from,
                       .offset = xep_area_at(mode->layout.returned, slot->from[reader].slot) +
                                 (begin + *row_p) * state->codec.stride,
                       .bytes = (rows - 1) * state->codec.stride + xep_codec_bytes(&state->codec, from),
                       .rows = rows};
    return 1;
}

static int coded_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                          xep_transfer_t *transfer)
{
    const int more = normal_combine_transfer(opaque, op, rank, number, transfer);
    if (number == 0) *transfer = (xep_transfer_t){.cut = cut_coded, .blocked = op->coming != 0};
    return more;
}

/* ---- steps ---- */

static xep_status_t decode_and_sum(void *mode, xep_op_t *op)
{
    const normal_routing_t *routing = normal_slot(mode, op->slot)->routing;
    return normal_sum_terms(mode, op, &(normal_terms_t){routing->first, routing->dests, NORMAL_CODED});
}

const xep_step_t normal_coded_steps[] = {
    {.at = XEP_AT_OFFER, .run = xep_step_send, .transfers = coded_transfer, .kinds = XEP_KIND_CASTS},
    {.at = XEP_AT_SUM, .does = "decode and sum", .run = decode_and_sum, .kinds = XEP_KIND_CASTS},
    {0},
};

/* ---- begin ---- */

/* A buffer for pieces returns outputs before it knows whether there is another piece: they stay as they are. */
xep_status_t normal_choose_coded(normal_t *mode, xep_op_t *op)
{
    const xep_env_t *env = mode->kit.env;
    const xep_combine_args_t *args = op->combine;
    if (mode->kit.all_mapped || env->shape->in_pieces) return XEP_OK;
    if (mode->coded == NULL || mode->decoded == NULL)
        return env->fail(env, op, XEP_ERR_NO_MEMORY, "there was no memory for encoded rows when the buffer was made");
    normal_state(op)->codec =
        xep_codec_select(args->quant, args->quant_scale, args->hidden, env->shape->by_nodes, env->simd);
    xep_kit_state(op)->casts = XEP_STEPS_CASTS;
    return XEP_OK;
}
