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
    uint8_t rows_bits;         /* of its words, below the epoch: a count of rows; 0: they are epochs */
    int agreed;                /* left out where the verdict is an error */
    int receives;              /* begin goes no further than here: the receive phase, which may be postponed */
    uint16_t with, without;    /* what a buffer has that takes the step, and what it has not: a bit for each feature */
    /* of a step that was chosen: */
    uint8_t opens;           /* no step before it waits for words */
    const uint32_t *through; /* [R] who is heard through whom, as xep_words_arrived_through() has it; NULL: nobody */
} xep_step_t;

enum {
    XEP_STEPS_MOST = 20,         /* of an operation, and one behind them */
    XEP_STEPS_OF_NEXT = 1 << 15, /* the feature of next pieces, which share a list with dispatches */
    /* of operations that cast, in a mode that takes other steps then; their lists lie behind those of each kind */
    XEP_STEPS_OF_CASTS = 1 << 14,
    XEP_STEPS_CASTS = XEP_OP_NEXT + 1
};

/**
 * Chooses those steps of the mode's lists that a buffer with these features takes. through: [R] the rank in whose heap
 * this one finds what another one says (forwarders.h); NULL: always in its own. xep_kit_open() has with none.
 */
void xep_steps_choose(void *mode, unsigned features, const uint32_t *through);

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
