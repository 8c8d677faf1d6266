/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The mode "ll": low latency. A row for each selection, in expert order, cast on the way if asked for; combine weighs
 * and sums them. The receiver pulls in both operations, so that a sender never waits for anyone.
 *
 * dispatch, epoch n, turn q; i = q % ring, ring = 2 * slots. Every rank, as a source, to each rank d:
 *  1. writes its packet once, into entry i of its own ring: topk_idx, weights if they are sent, the rows, cast,
 *     with their scales. Where d is not mapped: puts the same packet, with only the rows d needs, into what was
 *     delivered to d [i][self].
 *  2. fills d's notice [i][self] and then its word:  (n, tokens whose rows are there).     The send phase ends here.
 * and as a receiver:
 *  3. waits until all its notices [i][r] are of epoch n.
 *  4. compares them, and the most rows they announce, or where those do not fit the indices of all, with the room
 *     every rank said it has: all ranks read the same, so all come to the same verdict without another word. If it is
 *     not XEP_OK, nothing is moved and this is the end.
 *  5. counts the indices that are its own experts, so knows where the rows of each (expert, source) begin, and copies
 *     each row that is there from the packet to its places. Rows, indices and tokens are in memory that no other rank
 *     writes.
 *
 * combine, epoch n, of a handle: the handshake of the kit (handshake.h). Every rank is an owner (of the rows it
 * received) and a reader (of its tokens). "Slot of r" is the one r chose for the dispatch, its notice told it.
 *  1. owner: drain.
 *  2. owner: copies rows of the user's own memory into the slot's input, those of each reader together; writes
 *     where the rows of each (expert, reader) begin into the slot's table. To readers that are not mapped it puts
 *     each row into the area "returned" of the reader's slot, at [token][k]. In fewer bits, or summed: ll_coded.h.
 *  3. owner: offer. The send phase ends here.
 *  4. reader: ready.
 *  5. reader: sums each token's rows, k ascending: in d's input at the begin of (expert, self) plus the number of
 *     earlier selections of that expert, or in its own "returned".
 *  6. reader: read. As in normal.h, it may stay with the wire until the next operation.
 *
 * Why a packet, delivered or not, or a notice is not overwritten before it was read: notices.h says it.
 *
 * Why an input, a table or an offer is not overwritten before it was read: step 1, and input() waits for the same.
 * Why "returned" is not: the owner writes it again for the same handle after it has seen "read" of the last combine,
 * and for a new handle in the reader's slot after the notice of its dispatch, which the reader sends when nothing of
 * the old handle is in flight there.
 *
 * Rows over the wire, in parts, by nodes, or for a receive ring that has not room for all: ll_flow.h.
 *
 * Rows that are still coming when an operation begins (xep_op_t.coming): rows that are there are packed and sent to
 * ranks that are not mapped; mapped ranks, which read the whole packet, are told after the last one. In a combine
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
#include <codec.h>
#include <copy.h>
#include <fields.h>
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

/** Where things are in a heap, beside what all modes have. */
typedef struct ll_layout {
    xep_heap_layout_t common; /* first */
    uint64_t words_beside;    /* most of a row */
    uint64_t return_stride;   /* between rows of returned */
    uint64_t table_bytes;
    /* XEP_REGION_METADATA */
    /* words (epoch, tokens), in XEP_REGION_CONTROL: */
    uint64_t taken;        /* [ring][R] where receive rings may be crowded */
    uint64_t locals_taken; /* [ring][upstreams][most_locals] likewise, by the ranks of the node */
    uint64_t most_locals;
    uint64_t recv_ring_bytes; /* for the items of a source; 0: each token has its place */
    uint64_t tables;          /* [slots][R] of table_bytes: uint32_t first row of each expert */
    xep_area_t heads;         /* [ring] of packets */
    /* [ring][upstreams] likewise (forwarders.h); of ranks that are mapped untouched */
    xep_area_t delivered_heads;
    /* XEP_REGION_ROWS */
    xep_area_t items;           /* [ring] of packets */
    xep_area_t delivered_items; /* [ring][upstreams] */
    xep_area_t returned;        /* [slots][tokens][K] rows: put by owners that are not mapped, or in pieces by all */
} ll_layout_t;

/* ---- in private memory ------------------------------------------------------ */

/** A received row: where it comes from, where it goes. */
typedef struct ll_pick {
    uint32_t token, k;
    uint32_t row; /* of this rank; at first the local expert */
} ll_pick_t;

