/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A member dies in the middle of its last word of xep_group_grow(), so that some have heard it and others have not, or
 * rank 0 before its verdict to the joiner. Whoever has got the new group is told at once that it is none, by every
 * call, and the members go on with the group that they had: nobody is left with a group of its own.
 *
 * Three ranks of four begin as a group, of which rank 0 was alone; the fourth comes last. In the first run rank 1 dies
 * when rank 2 has its word and rank 0 has not; in the second one rank 2, when rank 0 has it and rank 1 has not; in the
 * third one rank 0, when all members have its word.
 *
 * It is linked with the insides of the library, of which one function is wrapped.
 *
 * grow_last_word VICTIM FOLDER
 */
#define _GNU_SOURCE /* setenv */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "group_grow.h"
#include "group_out.h"
#include "group_signal.h"
#include "mp_rig.h"

enum { MEMBERS = 3, SHARE_HEAD = 24 /* of control's share, in front of what a rank gives */ };

static uint32_t own, victim;
static int armed;

/* What only rank 0 says to rank 1 is where its word of this kind counts: the first number of what it gives. */
static int is_last_word(const xep_heap_wire_t *heap, const xep_group_signal_t *signal)
{
    uint32_t step;
    if (signal->bytes < SHARE_HEAD + sizeof step) return 0;
    memcpy(&step, (const char *)heap->base + signal->offset + SHARE_HEAD, sizeof step);
    return step == XEP_GROW_SETTLE;
}

xep_status_t __real_xep_group_signal_all(xep_group_t *group, xep_heap_wire_t *heap, const xep_group_signal_t *signal,
                                         uint64_t deadline_ns);
xep_status_t __wrap_xep_group_signal_all(xep_group_t *group, xep_heap_wire_t *heap, const xep_group_signal_t *signal,
                                         uint64_t deadline_ns);

/* Not to the rank behind the next one: that is the order in which a rank signals. */
xep_status_t __wrap_xep_group_signal_all(xep_group_t *group, xep_heap_wire_t *heap, const xep_group_signal_t *signal,
                                         uint64_t deadline_ns)
{
    if (!armed || !is_last_word(heap, signal)) return __real_xep_group_signal_all(group, heap, signal, deadline_ns);
    if (victim != 0) atomic_store(&group->out[(own + 2) % MEMBERS].reason, 1);
    MP_OK(__real_xep_group_signal_all(group, heap, signal, deadline_ns));
    (void)xep_group_flush(group, heap, deadline_ns, "the last word");
    mp_sleep_us(200 * 1000); /* over the wire it is on its way */
    raise(SIGKILL);
    return XEP_OK;
}

static xep_group_t *grow(xep_group_t *group, uint32_t joiners)
{
    xep_group_t *next = NULL;
    xep_grow_args_t args = XEP_GROW_ARGS_INIT;
    args.joiners = joiners;
    args.path = "pmix:divided";
    xep_status_t status = xep_group_grow(group, &args, &next);
    if (status == XEP_OK) return next;
    /* who has found the dead one before may already leave with the others */
    MP_CHECK(next == NULL && (status == XEP_ERR_PEER || status == XEP_ERR_ABORTED));
    char name[32];
    snprintf(name, sizeof name, "rank %u", victim);
    MP_REASON(status == XEP_ERR_PEER ? name : "it called xep_group_shrink()");
    return NULL;
}

static xep_group_t *join(void)
{
    xep_group_t *group = NULL;
    xep_join_params_t params = XEP_JOIN_PARAMS_INIT;
    params.path = "pmix:divided";
    params.timeout_ms = 60000;
    return xep_group_join(&params, &group) == XEP_OK ? group : NULL;
}

/* Joiners get their numbers in the order they come: each comes once the one before it is a member, however long. */
static void await_member(const char *folder, uint32_t member)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/member.%u", folder, member);
    for (double begin = mp_now(); access(path, F_OK) != 0; mp_sleep_us(1000)) MP_CHECK(mp_now() - begin < 60);
}

static void note_member(const char *folder)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/member.%u", folder, own);
    FILE *file = fopen(path, "w");
    MP_CHECK(file != NULL && fclose(file) == 0);
}

/* The first calls may only find that somebody has died; to shrink it finds out the rest. */
static void check_void(xep_group_t *group)
{
    xep_group_t *less = NULL;
    xep_status_t status = XEP_OK;
    for (double begin = mp_now(); status == XEP_OK && mp_now() - begin < 60;) status = xep_group_barrier(group);
    MP_CHECK(status == XEP_ERR_PEER || status == XEP_ERR_ABORTED);
    MP_SAYS(XEP_ERR_ABORTED, "does not know whether all ranks have this group", xep_group_shrink(group, NULL, &less));
    MP_CHECK(less == NULL);
    printf("void %u\n", own);
}

static void check_left(xep_group_t *group)
{
    xep_group_t *less = NULL;
    MP_OK(xep_group_shrink(group, NULL, &less));
    MP_CHECK(mp_group_info(less).nranks == MEMBERS - 1);
    MP_OK(xep_group_barrier(less));
    xep_group_destroy(less);
    printf("left %u\n", own);
}

/* The first member is alone, then there are two, then three. */
static xep_group_t *begin(const char *folder)
{
    xep_group_t *group = NULL, *next;
    if (own == 0) {
        setenv("XEP_BOOT", "single", 1);
        MP_OK(xep_group_create(NULL, &group));
    } else MP_CHECK((group = join()) != NULL);
    note_member(folder);
    for (uint32_t ranks = own == 0 ? 1 : own + 1; ranks < MEMBERS; ranks++) {
        next = grow(group, 1);
        MP_CHECK(next != NULL);
        xep_group_destroy(group);
        group = next;
    }
    return group;
}

int main(int argc, char **argv)
{
    xep_group_t *group, *next;
    MP_CHECK(argc == 3 && getenv("PMIX_RANK") != NULL);
    victim = (uint32_t)strtoul(argv[1], NULL, 0);
    own = (uint32_t)strtoul(getenv("PMIX_RANK"), NULL, 0);
    if (own > 0) await_member(argv[2], own - 1);
    if (own == MEMBERS) {
        next = join();
        if (next != NULL) check_void(next);
        xep_group_destroy(next);
        printf("ended %u\n", own);
        return 0;
    }
    group = begin(argv[2]);
    const xep_group_info_t info = mp_group_info(group);
    MP_CHECK(info.rank == own && info.nranks == MEMBERS);
    armed = own == victim;
    next = grow(group, 1);
    if (next != NULL) check_void(next);
    check_left(group);
    xep_group_destroy(next);
    xep_group_destroy(group);
    printf("ended %u\n", own);
    return 0;
}
