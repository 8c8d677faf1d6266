/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Compares the parameters that ranks gave to a collective operation: the same sentence for all parameters, modes and
 * ranks.
 */
#ifndef XEP_AGREE_H
#define XEP_AGREE_H

#include <stddef.h>
#include <stdint.h>

#include <xep/plugin.h>

/** A rank that says this of a parameter agrees with any value. */
#define XEP_AGREE_ANY UINT32_MAX

typedef enum { XEP_AGREE_NUMBER, XEP_AGREE_DTYPE, XEP_AGREE_YES_NO } xep_agree_kind_t;

/** A parameter: what users call it, and where it lies in what a rank says. */
typedef struct xep_agree_param {
    const char *name;
    xep_agree_kind_t kind;
    uint16_t offset, bytes; /* bytes: 1, or 4 */
} xep_agree_param_t;

#define XEP_AGREE_PARAM(_name, _kind, _struct, _field)                          \
    {                                                                           \
        _name, _kind, offsetof(_struct, _field), sizeof(((_struct *)0)->_field) \
    }

/**
 * 1: so many bytes are the same for all ranks that op has heard, stride bytes apart. Nearly always they are, and then
 * there is nothing to compare one by one.
 */
int xep_agree_are_same(const xep_op_t *op, const void *said, size_t bytes, size_t stride);

/**
 * Compares what all ranks said, which lies stride bytes apart. XEP_OK, or XEP_ERR_MISMATCH: "rank 0 and rank 3 disagree
 * on dtype: bf16, fp16". The sentence is about the first parameter on which a rank differs from the first rank with an
 * answer, so every rank gets the same one.
 */
xep_status_t xep_agree(const xep_env_t *env, xep_op_t *op, const xep_agree_param_t *params, uint32_t count,
                       const void *said, size_t stride);

/** The verdict of an operation that is ruled (xep_op_t.is_ruled): nothing is compared. */
xep_status_t xep_agree_decision(const xep_env_t *env, xep_op_t *op);

/**
 * Compares how many calls each rank has refused, at refused, stride bytes apart: where these differ, ranks are in
 * different calls of the same epoch. XEP_OK, or XEP_ERR_MISMATCH, with the most in op->refused.
 */
xep_status_t xep_agree_calls(const xep_env_t *env, xep_op_t *op, const void *refused, size_t stride);

#endif
