/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Rows that go once to each node (xep_shape_t.by_nodes), where normal.h has them go once to each rank. Why ranks do not
 * read them in the forwarder's memory, as those of ll: docs/results/network-paths.md.
 *
 * Each rank s has on every other node one forwarder: the rank there whose place is that of s, modulo the ranks of the
 * node. s is one of its upstream ranks, and has a ring of rows in its heap for each index of a turn, a line of it. What
 * s has to say to that node it says to its forwarder alone, by the wire; the ranks of that node, its local ranks, look
 * at it there. So a rank sends a message to its local ranks and one to each other node, and to nobody else.
 *
 * dispatch, epoch n, index i:
 *  2. to local ranks as in normal.h. To each forwarder f likewise, but the record has the selections of all experts,
 *     how many rows will pass by f, and where in own "returned" their sums belong; then f.line[i][s].counts = n.
 *  3. as in normal.h, but f's local ranks wait for this word, and read this record, in f's heap.
 *  4. rows and metadata for local ranks as in normal.h. For f: rows into the ring of that line, row p at entry p %
 *     feed_rows, their metadata (token, all experts, weights, scales) beside; then f.passed[i][line] = (n, p + 1).
 *     Meanwhile what upstream ranks pass: the place of a row follows from the records and from its number among the
 *     rows that its source has for the same rank, as in normal.h. It is stored to all local ranks that get it, with
 *     metadata. Where the ring is smaller than what passes, then s.taken[i][node of f] = (n, p + 1): s writes an entry
 *     again only then.
 *  5. when all own rows to a node are sent: digest and done to its forwarder; and when all are sent, all to local ranks
 *     are stored, and all that upstream ranks pass, too: to local ranks.
 *  6. likewise for done, and the digest. That of f says that what has passed is stored, too.
 * A word (n, rows) is n * 2^24 + rows: it only grows, as others do.
 *
 * Why nothing is overwritten before it was read: s writes into its line of index i at f again in turn q + slots, which
 * begins at s after all ranks' done of turn q was there, those of f and its local ranks among them. They have sent it
 * behind 3, when they had read all records of turn q. Its rows, digest and done of q are read later; but s writes them
 * again behind 3 of turn q + slots, for which these ranks have sent their records, and so have ended turn q.
 * test/model/model_nodes.pml tries it.
 *
 * Why nobody waits in a circle: a row that waits for room in a ring waits for its forwarder to store what came before,
 * which needs memory of mapped ranks alone. Every rank forwards inside its own operation, in all steps that wait.
 *
 * combine, epoch n, of a handle:
 *  1. drain as in normal.h; "read" of all ranks.
 *  2. input as in normal.h, for readers of other nodes, too.
 *  3. offer to all ranks; and wait for those of local ranks. Then, for each upstream rank and each of its tokens that
 *     has passed: the sum of what the local ranks have for it, into "sums", and from there into "returned" of the
 *     upstream rank; behind each batch upstream.summed[slot there][node] = (n, p + 1).
 *  4. wait for the offers of all, as in normal.h.
 *  5. tokens in their order, each as soon as summed of every node that it has passed to counts its row there:
 *     out[t] = sum over nodes ascending: the ranks of the own node one by one, ascending; of each other node the row in
 *     "returned", which was rounded to the type of the rows. By selection nodes and ranks are in that order, and the
 *     sum of the own node's ranks is rounded, too.
 *  6. as in normal.h, when summed of all nodes has all rows, also where the verdict is an error.
 * "returned" is not overwritten early for the same reason as in normal.h: its writer, the forwarder, waits for the
 * reader's read of the last combine. "sums" is a ring of NORMAL_SUM_QUARTERS quarters, in which batches of all upstream
 * ranks follow one another: a quarter is used again when the wire has sent what was put from it last, while it sends
 * the others.
 */
#ifndef XEP_NORMAL_NODES_H
#define XEP_NORMAL_NODES_H

#include <forwarders.h>

#include "normal_shared.h"

/* ---- in the heap ---- */

