/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The mode "ll": low latency. A row for each selection, in expert order, cast on the way if asked for; combine weighs
 * and sums them. The receiver pulls in both operations, so that a sender never waits for anyone.
 *
 * dispatch, epoch n, turn q; i = q % ring, ring = 2 * slots. Every rank, as a source, to each rank d:
 *  1. writes its parcel once, into entry i of its own ring: topk_idx, weights if they are sent, the rows, cast,
 *     with their scales. Where d is not mapped: puts the same parcel, with only the rows d needs, into what was
 *     delivered to d [i][self].
 *  2. fills d's notice [i][self] and then its word:  epoch = n.        The send phase ends here.
 * and as a receiver:
 *  3. waits until all its notices [i][r] are at epoch n.
 *  4. compares them, and the most rows they announce, or where those do not fit the indices of all, with the room
 *     every rank said it has: all ranks read the same, so all come to the same verdict without another word. If it is
 *     not XEP_OK, nothing is moved and this is the end.
 *  5. counts the indices that are its own experts, so knows where the rows of each (expert, source) begin, and
 *     copies each row from the parcel to its places. Rows, indices, tokens are in memory nobody else writes.
 *
 * combine, epoch n, of a handle: the handshake of the kit (handshake.h). Every rank is an owner (of the rows it
 * received) and a reader (of its tokens). "Slot of r" is the one r chose for the dispatch, its notice told it.
 *  1. owner: drain.
 *  2. owner: copies rows of the user's own memory into the slot's input, those of each reader together; writes
 *     where the rows of each (expert, reader) begin into the slot's table. To readers that are not mapped it puts
 *     each row into the area "returned" of the reader's slot, at [token][k]; in LogFMT if asked to.
 *  3. owner: offer. The send phase ends here.
 *  4. reader: ready.
 *  5. reader: sums each token's rows, k ascending: in d's input at the begin of (expert, self) plus the number of
 *     earlier selections of that expert, or in its own "returned".
 *  6. reader: read. As in normal.h, it may stay with the wire until the next operation.
 *
 * Why a parcel, delivered or not, or a notice is not overwritten before it was read: notices.h says it.
 *
 * Why an input, a table or an offer is not overwritten before it was read: step 1, and input() waits for the same.
 * Why "returned" is not: the owner writes it again for the same handle after it has seen "read" of the last combine,
 * and for a new handle in the reader's slot after the notice of its dispatch, which the reader sends when nothing of
 * the old handle is in flight there.
 *
 * by nodes (xep_shape_t.by_nodes): what a dispatch says to another node goes once to each, to this rank's forwarder f
 * there (forwarders.h); a combine is as above.
 *  1. and 2. to mapped ranks as above. To each f: the parcel, with the rows that any rank of that node needs, into what
 *     was delivered to f [i][line], as one of its feeders; then f's notice [i][self], and its word.
 *  3. f stores the notice of each of its feeders, once its word is there, at all its mates, in [i][feeder]: the line,
 *     then  epoch = n.  It does so while it sends and while it waits, and its wait ends when all are stored.
 *  5. a parcel of another node is read where it was delivered: in the memory of the forwarder, which its mates map.
 * Where its rows are many bytes (xep_env_t.part_bytes), they come in parts: the parcel's head and the notice, which
 * says so, to all f first; then rows, and behind each part  f.passed[i][self] = (n, tokens whose rows are here). f
 * stores that word at its mates as it does notices, and all copy rows meanwhile. An operation ends, with an error, too,
 * when all such words are at their last value: f has passed them on then, and nothing of a turn is on its way when the
 * next is sent.
 * So rows in passing are moved by nobody: they need the room of a parcel of each feeder, and no more. A parcel is
 * complete for who reads it: f has loaded the word behind it with acquire, and stores its own with release. It is not
 * overwritten before all mates have read it for the reason that holds for all parcels: the source begins turn q + ring
 * when it has the notices of turn q + slots of all ranks, which they send when they have ended turn q. And f stores
 * the notice of a turn before it ends that turn itself, so that a line never goes back.
 *
 * inboxes: where the parcels of ranks that are not mapped, or by nodes of feeders, are delivered. Where they have not
 * room for all items of a source (inbox_bytes), items lie there one behind the other, without those that nobody here
 * needs: item j at j % room, where room is as many as fit, as source and readers know alike from the notice. The reader
 * counts them in the head. A source that has no more than room does all as above. Of one that crowds an inbox:
 *  1. rows are in parts of half an inbox, as by nodes: the first ones, which have room, behind the notice.
 *  5. flat, the receiver d: when it has copied what is there, for all tokens before t:  taken[i][d] = (n, t)  at the
 *     source. By nodes each mate says so to f, in mates_taken, and f, when all have, to the source. That sends a part
 *     that ends before row e when  taken  has the token of row e - room - 1; its dispatch ends when all have gone.
 * After a verdict that is an error nothing more is taken or sent but the last word, which readers wait for.
 * Nobody waits for ever: what readers take depends on notices, which all send first, and on nothing that they send or
 * have taken of others; a part that has no room keeps none to other ranks back. Words of a turn are read before the
 * ring comes round, as parcels are: all that a source needs have come when it ends the turn.
 * test/model/model_inbox.pml.
 *
 * Rows that are still coming when an operation begins (xep_op_t.coming): those that are there are packed and sent to
 * ranks that are not mapped, and behind the last one mapped ranks are told, which read the whole parcel. In a combine
 * likewise, where no mapped rank pulls rows and none are coded; the sums, which take own rows too, come when all are
 * there.
 *
 * Rows that are read in place: ll_in_place.h. Dispatches in pieces: ll_pieces.h.
 *
 * Epochs only grow; nothing is ever cleared. A notice whose word is n says so even when it brings no rows.
 *
 * Ordering. Between mapped ranks plain stores, then the word with release; the reader loads it with acquire. "read" is
 * stored with release after the loads it stands for. Otherwise put_signal, ordered after every earlier put to that
 * rank. Streaming stores go into memory only this rank reads, or are fenced by the thread that made them before the
 * word.
 *
 * What can go wrong: ranks disagree, or rows do not fit: see dispatch 4; offers that differ end combine with
 * XEP_ERR_MISMATCH after step 6. A notice or begin that no correct rank can have written, or more rows than were
 * announced: XEP_ERR_PROTOCOL at once, nothing of it is used: by nodes, too, each rank looks at each notice itself. A
 * rank that does not come, or a forwarder or a crowded receiver that is not in the library: waiting goes on until the
 * core's deadline.
 */
