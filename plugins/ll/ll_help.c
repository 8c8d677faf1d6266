/* SPDX-License-Identifier: BSD-3-Clause */

/* Dispatch: a source that has its own rows copies a share of those it sent ("help" in ll.h). */
#include <string.h>

#include "ll.h"

/*
 * Where a source has fewer chunks than this for a rank nobody helps: so little is copied before help would come.
 * MOST_TRIES: an exchange fails when the other side was faster, which it is once for each chunk that it takes.
 */
enum {
    LEAST_CHUNKS = 4,
    CHUNKS_BITS = XEP_FEED_ROWS_BITS / 2,
    MOST_CHUNKS = (1 << CHUNKS_BITS) - 1,
    MOST_TRIES = 10000
};

/** In the heap of the receiver, a line for each (ring entry, source). */
typedef struct claim {
    _Atomic uint64_t taken; /* xep_rows_word() of: chunks from the front << CHUNKS_BITS | chunks from the back */
    _Atomic uint64_t done;  /* written by the source: xep_rows_word() of chunks that it has copied */
} claim_t;
_Static_assert(sizeof(claim_t) <= LL_CLAIM_BYTES, "one line");

static uint64_t claim_offset(const ll_t *mode, const xep_op_t *op, uint32_t source)
{
    return mode->layout.claims + xep_notices_entry_of(&mode->kit, op->turn, source) * LL_CLAIM_BYTES;
}

static claim_t *claim_of(const ll_t *mode, const xep_op_t *op, uint32_t rank, uint32_t source)
{
    const uint64_t offset = claim_offset(mode, op, source);
    if (rank == mode->kit.shape->rank) return xep_kit_own(&mode->kit, offset);
    return (claim_t *)(void *)(mode->kit.base[rank] + offset);
}

/* ---- chunks: source and receiver compute the same, from the notice of the source ---- */

uint8_t ll_chunk_said(const ll_t *mode)
{
    uint8_t log2 = 0;
    while (log2 < 63 && mode->kit.env->part_bytes >> log2 > 1) log2++;
    return log2;
}

static uint64_t rows_of_chunk(const ll_t *mode, const xep_op_t *op, uint32_t source, uint64_t rows)
{
    uint64_t bytes = UINT64_C(1) << ll_slot(mode, op->slot)->from[source].chunk, least = rows / MOST_CHUNKS + 1,
             chunk = bytes / mode->parcels[source].row_bytes;
    return chunk < least ? least : chunk;
}

/* The last one may be shorter. */
static uint64_t chunks_of(uint64_t rows, uint64_t chunk)
{
    return rows / chunk + (rows % chunk != 0);
}

/* 0: nobody helps with so few. Of sources with less than a chunk that is known without a division. */
static uint64_t count_chunks(const ll_t *mode, const xep_op_t *op, uint32_t source, uint64_t rows)
{
    if (rows * mode->parcels[source].row_bytes >> ll_slot(mode, op->slot)->from[source].chunk == 0) return 0;
    uint64_t chunks = chunks_of(rows, rows_of_chunk(mode, op, source, rows));
    return chunks < LEAST_CHUNKS ? 0 : chunks;
}

/* Whether ranks may help one another in a dispatch; all of them conclude the same. */
static int may_help(const ll_t *mode, const xep_op_t *op)
{
    return mode->kit.all_mapped && mode->kit.env->out == NULL && op->kind == XEP_OP_DISPATCH &&
           ll_slot(mode, op->slot)->pieces == 1 && (op->dispatch->flags & XEP_DISPATCH_IN_PLACE) == 0;
}

/* ---- taking: the receiver from the front, the source from the back ---- */

typedef struct chunks {
    uint64_t first, count;
} chunks_t;

/*
 * Up to most of all chunks, of which nobody has any of these. front: how many the receiver has, if that is the caller,
 * else UINT64_MAX. XEP_INPROGRESS: none is left. XEP_ERR_PROTOCOL: no correct peer has written what is there; its
 * reason is the caller's to say.
 */
static xep_status_t take(claim_t *claim, uint64_t epoch, uint64_t all, uint64_t most, uint64_t front, chunks_t *chunks)
{
    uint64_t word = atomic_load_explicit(&claim->taken, memory_order_relaxed);
    for (uint32_t i = 0; i < MOST_TRIES; i++) {
        const uint64_t taken = xep_rows_of(word, epoch), ahead = taken >> CHUNKS_BITS, behind = taken & MOST_CHUNKS;
        if (ahead + behind > all || (front != UINT64_MAX && front != ahead)) return XEP_ERR_PROTOCOL;
        const uint64_t left = all - ahead - behind, count = left < most ? left : most;
        if (count == 0) return XEP_INPROGRESS;
        const uint64_t next = front != UINT64_MAX ? taken + (count << CHUNKS_BITS) : taken + count;
        *chunks = (chunks_t){front != UINT64_MAX ? ahead : all - behind - count, count};
        if (atomic_compare_exchange_strong_explicit(&claim->taken, &word, xep_rows_word(epoch, next),
                                                    memory_order_relaxed, memory_order_relaxed))
            return XEP_OK;
    }
    return XEP_ERR_PROTOCOL;
}

