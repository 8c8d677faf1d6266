/* SPDX-License-Identifier: BSD-3-Clause */

/* The records ranks tell each other before rows move, and the verdict on them that every rank reaches alike. */
#include <string.h>

#include "normal_shared.h"

#define PARAM(_name, _kind, _index) XEP_AGREE_PARAM(_name, XEP_AGREE_##_kind, normal_record_t, params[_index])
static const xep_agree_param_t params[] = {
    PARAM("piece, from 1 (0: without XEP_DISPATCH_PIECES)", NUMBER, NORMAL_PIECES),
    PARAM("quant", NUMBER, NORMAL_QUANT),
    PARAM("dtype", DTYPE, NORMAL_DTYPE),
    PARAM("hidden", NUMBER, NORMAL_HIDDEN),
    PARAM("whether there are topk_weights", YES_NO, NORMAL_HAS_WEIGHTS),
    PARAM("topk", NUMBER, NORMAL_TOPK),
    PARAM("topk_idx_dtype", DTYPE, NORMAL_IDX_DTYPE),
    PARAM("nscales", NUMBER, NORMAL_SCALES),
    PARAM("scales_dtype", DTYPE, NORMAL_SCALES_DTYPE),
    PARAM(XEP_FIELDS_DIGEST, NUMBER, NORMAL_PAYLOADS),
    PARAM("whether there is a cached handle", YES_NO, NORMAL_CACHED),
    PARAM("whether rows are read in place", YES_NO, NORMAL_IN_PLACE),
};
#undef PARAM

/* A rank without tokens has no weights to show, and often no pointer: it agrees with either. */
static uint32_t dispatch_weights(const xep_dispatch_args_t *args)
{
    if (args->topk_weights != NULL) return 1;
    return args->tokens != 0 ? 0 : XEP_AGREE_ANY;
}

/*
 * Step 2: everything that the others need to compute the same places and the same verdict. The capacity is what this
 * rank takes, not what was asked for, so that all compare rows with the same number.
 */
void normal_make_record(normal_t *mode, const xep_op_t *op)
{
    const xep_dispatch_args_t *args = op->dispatch;
    normal_slot_t *slot = normal_slot(mode, op->slot);
    uint64_t room = mode->layout.common.recv_rows;

    slot->record = (normal_record_t){
        .epoch = op->epoch,
        .routing = slot->routing->epoch,
        .tokens = args->tokens,
        .capacity = args->capacity && args->capacity < room ? args->capacity : room,
        .slot = op->slot,
        .params =
            {
                [NORMAL_QUANT] = args->quant,
                [NORMAL_DTYPE] = args->dtype,
                [NORMAL_HIDDEN] = args->hidden,
                [NORMAL_HAS_WEIGHTS] = dispatch_weights(args),
                [NORMAL_TOPK] = args->topk,
                [NORMAL_IDX_DTYPE] = args->topk_idx_dtype,
                [NORMAL_SCALES] = args->nscales,
                [NORMAL_SCALES_DTYPE] = args->nscales ? args->scales_dtype : 0,
                [NORMAL_CACHED] = op->cached_slot != XEP_NO_SLOT,
                [NORMAL_PIECES] = (args->flags & XEP_DISPATCH_PIECES) != 0,
                [NORMAL_REFUSED] = op->refused,
            },
    };
}

/* ---- sending ---- */

/* The word that says that a record of this turn is there, in the heap of the reader or of this rank's forwarder. */
static uint64_t counts_offset(const normal_t *mode, const xep_op_t *op)
{
    return normal_line_there(mode, op) + offsetof(normal_line_t, counts);
}

/* Header and counts by plain stores, then the word with release. */
void normal_store_record(const void *opaque, const xep_op_t *op, uint32_t rank)
{
    const normal_t *mode = opaque;
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const xep_shape_t *shape = mode->kit.shape;
    char *to = mode->kit.base[rank] + normal_record_offset(mode, op->turn, shape->rank);
    *(normal_record_t *)to = slot->record;
    if (op->cached_slot == XEP_NO_SLOT && rank != shape->rank) { /* the own counts are taken from the plan */
        to += sizeof slot->record;
        memcpy(to, slot->routing->rows, shape->nranks * sizeof(uint32_t));
        to += shape->nranks * sizeof(uint32_t);
        memcpy(to, slot->routing->selections + mode->kit.first_expert[rank],
               xep_kit_experts(&mode->kit, rank) * sizeof(uint32_t));
    }
    xep_kit_signal(&mode->kit, rank, counts_offset(mode, op), op->epoch);
}