#ifndef XEP_LL_H
#define XEP_LL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cast.h>
#include <copy.h>
#include <forwarders.h>
#include <handshake.h>
#include <kit_in_place.h>
#include <logfmt.h>
#include <masks.h>
#include <notices.h>
#include <rows.h>
#include <weigh.h>
#include <xep/plugin.h>

#include "ll_notice.h"

/* ---- in the heap ------------------------------------------------------------ */

/**
 * What a source says to all in one dispatch: a head of indices and weights, and an item for each token: its row and the
 * row's scales. The offsets follow from its notice.
 */
typedef struct ll_parcel {
    const char *head;  /* topk_idx [T][K] int32_t, and the weights */
    const char *items; /* [T] */
    uint64_t weights;  /* in the head: [T][K] float, where they are sent */
    uint64_t head_bytes;
    size_t row_bytes;
    size_t scales; /* where they begin in an item */
    size_t scale_words;
    size_t stride; /* of items */
    int stays;     /* this rank reads the rows where they are (ll_in_place.h) */
    uint64_t room; /* items that an inbox holds, where those that come lie one behind the other; 0: by token */
} ll_parcel_t;

/** Where things are in a heap, beside what all modes have. */
typedef struct ll_layout {
    xep_heap_layout_t common; /* first */
    uint64_t scale_words;     /* most of a row */
    uint64_t return_stride;   /* between rows of returned */
    uint64_t table_bytes;
    /* XEP_REGION_METADATA */
    /* words (epoch, tokens), in XEP_REGION_CONTROL: */
    uint64_t passed;      /* [ring][R] by nodes, and where inboxes may be crowded */
    uint64_t taken;       /* [ring][R] where inboxes may be crowded */
    uint64_t mates_taken; /* [ring][feeders][most_mates] likewise, by nodes */
    uint64_t most_mates;
    uint64_t inbox_bytes; /* for the items of a source; 0: each token has its place */
    uint64_t tables;      /* [slots][R] of table_bytes: uint32_t first row of each expert */
    xep_area_t heads;     /* [ring] of parcels */
    /* [ring][R] likewise, of ranks that are not mapped, else untouched; by nodes [ring][feeders] */
    xep_area_t delivered_heads;
    /* XEP_REGION_ROWS */
    xep_area_t items;           /* [ring] of parcels */
    xep_area_t delivered_items; /* [ring][R] or [ring][feeders], likewise */
    xep_area_t returned;        /* [slots][tokens][K] rows: put by owners that are not mapped, or in pieces by all */
    xep_in_place_layout_t in_place;
} ll_layout_t;

