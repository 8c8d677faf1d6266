/* SPDX-License-Identifier: BSD-3-Clause */

/** A program that all ranks of a fuzz world run: what the input says, and what each rank has. */
#ifndef FUZZ_API_H
#define FUZZ_API_H

#include <xep/elastic.h>
#include <xep/xep.h>

#include "fuzz_patch.h"
#include "fuzz_target.h"
#include "fuzz_world.h"
#include "oracle.h"

enum { API_CALLS = 40, API_BUFFERS = 2, API_SLOTS = 3, API_BLOCKS = 1024 };

/** A call that the input describes, the same on every rank but for the patch. */
typedef struct api_call {
    uint32_t kind, buffer, slot, choice;
    int patched;
    xep_status_t status[FUZZ_MOST_RANKS]; /* of a patched one: how it ended, once "ended" counts the rank */
    uint32_t ended;
    uint32_t came; /* ranks, to one that needs all of them there */
    uint32_t only; /* rank that is patched; XEP_NO_RANK: all are */
    fuzz_patch_t patch;
} api_call_t;

/** What a dispatch sent, for the oracle; made by the first rank that comes to it. */
typedef struct api_truth {
    oracle_routing_t *routing;
    uint64_t tokens_of[FUZZ_MOST_RANKS];
    uint32_t node[FUZZ_MOST_RANKS]; /* by nodes: what shape.node is */
    oracle_shape_t shape;
    int weights; /* were given */
} api_truth_t;

typedef struct api_run {
    fuzz_options_t options;
    uint32_t ncalls;
    api_call_t calls[API_CALLS];
    api_truth_t truths[API_CALLS][FUZZ_MOST_RANKS]; /* by call, and by ranks of the group: there may be several */
    /* ranks may have gone apart, or an operation has failed: from then on any status is right, and nothing may crash */
    int dirty;
    void *blocks[API_BLOCKS]; /* memory of all callers: transports may read it until the groups are gone */
    uint32_t nblocks;
    uint32_t alive; /* ranks that go on with calls, a joiner too once it has joined */
    /* the joiner: it may begin to look for the group, it has joined, at which call; and what it finds there */
    int may_join, has_joined;
    ptrdiff_t joined_at;
    char address[XEP_ADDRESS_BYTES];
    size_t address_bytes;
    int had[API_BUFFERS];
    xep_buffer_params_t params[API_BUFFERS];
} api_run_t;

/** A handle of a rank, and the last operation of it. */
typedef struct api_handle {
    xep_handle_t *handle; /* NULL: none; may be released already */
    int released;
    const api_truth_t *truth; /* of its dispatch; NULL: the call was patched, or nobody looked how it ended */
    xep_request_t *req;
    char *out; /* of the combine that req is; NULL: a dispatch */
    size_t out_bytes, out_stride;
    char *missing; /* likewise, or NULL */
    size_t missing_bytes;
    oracle_shape_t sum; /* what out must be */
    int kept;           /* of several pieces: they have outputs */
    int combined;
} api_handle_t;

typedef struct api_rank {
    api_run_t *run;
    uint32_t rank, nranks; /* of the group */
    uint32_t origin;       /* the rank in the group before */
    int is_dead;
    int goes_on; /* the group has had a buffer that goes on without ranks; -1: perhaps, as its params were patched */
    xep_group_t *group;
    xep_buffer_t *buffers[API_BUFFERS];
    xep_buffer_params_t params[API_BUFFERS];
    api_handle_t handles[API_BUFFERS][API_SLOTS];
} api_rank_t;

/** One number of those that follow from a call's choice. */
uint64_t api_number(const api_call_t *call, uint32_t which, uint64_t n);

/** Memory that lives as long as the run. An output is poisoned, with margins that are looked at in the end. */
char *api_memory(api_run_t *run, size_t bytes);
char *api_output(api_run_t *run, size_t bytes);

/** A status is one of xep.h, and an error has a sentence. */
void api_check_status(const char *name, xep_status_t status);

/** NULL: there is no handle, or it has no rows. */
const xep_recv_t *api_recv(const xep_handle_t *handle);

/** Notes how a call ended: where nothing was wrong with it, only XEP_OK is right. */
void api_judge(api_rank_t *rank, const char *name, xep_status_t status, int was_good);

/** A patched call of a rank has ended: waits for that of all others. Where they ended differently, ranks go apart. */
void api_meet(const api_rank_t *rank, api_call_t *call, xep_status_t status);

/** What the patch of a call is on this rank; NULL: none. */
const fuzz_patch_t *api_patch(const api_rank_t *rank, const api_call_t *call);

/* ---- buffers: fuzz_buffers.c ---- */

void api_create(api_rank_t *rank, api_call_t *call);
void api_destroy(api_rank_t *rank, uint32_t buffer);

/* ---- members: fuzz_masks.c, fuzz_groups.c ---- */

void api_mask(api_rank_t *rank, const api_call_t *call);
void api_fall_silent(api_rank_t *rank, const api_call_t *call);
void api_shrink(api_rank_t *rank, api_call_t *call);
void api_grow(api_rank_t *rank, api_call_t *call);
void api_misuse_groups(const api_rank_t *rank, const api_call_t *call);

/** Of a joiner. Whether it has become a rank. */
int api_join(api_rank_t *rank);

/* ---- operations: fuzz_operations.c ---- */

void api_dispatch(api_rank_t *rank, api_call_t *call);
void api_combine(api_rank_t *rank, api_call_t *call);
void api_next(api_rank_t *rank, api_call_t *call); /* fuzz_pieces.c */
void api_wait(api_rank_t *rank, api_handle_t *handle);
void api_release(api_rank_t *rank, api_handle_t *handle);

#endif