/** Behind the record of an upstream rank, its rows to all ranks and the selections of all experts. */
typedef struct normal_feed_tail {
    uint32_t rows;     /* that will pass; of a cached dispatch as many as before */
    uint32_t reserved; /* 0 */
    uint64_t returned; /* row of the upstream rank's "returned" where the sum of the first one belongs */
} normal_feed_tail_t;

/* ---- in private memory ---- */

/** Rows that pass, of a routing. */
typedef struct normal_passing {
    /* those of this rank, by (node, row): */
    uint32_t *tokens;
    uint64_t *begin;      /* [nodes + 1] in tokens, and in "returned"; none of the own node */
    uint64_t *term_first; /* [T + 1] in terms */
    /* of a token's sum, in its order: a rank of the own node and its row there, or the forwarder of another node, that
     * sums what its node has for the token, and the row in tokens */
    normal_dest_t *terms;
    /* those of upstream ranks: */
    normal_feed_tail_t *feeds; /* [upstreams] */
    /* [upstreams][locals] row of a local rank's slot where those of the upstream rank begin */
    uint64_t *begins;
    uint64_t *dest_first; /* [upstreams][T + 1] in dests, of the rows in the order in which they pass */
    /* room for [upstreams][T][most_locals]: place of a local rank that gets a row, and which row of its slot that is;
     * those of a row are in the order of sums, and those of the next row follow */
    normal_dest_t *dests;
} normal_passing_t;

/** Rows of this rank that pass to a node. */
static inline uint64_t normal_rows_to(const normal_routing_t *routing, uint32_t node)
{
    return routing->passing->begin[node + 1] - routing->passing->begin[node];
}

/** Where the dests of an upstream rank's rows begin, from a row on. */
static inline uint64_t *normal_dest_first(const normal_t *mode, const normal_routing_t *routing, uint32_t feed,
                                          uint64_t row)
{
    return routing->passing->dest_first + feed * (mode->kit.shape->tokens + 1) + row;
}

/** Bytes of the metadata of a row, at most. */
static inline size_t normal_most_metadata(const xep_shape_t *shape)
{
    return sizeof(int32_t) * (1 + 2 * (size_t)shape->topk + shape->scales);
}

/** How far the rows of an upstream rank have come, in the operation of a slot. */
typedef struct normal_feed {
    uint64_t stored; /* rows at their places */
    uint64_t taken;  /* that it was told of */
    int64_t token;   /* of the last one; -1 */
    uint64_t summed; /* rows whose sums are made, in a combine */
} normal_feed_t;

/** Quarters of "sums": each is used again when the wire has sent what is in it, while those of the others travel. */
enum { NORMAL_SUM_QUARTERS = 4 };

/** Sums of this node on their way to upstream ranks. */
typedef struct normal_returning {
    uint32_t feed;                       /* whose sums are in the batch; before there is one, whose come next */
    uint64_t entry, rows;                /* the batch: so many, from this entry of "sums" on; 0: there is none */
    uint64_t next;                       /* entry for the next batch */
    uint64_t marks[NORMAL_SUM_QUARTERS]; /* of the wire, behind what was put from each quarter last */
} normal_returning_t;

/** What passes in the operation of a slot. */
typedef struct normal_traffic {
    normal_feed_t *feeds;     /* [upstreams] */
    xep_cursor_t *passed;     /* [R] how far rows to forwarders have been sent */
    uint32_t turn;            /* batches up to this one may go to each */
    uint32_t *next;           /* [upstreams][locals] rows that the local rank has of the upstream rank, so far */
    normal_target_t *targets; /* [locals] their slots, from row 0 on */
    normal_place_t *sources;  /* [locals] of a combine: where their outputs are, from row 0 on */
    normal_returning_t returning;
    normal_feed_tail_t *tails; /* [nodes] sent to forwarders: unchanged until flushed */
    char *staged;              /* metadata of own rows that pass, by (node, row): likewise */
} normal_traffic_t;

enum { NORMAL_BATCH_ROWS = 64 }; /* that pass, or are summed, at once */

