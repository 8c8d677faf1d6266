/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The mode "ll": low latency. A row for each selection, in expert order, cast on the way if asked for; combine weighs
 * and sums them. The receiver pulls in both operations, so that a sender never waits for anyone.
 *
 * dispatch, epoch n, turn q; i = q % ring, ring = 2 * slots. Every rank, as a source, to each rank d:
 *  1. writes its parcel once, into entry i of its own ring: topk_idx, weights if they are sent, the rows, cast, with their scales.
 *     Where d is not mapped: puts the same parcel, with only the rows d needs, into d's inbox [i][self].
 *  2. fills d's notice [i][self] and then its word:  epoch = n.        The send phase ends here.
 * and as a receiver:
 *  3. waits until all its notices [i][r] are at epoch n.
 *  4. compares them, and the most rows they announce, or where those do not fit the indices of all, with the room every rank said
 *     it has: all ranks read the same, so all come to the same verdict without another word. If it is not XEP_OK,
 *     nothing is moved and this is the end.
 *  5. counts the indices that are its own experts, so knows where the rows of each (expert, source) begin, and copies each row
 *     from the parcel to its places. Rows, indices, tokens are in memory nobody else writes.
 *
 * combine, epoch n, of a handle. Every rank is an owner (of the rows it received) and a reader (of its tokens). "Slot of
 * r" is the one r chose for the dispatch, its notice told it.
 *  1. owner: waits until the last combine from this slot was read: mail [slot][r].read >= its epoch for all r.
 *  2. owner: copies rows of the user's own memory into the slot's input, those of each reader together; writes where the
 *     rows of each (expert, reader) begin into the slot's table. To readers that are not mapped it puts each row into the
 *     area "returned" of the reader's slot, at [token][k]; in LogFMT if asked to.
 *  3. owner to each r: its offer and then the word  r.mail [own slot][self].ready = n.   The send phase ends here.
 *  4. reader: waits until mail [slot of d][d].ready >= n for all d, and compares the offers.
 *  5. reader: sums each token's rows, k ascending: in d's input at the begin of (expert, self) plus the number of
 *     earlier selections of that expert, or in its own "returned".
 *  6. reader to each d:  d.mail [slot of d][self].read = n.
 *
 * Why a parcel, an inbox or a notice is not overwritten before it was read: entry i is written again in turn q + ring.
 * The core begins that turn at a rank after turn q + slots is complete there, which took the notices of all ranks
 * for q + slots; a rank sends those after its own turn q is complete, and so after it has read entry i of everybody.
 * The same turns everywhere, the same entry everywhere: nothing about slots needs to be known, nothing is given back.
 *
 * Why an input, a table or an offer is not overwritten before it was read: step 1, and input() waits for the same.
 * Why "returned" is not: the owner writes it again for the same handle after it has seen "read" of the last combine, and
 * for a new handle in the reader's slot after the notice of its dispatch, which the reader sends when nothing
 * of the old handle is in flight there.
 *
 * Epochs only grow; nothing is ever cleared. A notice whose word is n says so even when it brings no rows.
 *
 * Ordering. Between mapped ranks plain stores, then the word with release; the reader loads it with acquire. "read" is
 * stored with release after the loads it stands for. Otherwise put_signal, ordered after every earlier put to that
 * rank. Streaming stores go into memory only this rank reads, or are fenced by the thread that made them before the word.
 *
 * Mapping is mutual: a source that maps d knows that d maps it.
 *
 * What can go wrong: ranks disagree, or rows do not fit: see dispatch 4; offers that differ end combine with
 * XEP_ERR_MISMATCH after step 6. A notice or begin that no correct rank can have written, or more rows than were announced:
 * XEP_ERR_PROTOCOL at once, nothing of it is used. A rank that does not come: waiting goes on until the core's deadline.
 */
#ifndef XEP_LL_H
#define XEP_LL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cast.h>
#include <copy.h>
#include <logfmt.h>
#include <rows.h>
#include <weigh.h>
#include <words.h>
#include <xep/plugin.h>

/* ---- in the heap ------------------------------------------------------------ */

