/* SPDX-License-Identifier: BSD-3-Clause */

/** All that a dispatch must have brought to a rank. */
#ifndef ORACLE_CHECK_H
#define ORACLE_CHECK_H

#include "oracle_data.h"
#include "oracle_differ.h"

/* ---- oracle_check_recv.c ---- */

/** 0, or 1 and the first difference. */
int oracle_check_recv(const oracle_shape_t *shape, uint32_t rank, const xep_recv_t *recv,
                      oracle_difference_t *difference_p);

/**
 * Rows that a rank must have room for: all it receives, with those that alignment leaves unused; padded: those of the
 * expert that gets most.
 */
uint64_t oracle_rows_needed(const oracle_shape_t *shape, uint32_t rank);

/* ---- oracle_check.c ---- */

/* The output while it is compared: what rows by rank and rows by expert have in common. */

typedef struct oracle_check {
    const oracle_shape_t *shape;
    const xep_recv_t *recv;
    uint32_t rank, nranks; /* this rank, of so many */
    uint32_t experts;      /* of this rank */
    int32_t *local;        /* [E] number of each expert on this rank; -1: another rank's */
    oracle_difference_t *difference;
    int32_t *idx;     /* [K] of the token in hand */
    float *weights;   /* [K] of the token in hand */
    void *sent;       /* its row */
    void *cast;       /* and what is made of that on the way */
    uint32_t *scales; /* that come with it */
} oracle_check_t;

void oracle_check_open(oracle_check_t *check, const oracle_shape_t *shape, uint32_t rank, const xep_recv_t *recv,
                       oracle_difference_t *difference);
void oracle_check_close(oracle_check_t *check);

/** Calls visit for every token of every rank, routed, until one returns non-zero: then 1. */
int oracle_check_each(oracle_check_t *check,
                      int (*visit)(oracle_check_t *check, void *arg, uint32_t src, uint64_t token), void *arg);

/** Number of a selected expert among this rank's, or -1. */
int32_t oracle_check_local(const oracle_check_t *check, int32_t expert);

/** So many selections, rounded up to the shape's alignment. */
uint64_t oracle_check_align(const oracle_check_t *check, uint64_t rows);

/* These return 1 and note the difference, or 0. */

int oracle_check_number(const oracle_check_t *check, const char *array, uint64_t row, uint64_t column,
                        uint64_t expected, uint64_t got);

/** Where a received row is: in x, or where its source has it. */
const void *oracle_row_at(const xep_recv_t *recv, uint64_t row);

/** What does not depend on who sent what. */
int oracle_check_form(const oracle_check_t *check, xep_rows_t arrangement, uint32_t topk);

/** Selection k of a row: topk_idx and, with weights, topk_weights. */
int oracle_check_selection(const oracle_check_t *check, uint64_t row, uint32_t k, int64_t expert, float weight);

/** Source, contents and scales of a row that a token must be. */
int oracle_check_row(oracle_check_t *check, uint64_t row, uint32_t src, uint64_t token);

/** Rows first .. end - 1 belong to no token. */
int oracle_check_unused(const oracle_check_t *check, uint64_t first, uint64_t end);

/* ---- oracle_check_by_expert.c ---- */

/* Rows by expert: local expert, then source rank, then source token, all ascending; cast or as they were. */

/** 0, or 1 and the first difference is noted. */
int oracle_check_by_expert(oracle_check_t *check);

/* ---- oracle_check_instances.c ---- */

/* Rows of either arrangement, also of a piece, where experts have several instances. */

/** 0, or 1 and the first difference is noted. */
int oracle_check_instances(oracle_check_t *check);

/* ---- oracle_check_by_rank.c ---- */

/* Rows by rank: source rank, then source token, both ascending. */

/** 0, or 1 and the first difference is noted. */
int oracle_check_by_rank(oracle_check_t *check);

#endif