/* ---- in private memory ------------------------------------------------------ */

/** A received row: where it comes from, where it goes. */
typedef struct ll_pick {
    uint32_t token, k;
    uint32_t row; /* of this rank; at first the local expert */
} ll_pick_t;

/** What a handle needs to know for its combines, and shows in recv. */
typedef struct ll_slot {
    uint64_t tokens; /* of this rank */
    uint32_t topk;
    int weights_given;
    int weights_sent;
    int32_t *experts;                                    /* [T][K] or -1 */
    float *weights;                                      /* [T][K] given to dispatch; 1 where none were */
    ll_notice_t *from;                                   /* [R] as received, checked */
    uint32_t *pair_begin;                                /* [L][R] */
    uint32_t *pair_count;                                /* [L][R] */
    uint64_t *expert_begin, *expert_count, *expert_rows; /* [L] */
    uint64_t *origin; /* [recv_rows] token * K + k of each row; only in pieces, and where some rank is not mapped */
    char *coded;      /* [recv_rows] rows in LogFMT, return_stride apart, on their way to ranks that are not mapped */
    /* by nodes: */
    uint8_t *relayed; /* [feeders] those whose notice of the dispatch all mates have */
    uint64_t *passed; /* [feeders] the word of the feeder that all mates have */
    uint64_t *copied; /* [R] rows of a source that are at their places; flat: of mapped ones, too */
    /* where some rank is not mapped, for each line: a rank, or by nodes a node */
    uint32_t *bound;       /* [tokens * K] tokens whose rows go there, line by line, ascending */
    uint64_t *bound_begin; /* [lines + 1] in bound */
    uint64_t *part_rows;   /* [lines] rows in a part of what goes there; 0: it is not in parts */
    int crowds;            /* this rank has more for some inbox than that holds */
    xep_cursor_t *rest;    /* [R] how far what was kept out has been sent, if it crowds */
    /* where inboxes may be crowded: */
    uint8_t *crowded;       /* [R] a source has more items for its inbox than that holds */
    uint64_t *tokens_out;   /* [R] tokens of a source whose rows were copied out of its inbox */
    uint64_t *taken_told;   /* [R] the same, as was said of it */
    const void **row;       /* [recv_rows] where received rows are, if they may be in place; NULL where none is */
    int in_place;           /* row was shown, and this rank has not said that it reads no more */
    uint64_t pieces, piece; /* of the dispatch; which is shown. 1 and 0 where all is in one */
    /* in pieces: */
    uint64_t *piece_of;  /* [T][K] in which piece of its owner each selection is; where there are several */
    uint64_t *all_count; /* [L] rows of each expert in all pieces */
    uint64_t all_rows;   /* in all pieces, aligned */
} ll_slot_t;

/** Where the rows are that an owner has for this rank, in a combine. */
typedef struct ll_source {
    const char *rows;
    size_t stride;
    int returned; /* at [token][k]; else by expert, in the order of this rank's selections */
} ll_source_t;

typedef struct ll {
    xep_kit_t kit; /* first */
    ll_layout_t layout;
    xep_forwarders_t nodes; /* by nodes; else empty */
    /* scratch, of one step at a time: */
    uint64_t *counts;                /* [E + 1] selections of each expert, of this rank or of all; the last: of none */
    uint32_t *next_row;              /* [E + 1] */
    ll_pick_t *picks;                /* [recv_rows + K + 1] by source rank, token, selection */
    uint32_t *input_begin;           /* [L][R] of the combine that is offered: first row in the input */
    uint64_t *pick_begin;            /* [R + 1] */
    uint64_t *pick_here;             /* [R] picks whose rows are here */
    uint64_t *line_next, *line_seen; /* [lines] while bound is made */
    uint32_t *pick_item;             /* [recv_rows + K + 1] item of each pick; NULL where that is its token */
    uint64_t listed;                 /* epoch of the dispatch whose parcels and picks these are */
    ll_parcel_t *parcels;            /* [R] of the dispatch that is received */
    ll_source_t *sources;            /* [R] */
    const void **rows;               /* [T * (K + 2)] rows to sum, by token */
    float *row_weights;              /* likewise */
    uint32_t *row_begin;             /* [T + 1] in both */
    char *decoded;                   /* [threads][K] rows of combine_stride */
    char *coded;                     /* those of the slots; NULL where all ranks are mapped, or there was no memory */
    xep_in_place_t in_place;
} ll_t;