/** One line per (ring entry, rank); written by that rank, read by the heap's owner. */
typedef struct ll_notice {
    _Atomic uint64_t epoch; /* of the dispatch whose parcel is there; all else was written before */
    uint64_t capacity;      /* rows the writer itself has room for */
    uint64_t selections;    /* of all its tokens */
    uint32_t tokens;
    uint32_t most;          /* rows of the expert that gets most of them */
    uint32_t slot;          /* of the writer */
    uint32_t alignment;     /* of its experts' first rows */
    uint32_t hidden;
    uint32_t topk;
    uint32_t nscales;
    uint8_t dtype;          /* of x */
    uint8_t quant;
    uint8_t scales_dtype;
    uint8_t sends_weights;
    uint8_t padded;         /* its own rows are arranged so */
    uint8_t reserved[7];
} ll_notice_t;
_Static_assert(sizeof(ll_notice_t) == 64, "a cache line");

/** What a combine brings. In the owner's line of mail at the reader. */
typedef struct ll_offer {
    uint64_t epoch;
    uint32_t dtype;
    uint32_t hidden;
    uint32_t flags;
    uint32_t reserved;
} ll_offer_t;
_Static_assert(sizeof(ll_offer_t) == 24, "wire-visible");

/** One line per (slot, rank); written by that rank, read by the heap's owner. */
typedef struct ll_mail {
    _Atomic uint64_t ready; /* combine of this epoch may be read in the writer's slot */
    _Atomic uint64_t read;  /* combine of this epoch was read from the heap owner's slot */
    ll_offer_t offer;       /* published by ready */
    uint64_t reserved[3];
} ll_mail_t;
_Static_assert(sizeof(ll_mail_t) == 64, "a cache line");
_Static_assert(sizeof(_Atomic uint64_t) == 8, "words are shared by processes");

/** Offsets in a parcel: what a source says to all in one dispatch. They follow from its notice. */
typedef struct ll_parcel {
    uint64_t weights; /* [T][K] float, where they are sent; behind topk_idx [T][K] int32_t */
    uint64_t rows;    /* [T] records: a row and its scales */
    size_t row_bytes;
    size_t scales;    /* in a record */
    size_t scale_words;
    size_t stride;    /* of records */
} ll_parcel_t;

/** Offsets in a heap; the areas of a slot are relative to it. In memory order. */
typedef struct ll_layout {
    uint64_t recv_rows;      /* rows of a slot */
    uint64_t local_experts;  /* most of any rank */
    uint64_t scale_words;    /* most of a row */
    uint64_t combine_stride; /* between rows of input */
    uint64_t return_stride;  /* between rows of returned */
    uint64_t notices;        /* [ring][R] ll_notice_t */
    uint64_t mail;           /* [slots][R] ll_mail_t */
    uint64_t tables;         /* [slots][R] of table_bytes: uint32_t first row of each expert */
    uint64_t table_bytes;
    uint64_t parcels;        /* [ring], parcel_bytes each */
    uint64_t inboxes;        /* [ring][R], parcel_bytes each: touched only where ranks are not mapped */
    uint64_t parcel_bytes;
    uint64_t slots;          /* [slots], slot_bytes each */
    uint64_t slot_bytes;
    uint64_t tokens;         /* [recv_rows] int32_t */
    uint64_t idx;            /* [recv_rows] of the dispatch's index type */
    uint64_t weights;        /* [recv_rows] float */
    uint64_t scales;         /* [recv_rows][scale_words], or the other way round */
    uint64_t x;              /* [recv_rows] rows */
    uint64_t input;          /* [recv_rows] rows: pulled by combine */
    uint64_t returned;       /* [tokens][K] rows: put by owners that are not mapped */
    uint64_t bytes;          /* of the heap */
} ll_layout_t;

/* ---- in private memory ------------------------------------------------------ */

/** A received row: where it comes from, where it goes. */
typedef struct ll_pick {
    uint32_t token, k;
    uint32_t row; /* of this rank; at first the local expert */
} ll_pick_t;

