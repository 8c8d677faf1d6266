/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The mode "normal": every token once to each rank that owns one of its experts, rows in
 * (source rank, source token) order; combine sums one row per rank.
 *
 * Protocol. Every heap has one line for each (index, rank); that rank is its only writer. Its words hold epochs of
 * operations, only grow, are compared with >= and are never cleared. "Slot of r" is the one r chose for the operation;
 * others may have chosen other ones.
 *
 * dispatch, epoch n, turn q; i = q % slots; every rank does:
 *  1. plan: which tokens go where, from topk_idx alone.
 *  2. to each rank d: its record (own slot, parameters, rows to every rank, selections of d's
 *     experts) into d's ring of records [i][self], then  d.line[i][self].counts = n.
 *  3. when own line[i][r].counts >= n for all r: the records are copied out of the heap and
 *     checked. All ranks now know the R x R matrix of rows and compute the same places and
 *     the same verdict (agreement, overflow).
 *     With grants (normal_masks.h), and only where a rank was left out meanwhile: see normal_grants.c.
 *  4. unless the verdict is an error: rows and metadata to their final places in the slot of d.
 *  5. to each d: its digest of all records into d.line[i][self].digest, then  .done = n.
 *  6. when own line[i][r].done >= n for all r: the digests are compared; done when the wire is flushed.
 *
 * Why digests: what r writes into the slot of d lies behind the rows of lower ranks, as those told r of them. A rank
 * that tells two others different counts makes these overwrite one another's rows at d, and every record is valid by
 * itself. So each rank says what it made of all records, and a dispatch in which two ranks differ succeeds nowhere.
 * That is free: the digest is in the lines that carries done anyway.
 *
 * Why a record is never overwritten before it is read: r overwrites d's entry [i][r] in turn
 * q + slots, which the core begins at r after turn q completed there. That took d's done of
 * turn q, and d sends it after it has read all records of q, also when the verdict is an error.
 * The same argument keeps the counts and done words growing.
 *
 * combine, epoch n, of a handle: the handshake of the kit (handshake.h). Every rank is an owner (of the rows in its
 * slot) and a reader:
 *  1. owner: drain.
 *  2. owner: rows for mapped readers into the slot's input (zero copy: they are there), weights likewise: those
 *     readers pull. Rows for all others are put into the area "returned" of the reader's slot.
 *  3. owner: offer.   4. reader: ready.
 *  5. reader: out[t] = sum over ranks ascending (or by selection), read in d's input or in own "returned".
 *  6. reader: read, when the wire is flushed. Done: nobody waits for it before the owner's next combine from the slot,
 *     so the wire may keep it until the next operation sends something.
 *
 * Why "returned" is never overwritten early: its writer waits for the reader's read of the last
 * combine of the same handle; a slot gets a new handle only after all of the old one's combines
 * have completed at the reader, and the writer learns of the new one from the reader's record.
 *
 * Without ranks that are out: normal_masks.h. Rows that are read in place: normal_in_place.c. Rows that go once to each
 * node: normal_nodes.h.
 *
 * Ordering. Between mapped ranks: rows are stored, streaming stores fenced by the thread that made
 * them, then the word is stored with release; the reader loads it with acquire. Otherwise
 * put_signal, ordered after every earlier put to that rank.
 *
 * What can go wrong: ranks disagree (XEP_ERR_MISMATCH) or rows do not fit (XEP_ERR_OVERFLOW): steps
 * 5 and 6 are taken all the same and every rank ends with the same status. A record or an offer that
 * no correct rank can have written: XEP_ERR_PROTOCOL, at once, nothing of it is used. Ranks that were told different
 * things: XEP_ERR_PROTOCOL on all, after the rows. A rank that does not come: waiting goes on until the core's
 * deadline.
 */