/* The record from where it is: header, rows, selections and tail are several places here, one there. */
int normal_tell(const normal_t *mode, const xep_op_t *op, const normal_told_t *told, uint32_t number,
                xep_transfer_t *transfer)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    const uint32_t counted = op->cached_slot == XEP_NO_SLOT;
    const struct {
        const void *src;
        size_t bytes;
    } arrays[] = {
        {&slot->record, sizeof slot->record},
        {slot->routing->rows, counted * mode->kit.shape->nranks * sizeof(uint32_t)},
        {told->selections, counted * told->experts * sizeof(uint32_t)},
        {told->tail, counted * told->tail_bytes},
    };
    if (number > 4) return 0;
    *transfer = (xep_transfer_t){.rows = 1, .offset = normal_record_offset(mode, op->turn, mode->kit.shape->rank)};
    if (number == 4) {
        *transfer = (xep_transfer_t){.signal = 1, .signal_offset = counts_offset(mode, op), .value = op->epoch};
        return 1;
    }
    for (uint32_t i = 0; i < number; i++) transfer->offset += arrays[i].bytes;
    transfer->src = arrays[number].src;
    transfer->bytes = arrays[number].bytes;
    return 1;
}

int normal_record_transfer(const void *opaque, const xep_op_t *op, uint32_t rank, uint32_t number,
                           xep_transfer_t *transfer)
{
    const normal_t *mode = opaque;
    const uint32_t *selections = normal_slot(mode, op->slot)->routing->selections + mode->kit.first_expert[rank];
    const normal_told_t told = {.selections = selections, .experts = xep_kit_experts(&mode->kit, rank)};
    return normal_tell(mode, op, &told, number, transfer);
}

/* ---- receiving ---- */

/* A record that no correct rank can have written: nothing is computed from it. */
static xep_status_t protocol_error(normal_t *mode, xep_op_t *op, uint32_t rank, const char *what, uint64_t value,
                                   uint64_t least, uint64_t most)
{
    return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
                               "invalid record from rank %u: %s: %llu (%llu to %llu)", rank, what,
                               (unsigned long long)value, (unsigned long long)least, (unsigned long long)most);
}

/* Places are computed from slot and capacity, memory is indexed by them: each is bounded by this rank's own shape. */
static xep_status_t check_header(normal_t *mode, xep_op_t *op, uint32_t rank, const normal_record_t *record)
{
    const xep_shape_t *shape = mode->kit.shape;
    if (record->epoch != op->epoch) return protocol_error(mode, op, rank, "epoch", record->epoch, op->epoch, op->epoch);
    if (record->slot >= shape->slots) return protocol_error(mode, op, rank, "slot", record->slot, 0, shape->slots - 1);
    if (record->tokens > shape->tokens)
        return protocol_error(mode, op, rank, "tokens", record->tokens, 0, shape->tokens);
    if (record->capacity > mode->layout.common.recv_rows)
        return protocol_error(mode, op, rank, "capacity", record->capacity, 0, mode->layout.common.recv_rows);
    return XEP_OK;
}

const char *normal_find_record(const normal_t *mode, const xep_op_t *op, uint32_t rank)
{
    return mode->records[rank] + normal_record_begin(mode, op->turn, rank);
}

xep_status_t normal_take_header(normal_t *mode, xep_op_t *op, uint32_t rank, normal_find_fn find)
{
    normal_record_t *record = &normal_slot(mode, op->slot)->from[rank];
    const char *from = find(mode, op, rank);
    if (from == NULL)
        return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_PROTOCOL,
                                   "the record of rank %u is lost: no rank that had it is left", rank);
    *record = *(const normal_record_t *)(const void *)from;
    return check_header(mode, op, rank, record);
}

static xep_status_t take_headers(normal_t *mode, xep_op_t *op, normal_find_fn find)
{
    const normal_record_t *from = normal_slot(mode, op->slot)->from;
    for (uint32_t i = 0; i < op->heard.count; i++) {
        uint32_t r = op->heard.rank[i];
        xep_status_t status = normal_take_header(mode, op, r, find);
        if (status != XEP_OK) return status;
        *xep_combine_slot_there(&mode->kit, op->slot, r) = from[r].slot;
    }
    return XEP_OK;
}