/* ---- as a receiver ---- */

static uint64_t rows_from(const ll_t *mode, uint32_t source)
{
    return mode->pick_begin[source + 1] - mode->pick_begin[source];
}

int ll_is_shared(const ll_t *mode, const xep_op_t *op, uint32_t source)
{
    return source != mode->kit.shape->rank && may_help(mode, op) &&
           count_chunks(mode, op, source, rows_from(mode, source)) != 0;
}

/* What a source has taken it writes, even where this rank could be faster: so its word is waited for. */
xep_status_t ll_take_front(ll_t *mode, xep_op_t *op, uint32_t source, uint64_t *begin_p, uint64_t *end_p)
{
    ll_slot_t *slot = ll_slot(mode, op->slot);
    const uint64_t rows = rows_from(mode, source), all = count_chunks(mode, op, source, rows),
                   chunk = rows_of_chunk(mode, op, source, rows), front = chunks_of(slot->copied[source], chunk);
    chunks_t chunks;
    xep_status_t status =
        take(claim_of(mode, op, mode->kit.shape->rank, source), op->epoch, all, mode->kit.env->threads, front, &chunks);
    if (status == XEP_ERR_PROTOCOL)
        return mode->kit.env->fail(mode->kit.env, op, status, "rank %u takes rows that it cannot have to copy", source);
    if (status == XEP_INPROGRESS) slot->helped[source] = all - front;
    if (status != XEP_OK) return status;
    *begin_p = chunks.first * chunk;
    *end_p = (chunks.first + chunks.count) * chunk;
    if (*end_p > rows) *end_p = rows;
    return XEP_OK;
}

const _Atomic uint64_t *ll_help_word(const ll_t *mode, const xep_op_t *op, uint32_t source, uint64_t *value_p)
{
    const uint64_t chunks = ll_slot(mode, op->slot)->helped[source];
    if (chunks == 0) return NULL;
    *value_p = xep_rows_word(op->epoch, chunks);
    return &claim_of(mode, op, mode->kit.shape->rank, source)->done;
}

int ll_is_helped(const ll_t *mode, const xep_op_t *op)
{
    uint64_t value;
    for (uint32_t s = 0; s < mode->kit.shape->nranks; s++) {
        const _Atomic uint64_t *word = ll_help_word(mode, op, s, &value);
        if (word != NULL && atomic_load_explicit(word, memory_order_acquire) < value) return 1;
    }
    return 0;
}

/* ---- as a source ---- */

/** The rank that is helped, and the rows that it gets of this one, listed as the picks of their receiver are. */
typedef struct help {
    const ll_t *mode;
    uint32_t rank;
    uint64_t rows, begin, end; /* all, and those that are copied now */
    char *x;                   /* of its slot */
    size_t stride;
    xep_copy_fn copy;
} help_t;

/* Of the others, the rank that gets most of this one's rows. */
static void find_busiest(ll_t *mode, const xep_op_t *op, help_t *help)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    memset(mode->counts, 0, mode->kit.shape->experts * sizeof *mode->counts);
    for (uint64_t i = 0; i < slot->tokens * slot->topk; i++)
        if (slot->experts[i] >= 0) mode->counts[slot->experts[i]]++;
    for (uint32_t r = 0; r < mode->kit.shape->nranks; r++) {
        uint64_t rows = 0;
        for (uint32_t e = mode->kit.first_expert[r]; e < mode->kit.first_expert[r + 1]; e++) rows += mode->counts[e];
        if (r == mode->kit.shape->rank || rows <= help->rows) continue;
        help->rank = r;
        help->rows = rows;
    }
}

/*
 * The first row of this rank at each expert of the other one, by its own rule (lay_rows() in ll_receive.c), in
 * next_row. Heads are memory of others: 0, and nothing is to be written, where rows would not fit.
 */