#ifndef XEP_NORMAL_H
#define XEP_NORMAL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <codec.h>
#include <copy.h>
#include <fields.h>
#include <handshake.h>
#include <kit_in_place.h>
#include <masks.h>
#include <rows.h>
#include <weigh.h>
#include <xep/plugin.h>

#include "normal_record.h"

/* ---- in the heap ------------------------------------------------------------ */

/**
 * What a rank has made of the records of all: the same on every rank, or some rank told two others different things.
 * With h(r) a sum over the counts of rank r, each times a number of its own (normal_t.factors), sum is that of all h(r)
 * and places that of (r + 1) * h(r): their differences between two ranks name the one whose counts differ. It finds
 * what a defect does, not what somebody computes who may write into the heap anyway.
 */
typedef struct normal_digest {
    uint64_t verdict; /* 2 * that of the dispatch, as 32 bits; + whether rows have weights, where they are counted */
    uint64_t sum, places; /* 0, 0 where the ranks disagree, and rows were not counted */
} normal_digest_t;

/** One line per (index, rank); written by that rank, read by the heap's owner, and by nodes by its local ranks, too. */
typedef struct normal_line {
    _Atomic uint64_t counts;  /* record of this epoch is in ring entry [index] */
    _Atomic uint64_t done;    /* all rows of this epoch are with everybody, and the digest is here */
    normal_digest_t digest;   /* of that dispatch */
    uint64_t begin;           /* with grants: the writer's rows of that dispatch are here from this one on */
    _Atomic uint64_t granted; /* room is of this epoch: normal_grants.c */
    uint64_t room;            /* the writer has room for the rows of the heap's owner from this one on */
} normal_line_t;
_Static_assert(sizeof(normal_line_t) == 64, "a cache line");

/** Where things are in a heap, beside what all modes have. */
typedef struct normal_layout {
    xep_heap_layout_t common; /* first */
    uint32_t max_dests;       /* of a token: min(K, R) */
    uint64_t returned_rows;   /* rows that owners may return to a slot: unmapped ones; in pieces, all */
    size_t coded_stride;      /* between encoded ones, at most */
    uint64_t record_bytes;
    uint64_t line;               /* XEP_REGION_CONTROL: [slots][R] normal_line_t */
    uint64_t storing;            /* XEP_REGION_CONTROL: epoch of the dispatch whose rows this rank is storing, or 0 */
    uint64_t asked;              /* XEP_REGION_CONTROL: [slots][R] epochs, by that rank: it asks for a grant */
    uint64_t records;            /* XEP_REGION_METADATA: [slots][R], record_bytes each; not those of devices */
    xep_area_t input_weights;    /* [recv_rows][K] float: pulled by combine */
    xep_area_t returned_weights; /* [returned_rows][K] float: put by owners */
    xep_area_t returned;         /* XEP_REGION_ROWS: [returned_rows] rows, put by owners */
    /* by nodes (normal_nodes.h), [slots][upstreams] of: */
    uint64_t passed; /* XEP_REGION_CONTROL: (epoch, rows) that are in the ring, by the upstream rank */
    uint64_t taken;  /* likewise, [slots][nodes] (epoch, rows) that forwarders have taken from this rank */
    uint64_t summed; /* likewise, [slots][nodes] (epoch, rows) of combines, by forwarders */
    xep_area_t feed_metadata, feed_rows; /* [feed_rows] of what passes */
    xep_area_t sums, sum_weights;        /* [feed_rows] of what is returned */
} normal_layout_t;

/* ---- in private memory ------------------------------------------------------ */

/** A token goes to this rank, as this row of what the rank gets from here. */
typedef struct normal_dest {
    uint32_t rank, row;
} normal_dest_t;

