/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * One dispatch and combine of any mode, described by a few numbers: inputs, guarded and poisoned outputs, arguments,
 * and the oracle to compare with.
 */
#ifndef TEST_MP_JOB_H
#define TEST_MP_JOB_H

#include <xep/xep.h>

#include "oracle.h"

typedef struct mp_case {
    const char *name;
    const char *mode;    /* NULL: normal */
    const char *routing; /* of oracle_route_parse(); NULL: uniform */
    const char *owners;  /* of oracle_owners_make(); NULL: blocks, without a map */
    /* experts on several ranks: rows are compared whichever of them they came to; normal must sum fp32 */
    const xep_replica_t *replicas;
    uint32_t nreplicas;
    xep_balance_t balance; /* of the buffer: dispatches say by flags whether they are balanced */
    xep_plan_fn plan;
    void *plan_ctx;
    const oracle_source_t *source; /* NULL: the generator's */
    uint32_t experts, topk, hidden;
    uint64_t tokens; /* most of a rank */
    int ragged;      /* 1: ranks have different numbers of tokens, some 0; 2: rank 0 alone has any */
    uint32_t works;  /* a bit for each rank that has tokens, of the lowest 32; 0: all that ragged has */
    int served;      /* other ranks may serve */
    int says_none;   /* a rank without tokens says so when the buffer is made */
    uint32_t mask;   /* selections of 1000 that are -1; 1000: all */
    uint32_t nscales;
    uint32_t payloads;                                         /* how many */
    xep_dtype_t dtype, combine_dtype, idx_dtype, scales_dtype; /* 0: bf16, bf16, int64, fp32 */
    int weights;       /* dispatch is given weights; normal: combine sends them back, ll: it applies them */
    int sent;          /* ll: they travel with the rows */
    xep_quant_t quant; /* ll */
    float quant_scale;
    uint32_t alignment;
    int fixed_capacity; /* received arrays have all rows a slot holds */
    unsigned biases;    /* bit 0, bit 1 */
    int copy_in;        /* expert outputs in private memory */
    int strided;        /* every input and output with more than a row between rows; 2: to whole packs of 16 bytes */
    int in_place;       /* 1: rows lie in send memory; 2: the same, and the caller has them elsewhere */
    uint64_t recv_rows; /* of the buffer; 0: the worst case */
    int pieces;         /* 1: dispatches may come in pieces; 2: the buffer could, and they do not */
    uint32_t slots, threads;
    xep_path_t path;
    uint64_t pass_rows;
    xep_on_failure_t on_failure;
    int32_t timeout_ms;  /* of the buffer */
    xep_memory_t memory; /* of the buffer; the arrays of the job are the host's in any case */
} mp_case_t;

/** Fields of a case that all have. */
#define MP_SHAPE(_experts, _topk, _hidden, _tokens) \
    .experts = (_experts), .topk = (_topk), .hidden = (_hidden), .tokens = (_tokens)
#define MP_FP32 .dtype = XEP_FP32, .combine_dtype = XEP_FP32

/** Shapes that every way of moving rows is tried on: in each mode, by nodes, in pieces, in place, on devices. */
enum { MP_SHAPES = 14 };
mp_case_t mp_shape(uint32_t number, const char *mode);
/** Which comes after it; every third where XEP_TEST_BRIEF is "quick". */
uint32_t mp_next_shape(uint32_t number);

typedef struct mp_job {
    const mp_case_t *c;
    oracle_routing_t *routing;
    oracle_shape_t shape;
    xep_buffer_t *buffer;
    uint64_t tokens;     /* of this rank */
    uint32_t *nodes;     /* [R] of each rank of the buffer's group */
    uint32_t *instances; /* [E] of the shape */
    uint8_t *afar;       /* [R] those that are not mapped, whose outputs a combine in fewer bits encodes */
    int may_be_out;      /* others may leave this rank out at any moment, in which a call gives it no memory */
    void *x, *idx, *out, *bias[2], *y;
    float *weights, *out_weights;
    uint32_t *scales;
    xep_payload_t payloads[XEP_PAYLOADS_MOST];
    size_t x_stride, out_stride, y_stride;
    uint64_t inputs_hash;
} mp_job_t;

