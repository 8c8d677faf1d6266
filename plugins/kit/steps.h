/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Operations as lists of steps, each taken as far as it goes. Here lies what a mode owes the core for errors: begin
 * returns none, since its steps may have sent something; what it meets is returned by the next progress, with the
 * sentence that was told then.
 */
#ifndef XEP_STEPS_H
#define XEP_STEPS_H

#include <xep/plugin.h>

#include "send.h"
#include "words.h"

/** What lies beside a word, in the same line: bytes from the word, and how many. */
typedef struct xep_announced {
    uint16_t offset, bytes;
} xep_announced_t;

/**
 * run: XEP_OK: the next step is due. XEP_INPROGRESS: run it again. An error: the operation has failed. Where all ranks
 * come to the same error, a step sets the state's verdict, and the others are taken.
 */
typedef struct xep_step {
    const char *name; /* what is waited for, in the plural */
    const char *does; /* what is done, for the trace; NULL: as name has it */
    xep_status_t (*run)(void *mode, xep_op_t *op);
    xep_word_fn word;   /* what the step waits for from each rank; NULL: not for words */
    xep_store_fn store; /* what xep_step_send() sends: by stores to mapped ranks (NULL: as transfers to them, too), */
    xep_transfer_fn transfers; /* and as transfers to all others */
    xep_announced_t announced; /* only on the step whose word is a rank's last one (masks.h) */
    uint8_t hears_through;     /* its words may lie with others, as xep_step_wait_through() has it */
    uint8_t counts_rows;       /* its words do, as xep_rows_word(); else they are epochs */
    int agreed;                /* left out where the verdict is an error */
    int receives;              /* begin goes no further than here: the receive phase, which may be postponed */
    uint8_t kinds;             /* of operations that take it, in a list of several: XEP_KIND_*; 0: all */
    uint8_t at;                /* its place, XEP_AT_*; 0 in a mode that has no features */
    uint8_t opens;             /* of a step that was chosen: no step before it waits for words */
} xep_step_t;

/**
 * Places of steps, in the order in which they are taken, for modes with features: of dispatches, then of combines. A
 * feature has steps where others have none, or in place of those that others have there.
 */
enum {
    XEP_AT_OUTPUTS = 1, /* a next piece is a dispatch behind the outputs of the piece before */
    XEP_AT_MEMORY,      /* in which rows are read in place */
    XEP_AT_CAST,
    XEP_AT_BEGIN,   /* what a feature remembers of the operation */
    XEP_AT_ORDER,   /* of sums */
    XEP_AT_LISTS,   /* of what will be put */
    XEP_AT_TELL,    /* records; in ll packets and notices, too */
    XEP_AT_HEAR,    /* those of all ranks */
    XEP_AT_AGREE,   /* what they say is checked */
    XEP_AT_CHECK,   /* what they say of rows in place */
    XEP_AT_ROOM,    /* receivers are asked for it */
    XEP_AT_PLACES,  /* where rows go */
    XEP_AT_STAY,    /* rows in place do, with their rank */
    XEP_AT_MOVE,    /* rows go out, and the word behind them */
    XEP_AT_ROWS,    /* of all ranks are here */
    XEP_AT_COMPARE, /* digests */
    XEP_AT_SHOW,    /* a piece */
    XEP_AT_POINT,   /* at rows in place */
    XEP_AT_FLUSH,
    XEP_AT_END,
    XEP_AT_BEHIND, /* the end: memory that the wire may have read until the flush */
    XEP_AT_DRAIN,  /* from here on of combines */
    XEP_AT_INPUT,
    XEP_AT_BEGINS, /* readers are told where their rows begin in it */
    XEP_AT_OFFER,
    XEP_AT_READY, /* the offers of all ranks are here, and compared */
    XEP_AT_FOUND, /* which rows are summed, and where they begin */
    XEP_AT_SUM,
    XEP_AT_LEAVE, /* puts do: the flush */
    XEP_AT_READ,  /* owners are told that their rows were */
    XEP_PLACES
};

/** Operations that share a list: as they are; next pieces, with dispatches; those that cast; combines of pieces. */
enum { XEP_KIND_PLAIN = 1, XEP_KIND_NEXT = 2, XEP_KIND_CASTS = 4, XEP_KIND_PIECES = 8 };

enum {
    XEP_STEPS_MOST = 20, /* of an operation, and one behind them */
    /* the steps that were chosen for those that cast, and of pieces, lie behind those of each kind of operation */
    XEP_STEPS_CASTS = XEP_OP_NEXT + 1,
    XEP_STEPS_PIECES = XEP_STEPS_CASTS + 1,
    XEP_STEPS_LISTS = XEP_STEPS_PIECES + 2
};

/**
 * Composes the steps of a buffer: at each place those of the last feature that has any there, else those of the mode. A
 * step of a feature that has no name is the mode's at this place, which must have one, with another run and, where it
 * has them, another does, store and transfers; its word is the mode's. features: a list each, NULL where the buffer has
 * not that one. through: [R] the rank in whose heap this one finds what another one says, as
 * xep_words_arrived_through() has it; NULL: always in its own. xep_kit_open() has with none.
 */
void xep_steps_choose(void *mode, const xep_step_t *const *features, uint32_t count, const uint32_t *through);

/** The step that is due; those that were taken lie before it. */
const xep_step_t *xep_steps_at(const void *mode, const xep_op_t *op);

/** Takes the steps of op that begin may take. Called when all that dispatch or combine refuse was refused: XEP_OK. */
xep_status_t xep_steps_begin(void *mode, xep_op_t *op);

/** xep_plugin_t.progress. */
xep_status_t xep_steps_progress(void *mode, xep_op_t *op);

/** What an operation waits for, as xep_plugin_t.explain has it. */
void xep_steps_explain(void *mode, const xep_op_t *op, char *text, size_t bytes);

/**
 * Steps: sends what the step says; likewise, where all ranks are mapped; its transfers alone; waits until the words of
 * the step have come from all ranks; likewise, through others; until the wire has sent what is ours.
 */
xep_status_t xep_step_send(void *mode, xep_op_t *op);
xep_status_t xep_step_store(void *mode, xep_op_t *op);
xep_status_t xep_step_put(void *mode, xep_op_t *op);
xep_status_t xep_step_wait(void *mode, xep_op_t *op);
xep_status_t xep_step_wait_through(void *mode, xep_op_t *op);
xep_status_t xep_step_flush(void *mode, xep_op_t *op);

/** Of an entry of a list of steps, as most lists end. */
#define XEP_STEP_FLUSH .name = "rows to leave", .does = "flush", .run = xep_step_flush

#endif