/* Where one rank has weights all rows have some: ranks without tokens had no say. */
static int have_weights(const normal_t *mode, const xep_op_t *op)
{
    const normal_record_t *from = normal_slot(mode, op->slot)->from;
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++)
        if (from[r].params[NORMAL_HAS_WEIGHTS] == 1) return 1;
    return 0;
}

/* Cached handles, and those of pieces, must be of the same dispatch everywhere: rows are not told again then. */
xep_status_t normal_compare_routings(normal_t *mode, xep_op_t *op)
{
    const normal_record_t *from = normal_slot(mode, op->slot)->from;
    for (uint32_t r = 1; r < mode->kit.shape->nranks; r++)
        if (from[r].routing != from[0].routing)
            return mode->kit.env->fail(mode->kit.env, op, XEP_ERR_MISMATCH,
                                       "rank 0 and rank %u disagree on the %shandle%s: of operation %llu, %llu", r,
                                       op->kind == XEP_OP_NEXT ? "" : "cached ",
                                       op->kind == XEP_OP_NEXT ? " whose next piece it is" : "",
                                       (unsigned long long)from[0].routing, (unsigned long long)from[r].routing);
    return XEP_OK;
}

/* Rows of rank to everyone must be what some routing can give, or places computed from them would be wild. */
static xep_status_t check_rows(normal_t *mode, xep_op_t *op, uint32_t rank, const uint32_t *rows)
{
    const normal_record_t *record = &normal_slot(mode, op->slot)->from[rank];
    uint64_t sum = 0, nranks = mode->kit.shape->nranks, topk = record->params[NORMAL_TOPK];
    for (uint32_t d = 0; d < mode->kit.shape->nranks; d++) {
        if (rows[d] > record->tokens)
            return protocol_error(mode, op, rank, "rows to a rank", rows[d], 0, record->tokens);
        sum += rows[d];
    }
    const uint64_t most = record->tokens * (topk < nranks ? topk : nranks);
    return sum <= most ? XEP_OK : protocol_error(mode, op, rank, "rows in all", sum, 0, most);
}

/*
 * Selections of the local experts, summed over the sources. At least one for each row, and at most topk: anything else
 * would show wrong counts to the user, though no memory would suffer.
 */
static xep_status_t add_selections(normal_t *mode, xep_op_t *op, uint32_t rank, const char *selections)
{
    const xep_shape_t *shape = mode->kit.shape;
    normal_routing_t *routing = normal_slot(mode, op->slot)->routing;
    uint64_t rows = routing->rank_rows[(size_t)rank * shape->nranks + shape->rank], sum = 0, *local = routing->local;
    for (uint32_t e = 0, experts = shape->local_experts; e < experts; e++) {
        uint32_t count;
        memcpy(&count, selections + e * sizeof count, sizeof count);
        local[e] += count;
        sum += count;
    }
    if (sum < rows || sum > rows * routing->topk)
        return protocol_error(mode, op, rank, "selections", sum, rows, rows * routing->topk);
    return XEP_OK;
}

/* The own counts are taken from the plan: the heap is memory that peers can write. */
static xep_status_t take_rows(normal_t *mode, xep_op_t *op, normal_find_fn find)
{
    const xep_shape_t *shape = mode->kit.shape;
    normal_routing_t *routing = normal_slot(mode, op->slot)->routing;
    size_t bytes = shape->nranks * sizeof(uint32_t);
    routing->sum = routing->places = 0;
    for (uint32_t i = 0; i < op->heard.count; i++) {
        uint32_t r = op->heard.rank[i], *rows = routing->rank_rows + (size_t)r * shape->nranks;
        memcpy(rows, r == shape->rank ? (const char *)routing->rows : find(mode, op, r) + sizeof(normal_record_t),
               bytes);
        xep_status_t status = check_rows(mode, op, r, rows);
        if (status != XEP_OK) return status;
        normal_digest_add(mode, routing, r);
    }
    return XEP_OK;
}

/*
 * Of ranks whose rows come: those of others count for nobody, and the record of one may be the copy that another rank
 * got, with that one's experts.
 */