static int lay_for(ll_t *mode, const xep_op_t *op, uint32_t rank)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const ll_notice_t *there = &slot->from[rank];
    const uint32_t first = mode->kit.first_expert[rank], experts = xep_kit_experts(&mode->kit, rank),
                   self = mode->kit.shape->rank;
    const uint64_t padded_rows = there->padded ? mode->kit.shape->nranks * mode->kit.shape->tokens : 0;
    uint64_t row = 0;
    memset(mode->counts, 0, experts * sizeof *mode->counts);
    for (uint32_t s = 0; s < mode->kit.shape->nranks; s++) {
        /* own ones as list_for() has them, and not from the heap */
        const int32_t *idx = s == self ? slot->experts : (const int32_t *)(const void *)mode->parcels[s].head;
        const uint64_t selections = (uint64_t)slot->from[s].tokens * slot->from[s].topk;
        for (uint32_t e = 0; e < experts && s == self; e++) mode->next_row[e] = (uint32_t)mode->counts[e];
        for (uint64_t i = 0; i < selections; i++)
            if ((uint32_t)idx[i] - first < experts) mode->counts[(uint32_t)idx[i] - first]++;
    }
    for (uint32_t e = 0; e < experts; e++) {
        const uint64_t begin = padded_rows != 0 ? e * padded_rows : row, end = begin + mode->counts[e];
        mode->next_row[e] += (uint32_t)begin;
        row = begin + ll_align_rows(mode->counts[e], there->alignment);
        if (end > mode->layout.common.recv_rows) return 0;
    }
    return 1;
}

/* In the order of the receiver's picks of this source. The list of this rank's own picks is no more. */
static void list_for(ll_t *mode, const xep_op_t *op, uint32_t rank)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const uint32_t first = mode->kit.first_expert[rank], experts = xep_kit_experts(&mode->kit, rank);
    ll_pick_t *pick = mode->picks;
    mode->listed = 0;
    for (uint64_t i = 0; i < slot->tokens * slot->topk; i++) {
        const uint32_t expert = (uint32_t)slot->experts[i] - first;
        if (expert < experts)
            *pick++ = (ll_pick_t){.token = (uint32_t)(i / slot->topk), .row = mode->next_row[expert]++};
    }
}

static void help_share(void *arg, uint32_t thread, uint32_t nthreads)
{
    const help_t *help = arg;
    const ll_t *mode = help->mode;
    const ll_parcel_t *at = &mode->parcels[mode->kit.shape->rank];
    const uint64_t rows = help->end - help->begin;
    const ll_pick_t *pick = mode->picks + help->begin + rows * thread / nthreads,
                    *last = mode->picks + help->begin + rows * (thread + 1) / nthreads;
    for (; pick < last; pick++) {
        const ll_pick_t *next = pick + 1 < last ? pick + 1 : pick;
        help->copy(help->x + pick->row * help->stride, at->items + pick->token * at->stride, at->row_bytes,
                   at->items + next->token * at->stride);
    }
    xep_stores_fence();
}

/* Rows first, then the word for them. A receiver whose words make no sense is not helped any more. */
static void copy_for(ll_t *mode, const xep_op_t *op, help_t *help)
{
    const uint32_t self = mode->kit.shape->rank;
    const uint64_t all = count_chunks(mode, op, self, help->rows), chunk = rows_of_chunk(mode, op, self, help->rows);
    claim_t *claim = claim_of(mode, op, help->rank, self);
    chunks_t chunks;
    uint64_t done = 0;
    while (take(claim, op->epoch, all, mode->kit.env->threads, UINT64_MAX, &chunks) == XEP_OK) {
        help->begin = chunks.first * chunk;
        help->end = (chunks.first + chunks.count) * chunk;
        if (help->end > help->rows) help->end = help->rows;
        mode->kit.env->parallel(mode->kit.env, help_share, help);
        done += chunks.count;
        xep_kit_signal(&mode->kit, help->rank, claim_offset(mode, op, self) + offsetof(claim_t, done),
                       xep_rows_word(op->epoch, done));
    }
}

/*
 * Only a rank that has had less to copy than it has given another one to do, and that as it is known anyway: an even
 * load costs two comparisons.
 */
void ll_help(ll_t *mode, const xep_op_t *op)
{
    const ll_slot_t *slot = ll_slot(mode, op->slot);
    const ll_parcel_t *own = &mode->parcels[mode->kit.shape->rank];
    const uint64_t sent = slot->tokens * slot->topk, received = mode->pick_begin[mode->kit.shape->nranks];
    help_t help = {.mode = mode};
    if (!may_help(mode, op) || mode->listed != op->epoch || 2 * received >= sent) return;
    if (count_chunks(mode, op, mode->kit.shape->rank, sent) == 0) return;
    find_busiest(mode, op, &help);
    if (2 * received >= help.rows || count_chunks(mode, op, mode->kit.shape->rank, help.rows) == 0) return;
    if (help.rows > mode->layout.common.recv_rows || !lay_for(mode, op, help.rank)) return;
    list_for(mode, op, help.rank);
    help.x = mode->kit.base[help.rank] + xep_area_at(mode->layout.common.x, slot->from[help.rank].slot);
    help.stride = xep_row_stride(own->row_bytes);
    help.copy = xep_copy_for(mode->kit.env, help.rows * own->row_bytes);
    copy_for(mode, op, &help);
}
