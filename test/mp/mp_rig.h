/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What multi-process tests share: a group, one dispatch and combine described by a few numbers,
 * guarded and poisoned outputs, and the oracle. A failed check ends the process with a sentence; the
 * launcher then ends the others.
 */
#ifndef TEST_MP_RIG_H
#define TEST_MP_RIG_H

#include <xep/xep.h>

#include "tool_oracle.h"

/** Says what failed, where, on which rank, and exits with 1. */
#define MP_CHECK(_condition) mp_check((_condition), __FILE__, __LINE__, #_condition)
#define MP_OK(_call) mp_status((_call), XEP_OK, __FILE__, __LINE__, #_call)
#define MP_FAILS(_status, _call) mp_status((_call), (_status), __FILE__, __LINE__, #_call)
/** The reason of the last error must hold the text. */
#define MP_REASON(_text) mp_reason((_text), __FILE__, __LINE__)

void mp_check(int condition, const char *file, int line, const char *what);
void mp_status(xep_status_t got, xep_status_t expected, const char *file, int line, const char *what);
void mp_reason(const char *text, const char *file, int line);
void mp_fail(const char *file, int line, const char *format, ...) __attribute__((noreturn, format(printf, 3, 4)));

/** The group of all ranks; its rank is put before messages. */
xep_group_t *mp_group(void);
uint32_t mp_rank(void);
uint32_t mp_nranks(void);

/** Exit status for a test that cannot run here; says why once. */
int mp_skip(const char *why);

/** Params of a small buffer, for tests that make them wrong. */
xep_buffer_params_t mp_small_params(void);

/* ---- memory ------------------------------------------------------------------ */

/** bytes between canaries, filled with 0xA5; begins misaligned by shift bytes from a 64-byte boundary. */
void *mp_alloc(size_t bytes, size_t shift);
/** Checks the canaries and frees; NULL is a no-op. */
void mp_free(void *memory, const char *what);

/* ---- one job ------------------------------------------------------------------- */

typedef struct mp_case {
    const char *name;
    const char *routing; /* of tool_route_parse(); NULL: uniform */
    uint32_t experts, topk, hidden;
    uint64_t tokens;        /* most of a rank */
    int ragged;             /* 1: ranks have different numbers of tokens, some 0; 2: rank 0 alone has any */
    uint32_t mask;          /* selections of 1000 that are -1; 1000: all */
    uint32_t nscales;
    xep_dtype_t dtype, combine_dtype, idx_dtype, scales_dtype; /* 0: bf16, bf16, int64, fp32 */
    int weights;            /* dispatch sends weights, combine sends them back */
    uint32_t alignment;
    int fixed_capacity;     /* received arrays have all rows a slot holds */
    unsigned biases;        /* bit 0, bit 1 */
    int copy_in;            /* expert outputs in private memory */
    int strided;            /* every input and output with more than a row between rows */
    uint32_t slots, threads;
} mp_case_t;

typedef struct mp_job {
    const mp_case_t *c;
    tool_routing_t *routing;
    tool_shape_t shape;
    xep_buffer_t *buffer;
    uint64_t tokens; /* of this rank */
    void *x, *idx, *out, *bias[2], *y;
    float *weights, *out_weights;
    uint32_t *scales;
    size_t x_stride, out_stride, y_stride;
    uint64_t inputs_hash;
} mp_job_t;

/** Inputs of a case on this rank; payload is the seed of its data. Collective only when it creates a buffer. */
void mp_job_open(mp_job_t *job, const mp_case_t *c, uint64_t seed);
void mp_job_buffer(mp_job_t *job, xep_group_t *group);
/** New rows for the same routing. */
void mp_job_payload(mp_job_t *job, uint64_t payload);
void mp_job_close(mp_job_t *job);

xep_dispatch_args_t mp_job_dispatch(const mp_job_t *job);
/** Expert outputs where the case wants them, and the args to combine them; poisons the outputs. */
xep_combine_args_t mp_job_combine(mp_job_t *job, xep_handle_t *handle);

void mp_job_check_recv(mp_job_t *job, const xep_handle_t *handle);
void mp_job_check_out(mp_job_t *job);
/** Inputs are as they were. */
void mp_job_check_inputs(const mp_job_t *job);

/** Dispatch, check, combine, check, release: blocking. */
void mp_job_round(mp_job_t *job);

#endif