static inline ll_slot_t *ll_slot(const ll_t *mode, uint32_t slot)
{
    return (ll_slot_t *)mode->kit.slots + slot;
}

/** Private state of an operation. */
typedef struct ll_state {
    xep_kit_state_t kit;          /* first */
    ll_parcel_t parcel;           /* dispatch: of this rank */
    xep_in_place_rows_t in_place; /* dispatch: where its items are, if not in the ring */
    ll_notice_t notice;           /* dispatch: source of puts, unchanged until flushed */
    ll_notice_t notice_in_parts;  /* likewise, for nodes that get rows in parts */
    uint64_t packed;              /* dispatch: tokens, from the first on, whose items are in the parcel */
    int begins_early;             /* dispatch: rows were still coming when it began */
    uint64_t piece;               /* that the dispatch, or next, brings */
    uint32_t stranger;            /* next: a rank that has said that it is of another handle, or XEP_NO_RANK */
} ll_state_t;

/** ll_mapped_steps: of a dispatch where all ranks are mapped. */
extern const xep_step_t ll_dispatch_steps[], ll_mapped_steps[], ll_combine_steps[], ll_next_steps[];

static inline ll_state_t *ll_state(const xep_op_t *op)
{
    return op->state;
}

/**
 * Rows of an expert with those that alignment leaves unused. A division for each expert would be a quarter of the time
 * of a dispatch of few rows.
 */
static inline uint64_t ll_align_rows(uint64_t rows, uint64_t alignment)
{
    return alignment == 1 ? rows : (rows + alignment - 1) / alignment * alignment;
}

/** Whether op sends a row for this selection of this rank: a dispatch does for all, a next piece for what is in it. */
static inline int ll_brings(const ll_t *mode, const xep_op_t *op, uint64_t selection)
{
    uint64_t piece = ll_state(op)->piece;
    return piece == 0 || ll_slot(mode, op->slot)->piece_of[selection] == piece;
}

/* ---- ll_traffic.c ---- */

void ll_tell_traffic(const xep_shape_t *shape, xep_traffic_t *dispatch, xep_traffic_t *combine);

/* ---- ll_heap.c ---- */

/* Where things are. */

xep_status_t ll_lay_heap(const xep_shape_t *shape, xep_heap_layout_t *layout, xep_carve_t region[XEP_REGIONS]);

/** Of the parcel a notice announces, all but where it is. */
void ll_make_parcel(const ll_notice_t *notice, ll_parcel_t *parcel);

/** The items of op's parcel of this rank: in the ring, or where peers read them in place. */
char *ll_items(const ll_t *mode, const xep_op_t *op);

/** Offset of the table for rank. */
uint64_t ll_table_offset(const ll_t *mode, uint32_t slot, uint32_t rank);

/* ---- ll_shared.c ---- */

/* What is refused, said, agreed and shown, here and in plugins/cuda. */

xep_status_t ll_check_dispatch(const ll_t *mode, xep_op_t *op);
xep_status_t ll_check_combine(const ll_t *mode, xep_op_t *op);

/** All but selections and most, which stay as they are. */
void ll_fill_notice(const ll_t *mode, const xep_op_t *op, ll_notice_t *notice);

/** Whether ranks agree. from: [R], checked. */
xep_status_t ll_compare_notices(const ll_t *mode, xep_op_t *op, const ll_notice_t *from);

/** Views into the slot; the parcel of this rank is known. */
void ll_fill_recv(ll_t *mode, const xep_op_t *op, uint64_t rows);

/* ---- ll_parts.c ---- */

/* What goes to ranks that are not mapped, and in which parts. */

/** Lines: ranks, or by nodes nodes. */
uint32_t ll_count_lines(const ll_t *mode);

/** Lists what goes where, and decides which of it is in parts. The parcel of this rank is known. */
void ll_list_bound(ll_t *mode, xep_op_t *op);

/** xep_transfer_fn of step 1 and 2: head, items, notice; of items in parts, as far as there is room unasked. */
int ll_parcel_transfer(const void *mode, const xep_op_t *op, uint32_t rank, uint32_t number, xep_transfer_t *transfer);
int ll_items_transfer(const void *mode, const xep_op_t *op, uint32_t rank, uint32_t number, xep_transfer_t *transfer);

/** What crowded inboxes had no room for, as far as receivers have taken what was there. */
xep_status_t ll_send_rest(ll_t *mode, xep_op_t *op);