/** Inputs of a case on this rank; payload is the seed of its data. Collective only when it creates a buffer. */
void mp_job_open(mp_job_t *job, const mp_case_t *c, uint64_t seed);
void mp_job_buffer(mp_job_t *job, xep_group_t *group);
/** Both. */
void mp_job_begin(mp_job_t *job, const mp_case_t *c, uint64_t seed, xep_group_t *group);
/** The buffer, where making it may fail. */
xep_status_t mp_job_try_buffer(mp_job_t *job, xep_group_t *group);
/** New rows for the same routing. */
void mp_job_payload(mp_job_t *job, uint64_t payload);
void mp_job_close(mp_job_t *job);

/** Checks expect from here on what a dispatch with these brings: of the case, or of its rows by an earlier routing. */
xep_dispatch_args_t mp_job_dispatch(mp_job_t *job);
xep_dispatch_args_t mp_job_cached(mp_job_t *job, xep_handle_t *cached);
/** The same args, with rows to be read in place, as the case says: asks for send memory. */
void mp_job_place(mp_job_t *job, xep_dispatch_args_t *args);
/** Expert outputs where the case wants them, and the args to combine them; poisons the outputs. */
xep_combine_args_t mp_job_combine(mp_job_t *job, xep_handle_t *handle);

void mp_job_check_recv(mp_job_t *job, const xep_handle_t *handle);
void mp_job_check_out(mp_job_t *job);
/** Sets of ranks that are out of an operation, by the bits of their numbers: from here on they have no tokens. */
void mp_job_tokens_without(mp_job_t *job, uint32_t out);
/**
 * Those whose experts' selections are missing [tokens][topk], all of each: which ranks are out shows in no other way,
 * so tokens must have selected experts of all. Sums are expected without them, until shape.without is 0 again.
 */
uint32_t mp_job_sums_without(mp_job_t *job, const uint8_t *missing);
/** Inputs are as they were. */
void mp_job_check_inputs(const mp_job_t *job);

/** A blocking dispatch of what is in the input, whose rows are not compared. */
xep_handle_t *mp_job_send(mp_job_t *job);
/** A blocking dispatch with these args, checked; NULL: those of mp_job_dispatch(). */
xep_handle_t *mp_job_receive(mp_job_t *job, const xep_dispatch_args_t *args);
/** A blocking combine of what the experts make of it, checked. */
void mp_job_sum(mp_job_t *job, xep_handle_t *handle);

/** A dispatch with these args fails on this rank, for a reason that holds the text, and gives no handle. */
#define MP_REFUSES(_job, _args, _status, _text) mp_job_refuses((_job), (_args), (_status), (_text), __FILE__, __LINE__)
void mp_job_refuses(const mp_job_t *job, const xep_dispatch_args_t *args, xep_status_t status, const char *text,
                    const char *file, int line);

/** Both, and the release. */
void mp_job_round(mp_job_t *job);
/** So many, of payload and those behind it. */
void mp_job_rounds(mp_job_t *job, uint32_t count, uint64_t payload);

/** The same with other rows, and ranks that may fail meanwhile: the first error. What was received stays readable. */
xep_status_t mp_job_try_round(mp_job_t *job, uint64_t payload);
/** Three rounds of two jobs with the same inputs, on buffers that differ: the sums have the same bits. Closes both. */
void mp_job_compare(mp_job_t *one, mp_job_t *other, uint64_t payload);
/** Seconds of a dispatch and a combine of what is in the input, with nothing checked. */
double mp_job_time(mp_job_t *job);

/** Whether a status is what others leave behind that die or give up. */
int mp_is_failure_of_others(xep_status_t status);

#endif
