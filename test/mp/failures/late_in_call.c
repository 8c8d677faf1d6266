/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 2 4, brief: 2, limit: 120 */

/*
 * Calls that gather several times: the last rank is late in one of these, in which the others give up, and call again.
 * A creation in which it comes late to the first one goes on, but not with other arguments: these the last rank has not
 * heard of. A reduction begins anew, and writes nothing that the last rank may still read: no rank ever has sums of two
 * calls.
 *
 * It is linked with the insides of the library, of which two functions are wrapped.
 */

#include <string.h>

#include "group_signal.h"
#include "mp_rig.h"
#include <xep/experts.h>

enum { DEADLINE_MS = 3000, FAR_MS = MP_FAR_MS, CALLS = 200, ELEMENTS = 1000, MOST_RANKS = 4 };

static uint32_t signals;    /* until the last rank is late with its word; 0: it never is */
static atomic_int *gave_up; /* calls of the others, in all */
static int reads_late;      /* it is, behind the next one that it has sent and for which it has all others */

xep_status_t __real_xep_group_signal_all(xep_group_t *group, xep_heap_wire_t *heap, const xep_group_signal_t *signal,
                                         uint64_t deadline_ns);
xep_status_t __wrap_xep_group_signal_all(xep_group_t *group, xep_heap_wire_t *heap, const xep_group_signal_t *signal,
                                         uint64_t deadline_ns);
xep_status_t __real_xep_group_flush(xep_group_t *group, xep_heap_wire_t *heap, uint64_t deadline_ns, const char *what);
xep_status_t __wrap_xep_group_flush(xep_group_t *group, xep_heap_wire_t *heap, uint64_t deadline_ns, const char *what);

/* Until all others have given the call up. */
static void be_late(void)
{
    static int times;
    mp_await(gave_up, ++times * ((int)mp_nranks() - 1));
}

/* The first call behind one that is late. */
static void check_first(xep_status_t status, xep_status_t of_late)
{
    MP_CHECK(status == (mp_is_last() ? of_late : XEP_ERR_TIMEOUT));
    if (!mp_is_last()) ++*gave_up;
}

xep_status_t __wrap_xep_group_signal_all(xep_group_t *group, xep_heap_wire_t *heap, const xep_group_signal_t *signal,
                                         uint64_t deadline_ns)
{
    if (signals != 0 && --signals == 0) be_late();
    return __real_xep_group_signal_all(group, heap, signal, deadline_ns);
}

xep_status_t __wrap_xep_group_flush(xep_group_t *group, xep_heap_wire_t *heap, uint64_t deadline_ns, const char *what)
{
    const xep_status_t status = __real_xep_group_flush(group, heap, deadline_ns, what);
    if (reads_late) be_late();
    reads_late = 0;
    return status;
}

/* All ranks have gradients for the expert of the last rank, which are other ones in each call. */
static xep_status_t reduce(xep_weights_t *weights, float call)
{
    const uint32_t expert = mp_nranks() - 1;
    xep_weights_reduce_args_t args = XEP_WEIGHTS_REDUCE_ARGS_INIT;
    float *x = mp_alloc(sizeof *x * ELEMENTS, 0), *out = mp_alloc(sizeof *out * ELEMENTS, 0), sum = 0;
    const float *given = x;
    for (uint32_t i = 0; i < ELEMENTS; i++) x[i] = call * (float)(mp_rank() + 1), out[i] = 0;
    args.count = 1, args.experts = &expert, args.x = &given, args.out = out;
    const xep_status_t status = xep_weights_reduce(weights, &args);
    for (uint32_t r = 0; r < mp_nranks(); r++) sum += call * (float)(r + 1);
    for (uint32_t i = 0; i < ELEMENTS && status == XEP_OK; i++) MP_CHECK(out[i] == (mp_is_last() ? sum : 0));
    mp_free(x, "x");
    mp_free(out, "out");
    return status;
}

static void create_late(xep_group_t *group, xep_group_t *second, xep_weights_t **weights_p)
{
    xep_weights_params_t p = XEP_WEIGHTS_PARAMS_INIT;
    xep_status_t status;
    p.experts = mp_nranks(), p.bytes = 64, p.elements = ELEMENTS, p.gradients = 1;
    MP_OK(xep_group_barrier(group));
    if (mp_is_last()) signals = 1;
    status = xep_weights_create(second, &p, weights_p);
    check_first(status, XEP_OK);
    for (int i = 0; status == XEP_ERR_TIMEOUT && i < CALLS; i++) status = xep_weights_create(second, &p, weights_p);
    MP_OK(status);
}

/* The others call again with other owners, which the last rank does not have in its first call. */
static void create_otherwise(xep_group_t *group, xep_group_t *second)
{
    uint32_t owners[MOST_RANKS];
    xep_weights_t *weights = NULL;
    xep_weights_params_t p = XEP_WEIGHTS_PARAMS_INIT;
    xep_status_t status;
    int i = 0;
    p.experts = mp_nranks(), p.bytes = 64, p.owners = owners;
    for (uint32_t e = 0; e < mp_nranks(); e++) owners[e] = e;
    MP_OK(xep_group_barrier(group));
    if (mp_is_last()) signals = 1;
    check_first(xep_weights_create(second, &p, &weights), XEP_ERR_MISMATCH);
    for (uint32_t e = 0; e < mp_nranks(); e++) owners[e] = mp_nranks() - 1 - e;
    do status = xep_weights_create(second, &p, &weights);
    while ((status == XEP_ERR_TIMEOUT || status == XEP_ERR_MISMATCH) && ++i < CALLS);
    MP_OK(status);
    xep_weights_destroy(weights);
    MP_OK(xep_group_barrier(group));
}

/* first: of the late rank; the others give up, and call until all have come to the same one. */
static void reduce_late(xep_group_t *group, xep_weights_t *weights, xep_status_t first)
{
    xep_status_t status;
    int i = 0;
    check_first(reduce(weights, 10), first);
    do status = reduce(weights, 100);
    while ((status == XEP_ERR_TIMEOUT || (status == XEP_ERR_MISMATCH && first != XEP_OK)) && ++i < CALLS);
    MP_OK(status);
    for (float call = 1000; call < 1010; call++) MP_OK(reduce(weights, call));
    MP_OK(xep_group_barrier(group));
}

int main(void)
{
    xep_group_t *group = mp_group(), *second = mp_second_group(group, mp_is_last() ? FAR_MS : DEADLINE_MS);
    xep_weights_t *weights = NULL;
    gave_up = mp_counter(group);
    create_late(group, second, &weights);
    MP_OK(reduce(weights, 1));
    MP_OK(xep_group_barrier(group));
    if (mp_is_last()) signals = 2;
    reduce_late(group, weights, XEP_OK);
    if (mp_is_last()) reads_late = 1;
    reduce_late(group, weights, XEP_OK);
    /* it is in its second allgather when the others have begun anew */
    if (mp_is_last()) signals = 1;
    reduce_late(group, weights, XEP_ERR_MISMATCH);
    xep_weights_destroy(weights);
    create_otherwise(group, second);
    xep_group_destroy(second);
    return mp_end(group);
}