/** The word that step 5 waits for: rows of a rank, or that it has taken those that keep this rank's last ones out. */
const _Atomic uint64_t *ll_rows_word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p);

/* ---- ll_inbox.c ---- */

/* Inboxes that may be crowded, as a receiver. */

/** Offset of the word in which rank says, in all heaps, what it has taken. */
uint64_t ll_taken_offset(const ll_t *mode, const xep_op_t *op, uint32_t rank);

/** Finds in which item of its parcel each pick of a source is. XEP_ERR_PROTOCOL: they cannot have come at once. */
xep_status_t ll_place_items(ll_t *mode, xep_op_t *op, uint32_t source, uint64_t first, uint64_t end);

/** Notes how many items of a source come here. XEP_ERR_PROTOCOL: as above. */
xep_status_t ll_note_items(ll_t *mode, xep_op_t *op, uint32_t source, uint64_t items);

/** Tells the sources of crowded inboxes whose rows were copied. */
xep_status_t ll_tell_taken(ll_t *mode, const xep_op_t *op);

/* ---- ll_nodes.c ---- */

/* Parcels of ranks that are not mapped, and by nodes the notices that come with them. */

/** Whether rank, which is not mapped, is sent parcels. */
int ll_delivers_to(const ll_t *mode, uint32_t rank);

/** Where op's parcel of this rank lies at rank, one that is sent parcels: the entry in both delivered areas. */
uint64_t ll_delivery_entry(const ll_t *mode, const xep_op_t *op, uint32_t rank);

/** Where that of a source lies, which is not mapped: the heap that has it, and the entry. */
const char *ll_delivered(const ll_t *mode, const xep_op_t *op, uint32_t source, uint64_t *entry_p);

/** By nodes: nothing is relayed yet; relays what has come and is not. */
void ll_begin_relay(const ll_t *mode, const xep_op_t *op);
void ll_relay(const ll_t *mode, const xep_op_t *op);

/** Offset of the word of a source in all heaps. */
uint64_t ll_passed_offset(const ll_t *mode, const xep_op_t *op, uint32_t source);

/** The word for rows of a source in parts; of others, one that is there, and value 0. Its notice is taken. */
const _Atomic uint64_t *ll_passed_word(const void *mode, const xep_op_t *op, uint32_t source, uint64_t *value_p);

/** Tokens of a source that is not mapped whose rows are here. */
uint64_t ll_tokens_here(const ll_t *mode, const xep_op_t *op, uint32_t source);

/* ---- ll_send.c ---- */

/* Dispatch 1 and 2. */

/** xep_plugin_t.dispatch and .next */
xep_status_t ll_dispatch(void *mode, xep_op_t *op);
xep_status_t ll_next(void *mode, xep_op_t *op);

/** Of step 1: packs rows that are there and were not at the last call; step 2, to a mapped rank. */
void ll_fill_items(ll_t *mode, xep_op_t *op);
void ll_store_notice(const void *mode, const xep_op_t *op, uint32_t rank);

/* ---- ll_receive.c ---- */

/* Dispatch 4 and 5. */

/** In the last step of a dispatch: adds the rows of each local expert to args.expert_stats. */
void ll_count_stats(const ll_t *mode, const xep_op_t *op);

/** Steps: the verdict and the places; the rows. */
xep_status_t ll_receive(void *mode, xep_op_t *op);
xep_status_t ll_take_rows(void *mode, xep_op_t *op);

/* ---- ll_unpack.c ---- */

/* The rows of 5. */

/** Lists which rows come from where, and counts them by pairs. XEP_ERR_PROTOCOL: there are more than a slot has. */
xep_status_t ll_list_rows(ll_t *mode, xep_op_t *op);

/** Gives each row on the list its number: next_row [L] is the first of each expert. */
void ll_number_rows(ll_t *mode);

/** Copies rows, scales and weights as listed, those of tokens that are here and were not copied. */
void ll_unpack_rows(ll_t *mode, xep_op_t *op);

/* ---- ll_offer.c ---- */

/* Combine 2 and 3. */

/** Steps of a next piece: outputs of the one that is shown to readers that are not mapped, until the wire has them. */
xep_status_t ll_put_outputs(void *mode, xep_op_t *op);
xep_status_t ll_flush_outputs(void *mode, xep_op_t *op);

/** The plugin's combine. */
xep_status_t ll_combine(void *mode, xep_op_t *op);

/* ---- ll_sum.c ---- */

/* Combine 5. */

/** Step. */
xep_status_t ll_sum(void *mode, xep_op_t *op);

#endif
