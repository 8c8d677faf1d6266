/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Reports the first parameter that differs, and the lowest two ranks, so that every rank says the same. A rank without
 * an answer (no tokens, so no weights) agrees with all.
 */
#include "agree.h"

#include <stdio.h>
#include <string.h>

#include "rows.h"

/** A rank and what it said. */
typedef struct opinion {
    uint32_t rank, value;
} opinion_t;

int xep_agree_are_same(const xep_op_t *op, const void *said, size_t bytes, size_t stride)
{
    const char *first = (const char *)said + op->heard.rank[0] * stride;
    uint32_t i = 1;
    while (i < op->heard.count && memcmp((const char *)said + op->heard.rank[i] * stride, first, bytes) == 0) i++;
    return i >= op->heard.count;
}

/*
 * A parameter of one byte is a small enum or a flag; all others have four. Read by memcpy(): the array may have any
 * stride.
 */
static uint32_t value_of(const xep_agree_param_t *param, const char *said)
{
    uint32_t value;
    if (param->bytes == 1) return (uint8_t)said[param->offset];
    memcpy(&value, said + param->offset, sizeof value);
    return value;
}

/* A peer may have written an invalid type: then its number is shown. */
static void write_value(xep_agree_kind_t kind, uint32_t value, char *text, size_t bytes)
{
    const char *name = kind == XEP_AGREE_DTYPE ? xep_elem_name((xep_dtype_t)value) : NULL;
    if (kind == XEP_AGREE_YES_NO) name = value != 0 ? "yes" : "no";
    if (name != NULL) snprintf(text, bytes, "%s", name);
    else snprintf(text, bytes, "%u", value);
}

static xep_status_t disagree(const xep_env_t *env, xep_op_t *op, const xep_agree_param_t *param, opinion_t a,
                             opinion_t b)
{
    char text[2][16];
    write_value(param->kind, a.value, text[0], sizeof text[0]);
    write_value(param->kind, b.value, text[1], sizeof text[1]);
    return env->fail(env, op, XEP_ERR_MISMATCH, "rank %u and rank %u disagree on %s: %s, %s", a.rank, b.rank,
                     param->name, text[0], text[1]);
}

xep_status_t xep_agree(const xep_env_t *env, xep_op_t *op, const xep_agree_param_t *params, uint32_t count,
                       const void *said, size_t stride)
{
    for (const xep_agree_param_t *param = params; param < params + count; param++) {
        /* ranks ascending, so that all ranks name the same two of those that differ */
        opinion_t first = {.value = XEP_AGREE_ANY};
        for (uint32_t i = 0; i < op->heard.count; i++) {
            uint32_t r = op->heard.rank[i];
            opinion_t one = {r, value_of(param, (const char *)said + r * stride)};
            if (one.value == XEP_AGREE_ANY || one.value == first.value) continue;
            if (first.value != XEP_AGREE_ANY) return disagree(env, op, param, first, one);
            first = one;
        }
    }
    return XEP_OK;
}

xep_status_t xep_agree_decision(const xep_env_t *env, xep_op_t *op)
{
    if (op->decision == XEP_OK) return XEP_OK;
    return env->fail(env, op, op->decision,
                     "the others have ended this operation: a rank that is out told them why, but not this rank");
}

static opinion_t refused_by(const void *refused, size_t stride, uint32_t rank)
{
    opinion_t one = {.rank = rank};
    memcpy(&one.value, (const char *)refused + rank * stride, sizeof one.value);
    return one;
}

/* The count wraps, so its difference to that of the first rank is compared: all ranks name the same two. */
xep_status_t xep_agree_calls(const xep_env_t *env, xep_op_t *op, const void *refused, size_t stride)
{
    opinion_t first = refused_by(refused, stride, op->heard.rank[0]), least = first, most = first;
    for (uint32_t i = 1; i < op->heard.count; i++) {
        opinion_t one = refused_by(refused, stride, op->heard.rank[i]);
        if ((int32_t)(one.value - first.value) < (int32_t)(least.value - first.value)) least = one;
        if ((int32_t)(one.value - first.value) > (int32_t)(most.value - first.value)) most = one;
    }
    if (least.value == most.value) return XEP_OK;
    op->refused = most.value;
    return env->fail(env, op, XEP_ERR_MISMATCH,
                     "rank %u and rank %u are not in the same call: %u of those before it failed on rank %u alone",
                     least.rank, most.rank, most.value - least.value, most.rank);
}