/** The rows that this rank gets in a dispatch, or in a piece of it. */
typedef struct ll_list {
    ll_packet_t *packets; /* [R] */
    ll_pick_t *picks;     /* [recv_rows + K + 1] by source rank, token, selection */
    uint64_t *begin;      /* [R + 1] picks of each source */
    uint32_t *item;       /* [recv_rows + K + 1] item of each pick; NULL where that is its token */
    uint64_t *copied;     /* [R] where some rank is not mapped: the end of the picks whose rows are at their places */
} ll_list_t;

/** The rows that go over the wire to a rank that is not mapped, or by nodes to a node (ll_flow.h). */
typedef struct ll_flow {
    uint32_t to;          /* the rank that gets them */
    uint64_t begin, rows; /* of slot->bound */
    uint64_t part;        /* rows of a part */
    uint64_t seen;        /* while they are listed: 1 + the last token */
} ll_flow_t;

/** What comes from a source that is not mapped, where receive rings may be crowded. */
typedef struct ll_recv_ring {
    int crowded;    /* it has more items for its receive ring than that holds */
    uint64_t taken; /* tokens whose rows were copied out of it */
    uint64_t told;  /* the same, as was said of it */
} ll_recv_ring_t;

/** What a handle needs to know for its combines, and shows in recv. */
typedef struct ll_slot {
    uint64_t tokens; /* of this rank */
    uint32_t topk;
    xep_fields_t fields;
    int weights_given;
    int weights_sent;
    int32_t *experts;                                    /* [T][K] or -1 */
    int32_t *some;                                       /* likewise; where an operation may be about some of them */
    float *weights;                                      /* [T][K] given to dispatch; 1 where none were */
    ll_notice_t *from;                                   /* [R] as received, checked */
    ll_list_t list;                                      /* until all rows are here, and for ll_coded.h */
    uint32_t *pair_begin;                                /* [L][R] */
    uint32_t *pair_count;                                /* [L][R] */
    uint64_t *expert_begin, *expert_count, *expert_rows; /* [L] */
    uint64_t *origin; /* [recv_rows] token * K + k of each row; only in pieces, and where some rank is not mapped */
    char *coded;      /* [recv_rows] of return_stride: rows encoded, or summed, for ranks that are not mapped */
    /* where some rank is not mapped: */
    ll_flow_t *flows;           /* [nodes] of forwarders.h */
    uint32_t *bound;            /* [tokens * K] tokens whose rows go there, flow by flow, ascending */
    xep_cursor_t *sent;         /* [R] how far parts have been sent */
    ll_recv_ring_t *recv_rings; /* [R] of sources */
    const void **row;           /* [recv_rows] where received rows are, if they may be in place; NULL where none is */
    int pointed;                /* row is that of a dispatch, not cleared yet */
    uint64_t *all_count;        /* [L] rows of each expert, of all that the dispatch has */
    uint32_t combines;          /* by these steps: 0, or XEP_STEPS_PIECES */
    struct ll_pieces *pieces;   /* ll_pieces.h; NULL: all is in one */
} ll_slot_t;

/**
 * Where the rows are that an owner has for this rank, in a combine: those of its expert e, in the order of this rank's
 * selections, from begins[e] on. begins NULL: each at [token][k].
 */
typedef struct ll_source {
    const char *rows;
    size_t stride;
    const uint32_t *begins;
} ll_source_t;

typedef struct ll {
    xep_kit_t kit; /* first */
    ll_layout_t layout;
    xep_forwarders_t nodes; /* where some rank is not mapped; else empty */
    /* scratch, of one step at a time: */
    uint64_t *counts;      /* [E + 1] selections of each expert, of this rank or of all; the last: of none */
    uint32_t *next_row;    /* [E + 1] */
    uint32_t *input_begin; /* [L][R] of the combine that is offered: first row in the input */
    uint64_t *here;        /* [R] the end of the picks whose rows are here */
    ll_source_t *sources;  /* [R] */
    const void **rows;     /* [T * (K + 2)] rows to sum, by token */
    float *row_weights;    /* likewise */
    uint32_t *row_begin;   /* [T + 1] in both */
    char *decoded;         /* [threads][K + 2] rows of combine_stride; two of them have room for one of fp32 */
    const void **terms;    /* [threads][K] */
} ll_t;

static inline ll_slot_t *ll_slot(const ll_t *mode, uint32_t slot)
{
    return (ll_slot_t *)mode->kit.slots + slot;
}