/** Who forwards for whom: the same for all operations. */
typedef struct normal_nodes {
    xep_forwarders_t who;
    uint32_t most_locals; /* that get a row */
    uint32_t most_nodes;  /* that a token goes to, without the own one */
    /* scratch: */
    uint64_t *seen;       /* [nodes] the plan's: token + 1 that was seen to go there last */
    uint32_t *list;       /* [most_nodes + 1] likewise: nodes of a token */
    char *metadata;       /* [BATCH_ROWS] of rows that pass, copied before it is checked */
    normal_dest_t *found; /* [most_locals] dests of a row */
} normal_nodes_t;

/* ---- normal_nodes_heap.c ---- */

/** Lays the rings of a slot, behind its "returned"; the words; and how long a record is at most. */
void normal_lay_rings(const xep_shape_t *shape, normal_layout_t *at, xep_carve_t *metadata, xep_carve_t *rows);
void normal_lay_words(const xep_shape_t *shape, normal_layout_t *at, xep_carve_t *control);
uint64_t normal_feed_record_bytes(const xep_shape_t *shape);

/**
 * Offsets in a heap: of the word of an upstream rank that passes rows; of a row of feed_rows or feed_metadata in its
 * ring; of the words that a forwarder of node writes, in a dispatch, in a combine from a slot.
 */
uint64_t normal_passed_offset(const normal_t *mode, uint32_t index, uint32_t line);
uint64_t normal_ring_offset(const normal_t *mode, xep_area_t area, uint32_t index, uint32_t line, uint64_t row,
                            size_t stride);
uint64_t normal_taken_offset(const normal_t *mode, uint32_t index, uint32_t node);
uint64_t normal_summed_offset(const normal_t *mode, uint32_t slot, uint32_t node);

/* ---- normal_nodes.c ---- */

/** Lays what all operations share and, in the second pass, finds it; and what each slot and its routing have. */
void normal_lay_nodes(normal_t *mode, xep_carve_t *arena);

/** Where this rank hears and pulls what, when the buffer's steps are chosen. */
void normal_open_nodes(normal_t *mode);

/** Step: a dispatch begins: which rows will pass, in which order they are summed; and none has passed. */
xep_status_t normal_begin_traffic(void *mode, xep_op_t *op);

/** Bytes of the metadata of a row that passes: token, experts, weights if there are any, fields. */
size_t normal_passing_bytes(const normal_t *mode, const xep_op_t *op, int weighted);

/* ---- normal_pass.c, normal_forward.c ---- */

/** Transfers of what a rank tells a forwarder at the start: the record of a dispatch. */
int normal_feed_record_transfer(const void *mode, const xep_op_t *op, uint32_t rank, uint32_t number,
                                xep_transfer_t *transfer);

/** Passes own rows as far as there is room, and done behind the last one. XEP_OK: all of it has gone. */
xep_status_t normal_pass_rows(normal_t *mode, xep_op_t *op);

/**
 * Stores what has come from upstream ranks. XEP_OK: all is. XEP_ERR_PROTOCOL: an upstream rank passes what it has not
 * announced.
 */
xep_status_t normal_forward_rows(normal_t *mode, xep_op_t *op);

/** Own and passing rows that are to come or to be taken: the word of the step. */
const _Atomic uint64_t *normal_passing_word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p);

/* ---- normal_nodes_return.c ---- */

/** Word of the step that waits for sums of other nodes; and the tokens before which all of these are here. */
const _Atomic uint64_t *normal_summed_word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p);
xep_status_t normal_find_summed(const normal_t *mode, xep_op_t *op, uint64_t *tokens_p);

/** Steps: waits for the outputs of local ranks; sums them for upstream ranks, and puts the sums there. */
const _Atomic uint64_t *normal_locals_word(const void *mode, const xep_op_t *op, uint32_t rank, uint64_t *value_p);
xep_status_t normal_return_sums(void *mode, xep_op_t *op);

/* ---- normal_nodes_steps.c ---- */

extern const xep_step_t normal_by_nodes_steps[];

#endif