/** Who gets what: made by one dispatch, shared with the cached dispatches that use it again. */
typedef struct normal_routing {
    uint32_t refs; /* slots that use it; 0: free */
    uint32_t topk;
    uint64_t epoch; /* of the dispatch that made it */
    uint64_t tokens;
    int32_t *experts;     /* [T][K] or -1 */
    uint64_t *first;      /* [T + 1] in dests */
    normal_dest_t *dests; /* ranks of each token in the order of sums: ascending, or by selection */
    uint32_t *tokens_to;  /* tokens by (rank, row): only where some rank is not mapped */
    uint64_t *to_begin;   /* [R + 1] in tokens_to */
    uint32_t *rows;       /* [R] of this rank to each */
    uint32_t *selections; /* [E] of this rank */
    /* known once the records are in: */
    uint32_t *rank_rows;            /* [R][R] rows from i to j */
    uint64_t *src_begin;            /* [R + 1] first row of each source, here */
    uint64_t *there;                /* [R] first row of this rank, there */
    uint64_t *local;                /* [L] selections of the local experts, all sources */
    uint64_t sum, places;           /* of the digest that all have of rank_rows */
    struct normal_routing *whole;   /* what it was made of, by leaving out ranks; else NULL */
    struct normal_passing *passing; /* normal_nodes.h; NULL: nothing passes */
} normal_routing_t;

/** Where the rows of this rank for another go: into its memory, or staging where it is not mapped (x is NULL). */
typedef struct normal_target {
    char *x;
    int32_t *tokens;
    char *idx;
    float *weights;
    char *beside; /* fields of beside_rows rows, of which these begin at beside_row */
    uint64_t beside_rows, beside_row;
    uint64_t first, rows; /* of those that this rank has for it: the others are not moved now */
} normal_target_t;

/** Where expert outputs are, and the weights beside them. */
typedef struct normal_place {
    char *x;
    size_t x_stride;
    char *weights;
    size_t weights_stride;
} normal_place_t;

/** NORMAL_ROUNDED: rows of the own node are summed and rounded first, and follow one another; NORMAL_CODED: rows that
 * are not read in mapped memory are encoded. */
typedef enum { NORMAL_ALIKE, NORMAL_ROUNDED, NORMAL_CODED } normal_adding_t;

/** The rows of which each token's sum is made, in this order. */
typedef struct normal_terms {
    const uint64_t *first; /* [T + 1] in of */
    const normal_dest_t *of;
    normal_adding_t how;
} normal_terms_t;

/** Of all rows from one rank to another those that are in a piece: first of them, how many, and where in the slot. */
typedef struct normal_range {
    uint64_t first, rows, at;
} normal_range_t;

typedef struct normal_slot {
    normal_routing_t own;      /* for a dispatch that makes one: not always that of this slot */
    normal_routing_t *routing; /* one of own, maybe another slot's; or what was made of one */
    normal_record_t *from;     /* [R] records as received, checked */
    const void **row;          /* [recv_rows] where received rows are, if they may be in place */
    uint64_t *there;           /* [R] first row of this rank there: the routing's or, with grants, granted */
    xep_fields_t fields;       /* of the dispatch */
    xep_dispatch_args_t cast;  /* of a dispatch that casts: of the rows that the caller's have become */
    normal_target_t *targets;  /* [R] of the dispatch */
    normal_place_t *sources;   /* [R] of the combine, where each rank has rows for this one, or has put them */
    uint64_t *expert_rows;     /* [L] aligned: recv shows it */
    normal_record_t record;    /* sent to unmapped ranks: unchanged until flushed */
    normal_digest_t digest;    /* likewise */
    normal_target_t staged;    /* where metadata for ranks that are not mapped begins: by (rank, row) */
    char *coded;               /* [recv_rows] of the codec's stride: rows encoded for ranks that are not mapped; flat */
    struct normal_traffic *traffic; /* normal_nodes.h; NULL where it is flat */
    struct normal_left *left;       /* normal_masks.h; NULL: no rank is ever left out */
    uint64_t pieces, piece;         /* of a dispatch in pieces; the one that is shown, else 0 */
    uint64_t dispatched;            /* likewise: its epoch */
    uint64_t *piece_begin;          /* [R + 1] first row of each source in it; where there may be several */
    uint32_t combines;              /* by these steps: 0, or XEP_STEPS_PIECES */
    int weighted;                   /* rows of the dispatch have weights */
} normal_slot_t;

