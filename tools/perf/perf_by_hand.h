/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Rows that are planned, stored and summed by plain loops and the kernels of the modes: what the limit does in private
 * memory, and --peer in memory that all ranks share.
 */
#ifndef PERF_BY_HAND_H
#define PERF_BY_HAND_H

#include "cast.h"
#include "copy.h"
#include "perf.h"
#include "weigh.h"

/** What a rank announces when it is there: its counts, its rows, the outputs of its experts. */
typedef enum { PERF_COUNTS, PERF_ROWS, PERF_OUTPUTS, PERF_WORDS } perf_word_t;

/** The words of a rank, which it alone writes: the last step whose counts, rows, outputs are there. */
typedef struct perf_told {
    struct {
        _Alignas(128) _Atomic uint64_t step;
    } of[PERF_WORDS];
} perf_told_t;

typedef struct perf_by_hand {
    perf_t *perf;
    /* where each token goes: what any dispatch must know before it can move a row */
    uint32_t ndest;   /* destinations: ranks, or experts where rows are by expert */
    uint32_t width;   /* most destinations of a token */
    uint32_t *owner;  /* [experts] destination of an expert */
    uint32_t *copies; /* [T] destinations of a token */
    uint32_t *to;     /* [T][width] these, in order of selection */
    uint64_t *place;  /* [T][width] row within that destination's share */
    uint64_t *begin;  /* [ndest + 1] first row of a destination's share, of all rows this rank sends */
    uint64_t *seen;   /* [ndest] last token, plus 1, that went there */
    /* where rows are, set by whoever has the memory */
    char *memory;          /* of destination 0 */
    size_t each;           /* bytes from one destination's memory to the next one's; 0: all are in one memory */
    size_t x, scales, out; /* begin of dispatched rows, of what is beside them, and of experts' outputs in it */
    const uint64_t *first; /* [ndest] first row of this rank in each destination */
    int by_rank;           /* sums have the order of destinations, not of selections */
    /* NULL, or stores what goes with a row besides: of a token's i-th destination */
    void (*beside)(const perf_t *perf, uint64_t token, uint32_t i);
    /* of memory that all ranks share */
    perf_told_t *told; /* [R] of each rank, the begin of it; NULL: memory is private, and nobody is told */
    size_t shared;     /* bytes */
    uint64_t step;     /* dispatches so far; a combine is of the same step, as one comes behind each at most */
    /* the kernels: those of the modes, the widest that this CPU runs, whatever XEP_SIMD says to the modes */
    xep_copy_fn copy_streaming, copy_fetching;
    xep_weigh_fn sum[2]; /* [1]: streaming */
    xep_cast_t cast;
    char *row, *row_scales; /* what it makes of a row; NULL: nothing is cast */
    const void **terms;     /* [T][width] */
} perf_by_hand_t;

/** Zeroed before. In private memory until the caller sets another one; planned once. */
void perf_by_hand_open(perf_by_hand_t *hand, perf_t *perf);
void perf_by_hand_close(perf_by_hand_t *hand);

/**
 * Memory that all ranks see and which has no name any more: words of all of them, and behind these so many bytes of
 * zeros, the same number on every rank. 0, or there is none on some rank, and -1 with errno on all. All ranks are on
 * one machine. Collective.
 */
int perf_by_hand_share(perf_by_hand_t *hand, size_t bytes);

/** Which destinations a token has, each once, and which row it is there. */
void perf_by_hand_plan(perf_by_hand_t *hand);

/** Number of a token's row in the memory of its i-th destination. */
static inline uint64_t perf_by_hand_row(const perf_by_hand_t *hand, uint64_t token, uint32_t i)
{
    const uint64_t at = token * hand->width + i;

    return hand->first[hand->to[at]] + hand->place[at];
}

/**
 * Stored with release behind what it tells of, loaded with acquire before that is read. Nobody writes over what another
 * one still reads, as the caller has a barrier between two steps.
 */
void perf_by_hand_tell(const perf_by_hand_t *hand, perf_word_t word);
void perf_by_hand_await(const perf_by_hand_t *hand, uint32_t rank, perf_word_t word);

/** Casts each row if the dispatch does, and stores it everywhere it goes; in shared memory, until all ranks have. */
void perf_by_hand_store(const perf_by_hand_t *hand, int streaming);

/** Reads each output once, when those of all ranks are there, and stores one sum for each token. */
void perf_by_hand_sum(const perf_by_hand_t *hand, char *sums, int streaming);

/* ---- perf_by_hand_limit.c: the least these operations can take ---- */

typedef struct perf_limit perf_limit_t;

/**
 * Bytes of this rank's machine that opening takes for this rank, at most, and of each array of private memory that rows
 * are taken to; once it is known how many rows there are.
 */
uint64_t perf_limit_bytes(const perf_t *perf);
size_t perf_limit_taken_bytes(const perf_t *perf);

/** perf->limit. Opening is collective; closing, too, of devices. */
void perf_limit_open(perf_t *perf);
void perf_limit_close(perf_t *perf);

/** As operations, with cached or with streaming stores (perf->streaming). */
void perf_limit_dispatch(perf_t *perf);
void perf_limit_combine(perf_t *perf);

/** Writes what the combine sums, unless the dispatch has just stored rows there that can be summed. */
void perf_limit_experts(perf_t *perf);

/* ---- perf_by_hand_cuda.c: what devices and their links need for the same bytes, in one piece for each peer ---- */

typedef struct perf_cuda_limit perf_cuda_limit_t;

/** NULL without --memory cuda. Both are collective. */
perf_cuda_limit_t *perf_cuda_limit_open(const perf_by_hand_t *hand);
void perf_cuda_limit_close(perf_cuda_limit_t *limit);

/** Copies to the peers for a dispatch, from them for a combine. in_turn: one peer after the other, else all at once. */
void perf_cuda_limit_run(const perf_cuda_limit_t *limit, perf_op_t op, int in_turn);

/* ---- perf_by_hand_peer.c ---- */

/*
 * What a program for one machine would do by hand, without a library: rows stored straight into the receiver's memory,
 * read where they are for the sum, counts and flags in shared words. Slots, errors, deadlines, other machines, other
 * layouts it does not have. Rows by rank; checked by the oracle with --check.
 */

typedef struct perf_peer perf_peer_t;

/** Into perf->peer. Collective. */
void perf_peer_open(perf_t *perf);
void perf_peer_close(perf_peer_t *peer);

/**
 * As operations, with cached or with streaming stores (perf->streaming). Each begins when all ranks have ended the one
 * before, which the caller sees to with a barrier.
 */
void perf_peer_dispatch(perf_t *perf);
void perf_peer_experts(perf_t *perf);
void perf_peer_combine(perf_t *perf);

/** What the last dispatch brought to this rank; sums are in peer_sums. */
const xep_recv_t *perf_peer_recv(perf_peer_t *peer);

#endif
