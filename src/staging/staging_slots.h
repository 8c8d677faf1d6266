/* SPDX-License-Identifier: BSD-3-Clause */

/** The memory of copies, as the files of staging know it. */
#ifndef XEP_STAGING_SLOTS_H
#define XEP_STAGING_SLOTS_H

#include "buffer.h"

/** Offsets in a slot's host memory, which its dispatch and its combine use one after the other. */
typedef struct staged_inputs {
    uint64_t x, idx, weights, scales;                   /* of a dispatch: [T]... */
    uint64_t stats, rows;                               /* [L] int32_t, uint64_t: what it adds to, and tells */
    uint64_t y, y_weights;                              /* of a combine: [recv_rows]... */
    uint64_t bias[2], source_weights, out, out_weights; /* [T]... */
    uint64_t bytes;
} staged_inputs_t;

/** Offsets in a slot's memory of the device: the arrays of xep_recv_t, and the input of combines. */
typedef struct staged_views {
    uint64_t x, idx, weights, scales, src_token;      /* [recv_rows]... */
    uint64_t input;                                   /* [recv_rows][y_stride] */
    uint64_t expert_rows, expert_begin, expert_count; /* [L] uint64_t */
    uint64_t pair_begin, pair_count;                  /* [L][R] uint32_t */
    uint64_t bytes;
} staged_views_t;

typedef struct staged_slot {
    xep_recv_t shown;
    xep_combine_args_t combine; /* as the caller gave them */
    /* where the caller wants what a dispatch tells; NULL: nowhere, or the mode writes it there itself */
    int32_t *stats;
    uint64_t *rows;
    int is_direct;   /* the dispatch has its rows in the twin */
    int sums_direct; /* the last combine has stored its sums where the caller wants them */
    uint64_t coming; /* rows that the operation is given, which come in parts */
    uint32_t parts, parts_here;
    uint8_t *came; /* [nranks] 1: rows of the rank are on their way to the device */
} staged_slot_t;

/**
 * The rows of an operation come in at most so many parts, each of at least so many bytes: less is not worth another
 * copy.
 */
enum { STAGED_PARTS = 8, STAGED_PART_BYTES = 256 * 1024 };

/** The note of a part of a slot; note 0 belongs to xep_staging_wait(). */
static inline uint32_t staged_note(uint32_t slot, uint32_t part)
{
    return 1 + slot * STAGED_PARTS + part;
}

/** The first row of a part; for the part behind the last one: the number of rows. */
static inline uint64_t staged_part_begin(const staged_slot_t *slot, uint32_t part)
{
    return slot->parts == 0 ? slot->coming
                            : slot->coming / slot->parts * part + slot->coming % slot->parts * part / slot->parts;
}

/** What staging asks graphs, which use staging themselves: staging_graph.h. */
typedef struct xep_graphs_doors {
    /** Whether the operation is called on a stream that is being captured; and captures it. */
    int (*want)(const xep_request_t *req);
    xep_status_t (*capture)(xep_request_t *req);
    /** The mode has refused an operation: if it was captured, no launch runs it. */
    void (*refused)(const xep_request_t *req);
    /** Whether the request is of a capture or a launch; and xep_staging_show() of it. */
    int (*have)(const xep_request_t *req);
    xep_status_t (*show)(xep_request_t *req, xep_status_t status);
    /** Whether anything was captured. */
    int (*are_open)(const xep_buffer_t *buffer);
    /** Goes on with what launches ask. The caller holds the buffer. */
    void (*look)(xep_buffer_t *buffer);
} xep_graphs_doors_t;

struct xep_staging {
    staged_inputs_t inputs;
    staged_views_t views;
    uint64_t x_stride, y_stride; /* of rows here, and of a slot's input there */
    char *here, *there;          /* [slots][inputs.bytes], [slots][views.bytes] */
    int pinned;
    xep_status_t (*take_on_host)(xep_request_t *req); /* buffer->take_dispatch for what was copied; NULL: none */
    struct xep_direct *direct;                        /* staging_direct.c; NULL: no rows are direct */
    /* what copies are enqueued on: the buffer's device, or while a captured operation is taken or shown, a list */
    xep_heap_device_t *to;
    struct xep_graphs *graphs;       /* NULL, as the doors: streams that are captured are refused */
    const xep_graphs_doors_t *doors; /* of graphs */
    void *layout; /* pinned memory of layouts, as large as the largest so far; NULL: there was none */
    uint64_t layout_bytes;
    uint8_t *came; /* of all slots */
    staged_slot_t slots[];
};

static inline char *staged_here(const xep_buffer_t *buffer, uint32_t slot, uint64_t offset)
{
    return buffer->staging->here + slot * buffer->staging->inputs.bytes + offset;
}

static inline char *staged_there(const xep_buffer_t *buffer, uint32_t slot, uint64_t offset)
{
    return buffer->staging->there + slot * buffer->staging->views.bytes + offset;
}

#endif
