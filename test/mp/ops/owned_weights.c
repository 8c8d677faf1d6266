/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1 3 5, limit: 120, brief: 3 */

/*
 * The weights of all experts: read where they are and by copies, copies that are given up and fetched again, weights
 * that change while others read, gradients in the order of ranks, and what is wrong.
 */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mp_rig.h"
#include <xep/experts.h>

enum { EXPERTS = 7, BYTES = 700003, ELEMENTS = 70001, VERSIONS = 40 };

static uint32_t owners[EXPERTS];

static xep_weights_params_t params(void)
{
    xep_weights_params_t p = XEP_WEIGHTS_PARAMS_INIT;
    p.experts = EXPERTS, p.bytes = BYTES, p.owners = owners, p.elements = ELEMENTS, p.gradients = 3;
    return p;
}

/* The last rank has most of them, and rank 1 none. */
static void deal(void)
{
    for (uint32_t e = 0; e < EXPERTS; e++) owners[e] = e % 3 == 1 && mp_nranks() > 2 ? 2 : e < 2 ? 0 : mp_nranks() - 1;
}

static void fill(xep_weights_t *weights, uint32_t version)
{
    void *base;
    for (uint32_t e = 0; e < EXPERTS; e++) {
        if (owners[e] != mp_rank()) continue;
        MP_OK(xep_weights_change(weights, e, &base));
        for (size_t i = 0; i < BYTES; i++) ((uint8_t *)base)[i] = (uint8_t)(i * 7 + (i >> 9) + e * 31 + version);
        MP_OK(xep_weights_publish(weights, e));
    }
}

static void read_all(xep_weights_t *weights, uint32_t version)
{
    const void *base;
    for (uint32_t i = 0; i < 3 * EXPERTS; i++) { /* more than there are copies */
        const uint32_t e = (i * 3 + mp_rank()) % EXPERTS;
        if (i % 4 == 0) MP_OK(xep_weights_prefetch(weights, e));
        MP_OK(xep_weights_of(weights, e, &base));
        for (size_t j = 0; j < BYTES; j++)
            MP_CHECK(((const uint8_t *)base)[j] == (uint8_t)(j * 7 + (j >> 9) + e * 31 + version));
    }
}

/* Two copies: the one that was asked for longer ago gives way. */
static void least_recently_used(xep_weights_t *weights)
{
    const void *base[3], *again;
    uint32_t others[EXPERTS], count = 0;
    for (uint32_t e = 0; e < EXPERTS; e++)
        if (owners[e] != mp_rank()) others[count++] = e;
    if (count < 3) return;
    MP_OK(xep_weights_of(weights, others[0], &base[0]));
    MP_OK(xep_weights_of(weights, others[1], &base[1]));
    MP_OK(xep_weights_of(weights, others[0], &again));
    MP_CHECK(again == base[0]);
    MP_OK(xep_weights_of(weights, others[2], &base[2]));
    MP_CHECK(base[2] == base[1] && base[2] != base[0]);
    MP_OK(xep_weights_of(weights, others[0], &again));
    MP_CHECK(again == base[0]);
}

static void unfilled(xep_group_t *group, xep_weights_t *weights)
{
    const void *base = NULL;
    char text[96];
    const uint32_t e = mp_is_last() ? 0 : EXPERTS - 1;
    snprintf(text, sizeof text, "the weights of expert %u are not filled: rank %u", e, owners[e]);
    MP_SAYS(XEP_ERR_INVALID, text, xep_weights_of(weights, e, &base));
    MP_OK(xep_group_barrier(group));
    MP_CHECK(base == NULL);
}