/** Private state of an operation. */
typedef struct ll_state {
    xep_kit_state_t kit;             /* first */
    const int32_t *experts;          /* [T][K] those of the slot that it is about; -1: none */
    ll_packet_t packet;              /* dispatch: of this rank */
    char *items;                     /* its items: in the ring, or where peers read them in place */
    int is_there;                    /* the user wrote the rows where these are */
    ll_notice_t notice;              /* dispatch: source of puts, unchanged until flushed */
    uint64_t packed;                 /* dispatch: tokens, from the first on, whose items are in the packet */
    xep_codec_t codec;               /* combine (ll_coded.h): of rows to ranks that are not mapped; or none */
    uint64_t coded_begin, coded_end; /* picks that are coded */
} ll_state_t;

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

/* ---- ll_heap.c: where things are ---- */

xep_status_t ll_lay_heap(const xep_shape_t *shape, xep_heap_layout_t *layout, xep_carve_t region[XEP_REGIONS]);

/** Bytes from one item to the next: a row, and so many bytes beside it. */
static inline uint64_t ll_item_stride(uint64_t row_bytes, uint64_t beside)
{
    return ((row_bytes + 3) / 4 * 4 + beside + 63) & ~(uint64_t)63;
}

/** Offset of the table for rank. */
static inline uint64_t ll_table_offset(const ll_t *mode, uint32_t slot, uint32_t rank)
{
    return mode->layout.tables + ((uint64_t)slot * mode->kit.shape->nranks + rank) * mode->layout.table_bytes;
}

/** What both kinds of memory have: a row belongs to one expert, and the rank of its token weighs it. */
#define LL_CAN          (XEP_CAN_WEIGH | XEP_CAN_SCALES_BY_COLUMN | XEP_CAN_EXPERT_STATS)
#define LL_ARRANGEMENTS (1u << XEP_ROWS_BY_EXPERT_COMPACT | 1u << XEP_ROWS_BY_EXPERT_PADDED)

/* ---- ll_shared.c: what is refused, said, agreed and shown, here and in plugins/cuda ---- */

xep_status_t ll_check_dispatch(const ll_t *mode, xep_op_t *op);

/** Whether a rank sums the rows of its experts before they travel. */
static inline int ll_sums_at_owner(const xep_op_t *op)
{
    return (op->combine->flags & XEP_COMBINE_SUM_AT_OWNER) != 0;
}

/** Of such a combine: refuses what the rank of the experts cannot sum. */
xep_status_t ll_check_sums(const ll_t *mode, xep_op_t *op);

/** Whether all weights of a dispatch, if it had some, went to the experts, so that they can be summed there. */
int ll_weights_are_owners(const ll_slot_t *slot);

/** All but most, which stays as it is. */
void ll_fill_notice(const ll_t *mode, const xep_op_t *op, ll_notice_t *notice);

/**
 * Fills in all of a packet but where it is. notice: announces it. beside: bytes that travel beside a row. Source and
 * receiver compute the same offsets, from the same notice and the fields that all agree on.
 */
void ll_make_packet(const ll_notice_t *notice, uint64_t beside, ll_packet_t *packet);

/** Whether ranks agree. from: [R], checked. */
xep_status_t ll_compare_notices(const ll_t *mode, xep_op_t *op, const ll_notice_t *from);

/** Views into the slot; the packet of this rank is known. */
void ll_fill_recv(ll_t *mode, const xep_op_t *op, uint64_t rows);

/* ---- ll_send.c: dispatch 1 and 2 ---- */

/** xep_plugin_t.dispatch */
xep_status_t ll_dispatch(void *mode, xep_op_t *op);

/** Begins the steps of a dispatch, or of a next piece, whose notice is filled. */
xep_status_t ll_begin_sending(ll_t *mode, xep_op_t *op, const int32_t *experts);

/** Of step 1: packs rows that are there and were not at the last call; step 2, to a mapped rank. */
void ll_fill_items(ll_t *mode, xep_op_t *op);
void ll_store_notice(const void *mode, const xep_op_t *op, uint32_t rank);

/** Step: both, where all ranks are mapped. */
xep_status_t ll_send_mapped(void *mode, xep_op_t *op);

/* ---- ll_receive.c: dispatch 4 and 5 ---- */

/** Steps: notices are checked, and packets found; the verdict, and then the places. */
xep_status_t ll_take_notices(void *mode, xep_op_t *op);
xep_status_t ll_receive(void *mode, xep_op_t *op);
xep_status_t ll_conclude(ll_t *mode, xep_op_t *op);
xep_status_t ll_list_and_place(ll_t *mode, xep_op_t *op, xep_status_t verdict);