/** What a handle needs to know for its combines, and shows in recv. */
typedef struct ll_slot {
    uint64_t tokens;      /* of this rank */
    uint32_t topk;
    int weights_given;
    int weights_sent;
    int32_t *experts;     /* [T][K] or -1 */
    float *weights;       /* [T][K] given to dispatch; 1 where none were */
    ll_notice_t *from;    /* [R] as received, checked */
    uint32_t *pair_begin; /* [L][R] */
    uint32_t *pair_count; /* [L][R] */
    uint64_t *expert_begin, *expert_count, *expert_rows; /* [L] */
    uint64_t *origin;     /* [recv_rows] token * K + k of each row; only where some rank is not mapped */
    uint64_t combined;    /* epoch of the last combine offered from here; 0: none */
    char *coded;          /* [recv_rows] rows in LogFMT, return_stride apart, on their way to ranks that are not mapped */
} ll_slot_t;

/** Where the rows are that an owner has for this rank, in a combine. */
typedef struct ll_source {
    const char *rows;
    size_t stride;
    int returned; /* at [token][k]; else by expert, in the order of this rank's selections */
} ll_source_t;

typedef struct ll {
    const xep_env_t *env;
    const xep_shape_t *shape;
    ll_layout_t layout;
    uint32_t ring;
    char **base;            /* [R] heap of a rank; NULL: not mapped */
    int all_mapped;
    uint32_t *owner;        /* [E] rank */
    uint32_t *first_expert; /* [R + 1] */
    ll_slot_t *slots;       /* [slots] */
    /* scratch, of one step at a time: */
    uint64_t *counts;       /* [E + 1] selections of each expert, of this rank or of all; the last: of none */
    uint32_t *next_row;     /* [E + 1] */
    ll_pick_t *picks;       /* [recv_rows + K + 1] by source rank, token, selection */
    uint32_t *input_begin;  /* [L][R] of the combine that is offered: first row in the input */
    uint64_t *pick_begin;   /* [R + 1] */
    const char **parcels;   /* [R] of the dispatch that is received */
    ll_parcel_t *places;    /* [R] and what is where in them */
    ll_source_t *sources;   /* [R] */
    const void **rows;      /* [T * (K + 2)] rows to sum, by token */
    float *row_weights;     /* likewise */
    uint32_t *row_begin;    /* [T + 1] in both */
    char *decoded;          /* [threads][K] rows of combine_stride */
    void *arena;            /* all of the arrays above */
    char *coded;            /* those of the slots; NULL where all ranks are mapped, or there was no memory */
} ll_t;

/** How far a sequence of puts to one rank after the other has come. */
typedef struct ll_cursor {
    uint32_t peer;   /* 0 .. R: rank (self + 1 + peer) % R is next, so that no rank is everyone's first */
    uint32_t part;   /* of what this rank gets */
    uint32_t expert; /* combine: whose row is next */
    uint64_t item;   /* token, or row of the expert */
} ll_cursor_t;

/** Private state of an operation. */
typedef struct ll_state {
    uint32_t step;
    xep_status_t verdict; /* XEP_OK, or the error every rank gets */
    ll_cursor_t cursor;
    ll_parcel_t parcel;   /* dispatch: of this rank */
    ll_notice_t notice;   /* dispatch: source of puts, unchanged until flushed */
    ll_offer_t offer;     /* combine: likewise */
} ll_state_t;

/**
 * A step of an operation: run takes it as far as it goes. XEP_OK: the next step is due; XEP_INPROGRESS or an
 * error: run it again.
 */
typedef struct ll_step {
    const char *name; /* what is waited for, in the plural */
    xep_status_t (*run)(ll_t *mode, xep_op_t *op);
    xep_word_fn word; /* what the step waits for from each rank; NULL: not for words */
    int sends; /* of the send phase: taken before dispatch or combine returns, as far as nothing is to be waited for */
} ll_step_t;

/** Ends with a step whose run is NULL. */
extern const ll_step_t ll_dispatch_steps[], ll_combine_steps[];

static inline ll_state_t *ll_state(const xep_op_t *op)
{
    return op->state;
}