/* Rank 0 changes expert 0 for ever, at any distance; a copy has one version alone. */
static void torn(xep_group_t *group, xep_weights_t *weights, atomic_int *ended)
{
    const void *base;
    void *own;
    int last = -1, seen = 0;
    for (int i = 0; mp_rank() == 0 && atomic_load(ended) < (int)mp_nranks() - 1; i++) {
        MP_OK(xep_weights_change(weights, 0, &own));
        memset(own, i, BYTES);
        MP_OK(xep_weights_publish(weights, 0));
        if (i == 0) MP_OK(xep_group_barrier(group));
        mp_sleep_us((unsigned)(i % 13) * 100);
    }
    if (mp_rank() != 0) MP_OK(xep_group_barrier(group));
    while (mp_rank() != 0 && seen < VERSIONS) {
        MP_OK(xep_weights_of(weights, 0, &base));
        const uint8_t *bytes = base;
        for (size_t j = 1; j < BYTES; j++) MP_CHECK(bytes[j] == bytes[0]);
        seen += bytes[0] != last;
        last = bytes[0];
    }
    if (mp_rank() != 0) atomic_fetch_add(ended, 1);
    MP_OK(xep_group_barrier(group));
}

/* ---- gradients ---- */

/* Of very different sizes, so that another order has other bits. */
static float gradient(uint32_t rank, uint32_t e, uint32_t i)
{
    const float size[] = {1, 1e4f, 3e7f, 1e-3f, 77};
    return size[(rank + e + i) % 5] * (float)((int)((rank * 37 + e * 11 + i) % 19) - 9);
}

/* Rank r has some for experts r, r + 1, r + 3; rank 1 for none. */
static uint32_t list_experts(uint32_t rank, uint32_t experts[3])
{
    uint32_t count = 0;
    for (uint32_t e = 0; e < EXPERTS && rank != 1 && count < 3; e++)
        if (e == rank || e == rank + 1 || e == rank + 3) experts[count++] = e;
    return count;
}

static void reduce(xep_weights_t *weights)
{
    xep_weights_reduce_args_t args = XEP_WEIGHTS_REDUCE_ARGS_INIT;
    float *x[3], *out = mp_alloc(EXPERTS * ELEMENTS * sizeof *out, 0);
    const float *given[3];
    uint32_t experts[3], local = 0;
    args.count = list_experts(mp_rank(), experts), args.experts = experts, args.x = given, args.out = out;
    for (uint32_t i = 0; i < 3; i++) {
        given[i] = x[i] = mp_alloc(ELEMENTS * sizeof(float), 0);
        for (uint32_t j = 0; i < args.count && j < ELEMENTS; j++) x[i][j] = gradient(mp_rank(), experts[i], j);
    }
    for (uint32_t i = 0; i < EXPERTS * ELEMENTS; i++) out[i] = 0.5f;
    MP_OK(xep_weights_reduce(weights, &args));
    for (uint32_t e = 0; e < EXPERTS; e++) {
        if (owners[e] != mp_rank()) continue;
        for (uint32_t j = 0; j < ELEMENTS; j++) {
            float sum = 0.5f;
            for (uint32_t r = 0; r < mp_nranks(); r++) {
                uint32_t theirs[3], count = list_experts(r, theirs);
                for (uint32_t i = 0; i < count; i++)
                    if (theirs[i] == e) sum += gradient(r, e, j);
            }
            MP_CHECK(out[local * ELEMENTS + j] == sum);
        }
        local++;
    }
    if (mp_is_last()) args.count = 4; /* the others are told, and nothing is added */
    else if (args.count == 0) args.experts = NULL;
    const float before = out[0];
    MP_SAYS(XEP_ERR_INVALID, mp_nranks() == 1 || mp_is_last() ? "invalid count: 4" : "cannot go on with its gradients",
            xep_weights_reduce(weights, &args));
    MP_CHECK(out[0] == before);
    for (uint32_t i = 0; i < 3; i++) mp_free(x[i], "x");
    mp_free(out, "out");
}

/* ---- what is wrong ---- */