typedef struct normal {
    xep_kit_t kit; /* first */
    normal_layout_t layout;
    const char **records;         /* [R] the ring that has those of a rank, as this one reads it */
    uint32_t *skips;              /* [R] selections in its record in front of those of this rank's experts */
    uint64_t *marks;              /* [(R + 63) / 64] ranks of a token: scratch of the plan */
    uint64_t *factors;            /* [R] of the rows to each rank, in a digest: odd, so that no change of one is lost */
    char **gathered;              /* [R] scratch of a dispatch whose rows stay on devices; else not there */
    xep_direct_source_t *sources; /* [R] the same of a combine */
    const void **rows;            /* [threads][max_dests + 2] rows to sum: scratch of combine */
    normal_dest_t *terms;         /* [T][max_dests] what is summed without ranks that are out: scratch; with masks */
    uint64_t *term_first;         /* [T + 1] in terms */
    char *own_sums;               /* [threads] rows: of the own node, where they are rounded; NULL: they are not */
    char *coded;                  /* those of the slots; NULL: there are none, or there was no memory: normal_coded.h */
    char *decoded;                /* [threads][max_dests + 2] rows; likewise */
    char *casts;                  /* rows that were cast, and their scales, of all slots; NULL: there was no memory */
    struct normal_nodes *nodes;   /* normal_nodes.h; NULL: rows go to each rank */
} normal_t;

/** Whether rows and metadata are put to each rank that is not mapped. */
static inline int normal_goes_to_ranks(const normal_t *mode)
{
    return !mode->kit.all_mapped && !mode->kit.shape->by_nodes;
}

static inline normal_slot_t *normal_slot(const normal_t *mode, uint32_t slot)
{
    return (normal_slot_t *)mode->kit.slots + slot;
}

/** Which of the lines of each rank are those of op. */
static inline uint32_t normal_index(const normal_t *mode, const xep_op_t *op)
{
    return (uint32_t)(op->turn % mode->kit.shape->slots);
}

/** How far rows are that stay on devices: of a combine, their sums. */
typedef enum { NORMAL_DIRECT_BEGINS, NORMAL_DIRECT_ENQUEUED, NORMAL_DIRECT_PUT } normal_direct_t;

/** Private state of an operation. */
typedef struct normal_state {
    xep_kit_state_t kit; /* first */
    uint64_t moved;      /* tokens copied to mapped ranks and staged for the others; of a combine, summed */
    uint64_t cast;       /* dispatch that casts: tokens that are */
    const xep_dispatch_args_t *given; /* likewise: the caller's */
    int concluded;                    /* dispatch: the records are in */
    int shown;                        /* a cached dispatch: the user may see how many rows there are */
    int weighted; /* rows have weights: known once the records are in; of a combine by nodes, those of local ranks do */
    struct normal_returning *returning; /* combine, when sums for other nodes have begun: normal_nodes.h */
    normal_direct_t direct;
    xep_codec_t codec;               /* combine that casts */
    uint64_t coded_begin, coded_end; /* rows of the slot that are encoded; flat */
    uint64_t piece;                  /* dispatch, next: whose rows it brings */
} normal_state_t;

static inline normal_state_t *normal_state(const xep_op_t *op)
{
    return op->state;
}

/*
 * All numbers count rows that the receiver gets, over all pieces; piece i is those from i * room on. What it has of
 * the source's rows is told from two ends: from the first row of that source, and from the first of the slot. What has
 * one piece has all rows in piece 0.
 */