static inline const ll_step_t *ll_step(const xep_op_t *op)
{
    return &(op->kind == XEP_OP_DISPATCH ? ll_dispatch_steps : ll_combine_steps)[ll_state(op)->step];
}

/** Own memory at an offset. */
static inline void *ll_own(const ll_t *mode, uint64_t offset)
{
    return (char *)mode->env->heap + offset;
}

/* ---- ll_heap.c: places ---- */

xep_status_t ll_layout_make(const xep_shape_t *shape, ll_layout_t *layout);
xep_status_t ll_heap_size(const xep_shape_t *shape, uint64_t *bytes_p, uint64_t *recv_rows_p);

/** Of the parcel a notice announces. */
void ll_parcel_make(const ll_notice_t *notice, ll_parcel_t *parcel);

/** Offset of an area (layout->x, ...) of a slot of any rank. */
uint64_t ll_area(const ll_t *mode, uint32_t slot, uint64_t area);

/** Offset of the notice of rank for a turn; of a parcel in its source's heap, and in an inbox. */
uint64_t ll_notice_offset(const ll_t *mode, uint64_t turn, uint32_t rank);
uint64_t ll_parcel_offset(const ll_t *mode, uint64_t turn);
uint64_t ll_inbox_offset(const ll_t *mode, uint64_t turn, uint32_t rank);

/** Offset of the line of mail that rank writes, and of the table for rank. */
uint64_t ll_mail_offset(const ll_t *mode, uint32_t slot, uint32_t rank);
uint64_t ll_table_offset(const ll_t *mode, uint32_t slot, uint32_t rank);

/* ---- ll_send.c: dispatch 1 and 2 ---- */

/** Takes the routing of op into the slot, fills the parcel and tells the mapped ranks. XEP_ERR_INVALID, XEP_ERR_UNSUPPORTED. */
xep_status_t ll_send(ll_t *mode, xep_op_t *op);

/** Puts the parcel to the ranks that are not mapped. */
xep_status_t ll_put_parcels(ll_t *mode, xep_op_t *op);

/* ---- ll_receive.c: dispatch 4 and 5 ---- */

xep_status_t ll_receive(ll_t *mode, xep_op_t *op);

/* ---- ll_place.c: the rows of 5 ---- */

/** Lists which rows come from where, and counts them by pairs. XEP_ERR_PROTOCOL: there are more than a slot has. */
xep_status_t ll_list_rows(ll_t *mode, xep_op_t *op);

/** Gives each row on the list its place: next_row [L] is the first of each expert. */
void ll_number_rows(ll_t *mode);

/** Copies rows, scales and weights as listed. */
void ll_place_rows(ll_t *mode, xep_op_t *op);

/* ---- ll_offer.c: combine 1 to 3 ---- */

int ll_is_drained(const ll_t *mode, uint32_t slot);

/** Checks what only the mode can check. */
xep_status_t ll_check_combine(ll_t *mode, xep_op_t *op);

xep_status_t ll_drain(ll_t *mode, xep_op_t *op);
xep_status_t ll_offer(ll_t *mode, xep_op_t *op);
xep_status_t ll_put_rows(ll_t *mode, xep_op_t *op);

/* ---- ll_sum.c: combine 4 to 6 ---- */

xep_status_t ll_sum(ll_t *mode, xep_op_t *op);
xep_status_t ll_put_read(ll_t *mode, xep_op_t *op);

/* ---- ll_steps.c ---- */

/** Until all ranks' words of op's step are there. */
xep_status_t ll_wait(ll_t *mode, xep_op_t *op);

/** Says what a wire's error is; returns status. */
xep_status_t ll_wire_status(ll_t *mode, xep_op_t *op, xep_status_t status);

/** Until the wire has sent what is ours. */
xep_status_t ll_flush(ll_t *mode, xep_op_t *op);

/** Stores a word in the heap of a mapped rank. */
static inline void ll_store_word(const ll_t *mode, uint32_t rank, uint64_t offset, uint64_t value)
{
    atomic_store_explicit((_Atomic uint64_t *)(void *)(mode->base[rank] + offset), value, memory_order_release);
}

#endif