static void wrong(xep_group_t *group, xep_weights_t *weights)
{
    xep_weights_t *none = NULL;
    xep_weights_params_t p = params();
    uint32_t other[EXPERTS];
    void *own = NULL;
    const void *base = NULL;
    MP_SAYS(XEP_ERR_INVALID, "invalid expert: 7 (one of 7)", xep_weights_of(weights, EXPERTS, &base));
    for (uint32_t e = 0; e < EXPERTS; e++) {
        if (owners[e] == mp_rank()) MP_FAILS(XEP_ERR_INVALID, xep_weights_publish(weights, e));
        else MP_FAILS(XEP_ERR_INVALID, xep_weights_change(weights, e, &own));
    }
    p.bytes = 0;
    MP_SAYS(XEP_ERR_INVALID, "invalid bytes: 0", xep_weights_create(group, &p, &none));
    if (mp_nranks() == 1) return;
    p = params();
    if (mp_is_last()) p.bytes = 0;
    MP_SAYS(XEP_ERR_INVALID, mp_is_last() ? "invalid bytes: 0" : "cannot go on with its weights",
            xep_weights_create(group, &p, &none));
    p = params();
    if (mp_is_last()) p.bytes++;
    MP_SAYS(XEP_ERR_MISMATCH, "and rank 0 disagree on bytes: 700004, 700003", xep_weights_create(group, &p, &none));
    p = params();
    memcpy(other, owners, sizeof other);
    if (mp_is_last()) other[4] = (owners[4] + 1) % mp_nranks();
    p.owners = other;
    MP_SAYS(XEP_ERR_MISMATCH, "disagree on owners[4]", xep_weights_create(group, &p, &none));
    MP_CHECK(none == NULL);
}

/* has_thread: ranks make progress while they compute, and none is mapped. */
static void all(xep_group_t *group, atomic_int *ended, int has_thread)
{
    xep_weights_t *weights;
    xep_weights_params_t p = params();
    MP_OK(xep_weights_create(group, &p, &weights));
    unfilled(group, weights);
    fill(weights, 0);
    MP_OK(xep_group_barrier(group));
    read_all(weights, 0);
    MP_OK(xep_group_barrier(group));
    fill(weights, 5);
    MP_OK(xep_group_barrier(group));
    read_all(weights, 5);
    MP_OK(xep_group_barrier(group));
    reduce(weights);
    wrong(group, weights);
    if (has_thread) least_recently_used(weights);
    if (has_thread) torn(group, weights, ended);
    xep_weights_destroy(weights);
}

/* For death_in_phase.sh: an owner dies. What is mapped stays; what is not is an error that names rank and expert. */
static int dead_owner(xep_group_t *group, atomic_int *ended)
{
    const void *base = NULL;
    xep_weights_t *weights;
    xep_weights_params_t p = params();
    char text[64];
    const xep_group_info_t info = mp_group_info(group);
    MP_OK(xep_weights_create(group, &p, &weights));
    fill(weights, 3);
    MP_OK(xep_group_barrier(group));
    if (mp_is_last()) raise(SIGKILL);
    mp_sleep_us(300000);
    const xep_status_t status = xep_weights_of(weights, EXPERTS - 1, &base);
    snprintf(text, sizeof text, "the weights of expert 6 of rank %u have not come", mp_nranks() - 1);
    if (info.nnodes == 1) MP_CHECK(status == XEP_OK && ((const uint8_t *)base)[1] == (uint8_t)(7 + 6 * 31 + 3));
    else MP_CHECK(status == XEP_ERR_PEER || status == XEP_ERR_TRANSPORT);
    if (info.nnodes != 1) MP_REASON(text);
    MP_OK(xep_weights_of(weights, 0, &base)); /* the others go on, and none leaves before all have read */
    atomic_fetch_add(ended, 1);
    for (int ms = 0; ms < 10000 && atomic_load(ended) < (int)mp_nranks() - 1; ms++) mp_sleep_us(1000);
    xep_group_abort(group);
    xep_weights_destroy(weights);
    xep_group_destroy(group);
    printf("survived\n");
    return 0;
}

int main(int argc, char **argv)
{
    xep_group_t *group = mp_group(), *unmapped;
    atomic_int *ended = mp_counter(group);
    deal();
    if (argc > 1 && strcmp(argv[1], "dead") == 0) return dead_owner(group, ended);
    all(group, ended, 0);
    if (mp_nranks() > 1) {
        setenv("XEP_MAP", "never", 1);
        setenv("XEP_PROGRESS", "thread", 1);
        unmapped = mp_second_group(group, 0);
        all(unmapped, ended, 1);
        xep_group_destroy(unmapped);
    }
    return mp_end(group);
}