static inline normal_range_t normal_cut(const normal_t *mode, uint64_t begin, uint64_t rows, uint64_t number)
{
    const uint64_t room = mode->layout.common.recv_rows, low = number * room, high = low + room, end = begin + rows;
    uint64_t from = begin > low ? begin : low, to = end < high ? end : high;
    return from < to ? (normal_range_t){from - begin, to - from, from - low} : (normal_range_t){0, 0, 0};
}

/** What op brings of this rank's rows for another. */
static inline normal_range_t normal_sends(const normal_t *mode, const xep_op_t *op, uint32_t rank)
{
    const normal_slot_t *slot = normal_slot(mode, op->slot);
    return normal_cut(mode, slot->there[rank], slot->routing->rows[rank], normal_state(op)->piece);
}

/** What the slot shows of a rank's rows for this one. */
static inline normal_range_t normal_shows(const normal_t *mode, const normal_slot_t *slot, uint32_t rank)
{
    const uint64_t *begin = slot->routing->src_begin;
    return normal_cut(mode, begin[rank], begin[rank + 1] - begin[rank], slot->piece);
}

/* ---- what travels beside a row: its token, its selections as the receiver numbers them, weights and fields ---- */

/** Of a token, as its source has it. */
typedef struct normal_metadata {
    int32_t token;
    const int32_t *experts; /* [K] or -1 */
    const char *weights;    /* [K] floats, any alignment; NULL: none */
    const char *packed;     /* fields that have travelled; NULL: the caller's */
} normal_metadata_t;

/**
 * Indices and weights of one row: experts of the receiver as it numbers them, -1 and 0 for the others. Without
 * branches, and with the choices known to the compiler: at 20 ns a row it would show beside the copy.
 */
__attribute__((always_inline)) static inline void normal_store_selections(const normal_metadata_t *from, uint32_t topk,
                                                                          uint32_t first, uint32_t count, char *idx,
                                                                          float *weights, int wide, int weighted)
{
    for (uint32_t k = 0; k < topk; k++) {
        uint32_t local = (uint32_t)from->experts[k] - first,
                 bits; /* of -1 and of lower ranks' experts: 2^31 and more */
        int32_t value = local < count ? (int32_t)local : -1;
        if (wide) ((int64_t *)idx)[k] = value;
        else ((int32_t *)idx)[k] = value;
        if (!weighted) continue;
        memcpy(&bits, from->weights + k * sizeof bits, sizeof bits);
        bits = local < count ? bits : 0;
        memcpy(weights + k, &bits, sizeof bits);
    }
}

/** Row of a target that is rank's. One of four copies of the above, so that the loop over K has no questions left. */
static inline void normal_store_metadata(const normal_t *mode, const xep_op_t *op, const normal_metadata_t *from,
                                         uint32_t rank, const normal_target_t *target, size_t row)
{
    const xep_dispatch_args_t *args = op->dispatch;
    const xep_fields_t *fields = &normal_slot(mode, op->slot)->fields;
    uint32_t topk = args->topk, first = mode->kit.first_expert[rank];
    uint32_t count = mode->kit.first_expert[rank + 1] - first;
    size_t at = row * topk;
    float *weights = target->weights + at;
    target->tokens[row] = from->token;
    if (args->topk_idx_dtype == XEP_INT64 && from->weights != NULL)
        normal_store_selections(from, topk, first, count, target->idx + at * sizeof(int64_t), weights, 1, 1);
    else if (args->topk_idx_dtype == XEP_INT64)
        normal_store_selections(from, topk, first, count, target->idx + at * sizeof(int64_t), weights, 1, 0);
    else if (from->weights != NULL)
        normal_store_selections(from, topk, first, count, target->idx + at * sizeof(int32_t), weights, 0, 1);
    else normal_store_selections(from, topk, first, count, target->idx + at * sizeof(int32_t), weights, 0, 0);
    if (fields->bytes != 0)
        xep_fields_store(fields, 0, from->packed, (uint64_t)from->token, target->beside, target->beside_rows,
                         target->beside_row + row);
}

#endif