static xep_status_t take_selections(normal_t *mode, xep_op_t *op)
{
    const xep_shape_t *shape = mode->kit.shape;
    normal_routing_t *routing = normal_slot(mode, op->slot)->routing;
    memset(routing->local, 0, shape->local_experts * sizeof *routing->local);
    for (uint32_t i = 0; i < op->with.count; i++) {
        uint32_t r = op->with.rank[i];
        const char *from = (const char *)(routing->selections + mode->kit.first_expert[shape->rank]);
        if (r != shape->rank)
            from = normal_find_record(mode, op, r) + sizeof(normal_record_t) +
                   (shape->nranks + mode->skips[r]) * sizeof(uint32_t);
        xep_status_t status = add_selections(mode, op, r, from);
        if (status != XEP_OK) return status;
    }
    return XEP_OK;
}

uint64_t normal_count_rows(const normal_t *mode, const normal_slot_t *slot, uint32_t rank)
{
    const uint32_t nranks = mode->kit.shape->nranks;
    uint64_t rows = 0;
    for (uint32_t r = 0; r < nranks; r++) rows += slot->routing->rank_rows[(size_t)r * nranks + rank];
    return rows;
}

/* The same matrix and the same capacities on every rank: all find the same rank that is too small, the lowest. */
void normal_judge_room(normal_t *mode, xep_op_t *op)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    if (xep_kit_state(op)->verdict != XEP_OK) return;
    for (uint32_t i = 0; i < op->heard.count; i++) {
        const uint32_t d = op->heard.rank[i];
        const uint64_t rows = normal_count_rows(mode, slot, d);
        if (rows <= slot->from[d].capacity) continue;
        xep_kit_state(op)->verdict =
            mode->kit.env->fail(mode->kit.env, op, XEP_ERR_OVERFLOW, "rank %u gets %llu rows and has room for %llu%s",
                                d, (unsigned long long)rows, (unsigned long long)slot->from[d].capacity,
                                mode->kit.shape->in_pieces ? " (params.recv_rows; or XEP_DISPATCH_PIECES)" : "");
        return;
    }
}

xep_status_t normal_compare_records(const xep_env_t *env, xep_op_t *op, const void *records, size_t stride)
{
    const size_t refused = offsetof(normal_record_t, params[NORMAL_REFUSED]);
    const char *said = (const char *)records + offsetof(normal_record_t, params);
    if (xep_agree_are_same(op, said, NORMAL_PARAMS * sizeof(uint32_t), stride)) return XEP_OK;
    xep_status_t status = xep_agree_calls(env, op, (const char *)records + refused, stride);
    return status == XEP_OK ? xep_agree(env, op, params, sizeof params / sizeof params[0], records, stride) : status;
}

static xep_status_t agree_on_params(normal_t *mode, xep_op_t *op)
{
    normal_slot_t *slot = normal_slot(mode, op->slot);
    const xep_env_t *env = mode->kit.env;
    normal_state(op)->weighted = slot->weighted = have_weights(mode, op);
    if (op->is_ruled) return xep_agree_decision(env, op);
    xep_status_t verdict = normal_compare_records(env, op, slot->from, sizeof *slot->from);
    return verdict == XEP_OK && op->cached_slot != XEP_NO_SLOT ? normal_compare_routings(mode, op) : verdict;
}

/*
 * The order matters: headers before parameters, and counts only when all parameters agree, as topk bounds them. What
 * disagrees is a verdict, and the operation goes on to its signals; what cannot be right ends it.
 */
xep_status_t normal_take_records(normal_t *mode, xep_op_t *op, normal_find_fn find)
{
    xep_kit_state_t *state = xep_kit_state(op);
    normal_slot_t *slot = normal_slot(mode, op->slot);
    xep_status_t status = take_headers(mode, op, find);

    if (status != XEP_OK) return status;
    state->verdict = agree_on_params(mode, op);
    normal_state(op)->concluded = 1;
    if (state->verdict != XEP_OK) return XEP_OK;
    if (op->cached_slot == XEP_NO_SLOT) {
        status = take_rows(mode, op, find);
        if (status == XEP_OK) status = take_selections(mode, op);
        if (status != XEP_OK) return status;
        normal_find_begins(mode, slot->routing);
    }
    if (!normal_state(op)->shown) op->recv->rows = slot->routing->src_begin[mode->kit.shape->nranks];
    return XEP_OK;
}