/** Step, the last but where rows are read in place. */
xep_status_t ll_count_stats(void *mode, xep_op_t *op);

/** XEP_ERR_PROTOCOL for a notice that no correct rank has written. */
xep_status_t ll_refuse_notice(const ll_t *mode, xep_op_t *op, uint32_t rank);

/** Notes which slots ranks have chosen for the dispatch. */
void ll_note_slots(ll_t *mode, const xep_op_t *op);

/** Whether notices alone say that there is room; the verdict. from: [R], checked. */
int ll_has_room(const ll_t *mode, const xep_op_t *op, const ll_notice_t *from);
xep_status_t ll_check_room(const ll_t *mode, xep_op_t *op, const ll_notice_t *from);

/** Adds the selections of a source to counts; counts those of all. */
void ll_count_source(const ll_t *mode, const xep_op_t *op, uint32_t source);
void ll_count_all(const ll_t *mode, const xep_op_t *op);

/** Gives each row on the list its place. XEP_ERR_PROTOCOL: there is no room for them, though there was to be. */
xep_status_t ll_place_rows(ll_t *mode, xep_op_t *op, uint64_t *rows_p);

/** Shows them. */
void ll_show_rows(ll_t *mode, const xep_op_t *op, uint64_t rows);

/* ---- ll_unpack.c: the rows of 5 ---- */

/** Lists which rows come from where. XEP_ERR_PROTOCOL: there are more than a slot has. */
xep_status_t ll_list_rows(ll_t *mode, xep_op_t *op);

/**
 * Copies rows, what is beside them, and weights as listed: step: all; those of tokens that are here and were not
 * copied.
 */
xep_status_t ll_unpack_rows(void *mode, xep_op_t *op);
void ll_unpack_here(ll_t *mode, const xep_op_t *op);

/* ---- ll_offer.c: combine 2 and 3 ---- */

/** Copies all outputs into "returned" of mapped readers. */
void ll_return_outputs(ll_t *mode, const xep_op_t *op);

/** Steps: 2, where all readers pull; where some do not. What goes to these, with the offer. */
xep_status_t ll_copy_outputs(void *mode, xep_op_t *op);
xep_status_t ll_copy_all(void *mode, xep_op_t *op);
int ll_returned_transfer(const void *mode, const xep_op_t *op, uint32_t reader, uint32_t number,
                         xep_transfer_t *transfer);
int ll_outputs_transfer(const void *mode, const xep_op_t *op, uint32_t reader, uint32_t number,
                        xep_transfer_t *transfer);

/* ---- ll_sum.c: combine 5 ---- */

/** Steps: where all rows are pulled; where some may be in "returned". Sums the rows of the mode's sources. */
xep_status_t ll_sum_pulled(void *mode, xep_op_t *op);
xep_status_t ll_sum(void *mode, xep_op_t *op);
xep_status_t ll_sum_rows(ll_t *mode, xep_op_t *op);

/** The own "returned", as a source. */
ll_source_t ll_find_returned(const ll_t *mode, const xep_op_t *op);

/** Lists the rows of a token, biases first, from n on. Returns the end, or UINT32_MAX: a row that is nowhere. */
typedef uint32_t (*ll_list_token_fn)(ll_t *mode, const xep_op_t *op, const ll_source_t *sources, uint64_t token,
                                     uint32_t n);
uint32_t ll_list_token(ll_t *mode, const xep_op_t *op, const ll_source_t *sources, uint64_t token, uint32_t n);

/** Its biases alone; returns the end. */
uint32_t ll_list_biases(ll_t *mode, const xep_op_t *op, uint64_t token, uint32_t n);

/** Lists the rows of all tokens. */
xep_status_t ll_list_outputs(ll_t *mode, xep_op_t *op, ll_list_token_fn list_token);

/** Where the rows of all owners are, some of them in "returned". */
void ll_find_outputs(ll_t *mode, const xep_op_t *op);

/** The next of the rows that a source, or this rank itself, has of an expert for this rank; NULL: there is none. */
const char *ll_next_output(ll_t *mode, const xep_op_t *op, const ll_source_t *source, uint32_t expert);

/* ---- ll_steps.c: steps of plain buffers, and those of this one; where ranks may be left out ---- */

extern const xep_step_t ll_dispatch_steps[], ll_combine_steps[], ll_without_steps[];
void ll_choose_steps(ll_t *mode);

#endif
