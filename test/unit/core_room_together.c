/* SPDX-License-Identifier: BSD-3-Clause */

/* Heaps that fit one by one and not together: what each rank sees goes in, the verdict of each comes out. */

#include <stdio.h>
#include <string.h>

#include "buffer_agree.h"
#include "unit.h"

enum { RANKS = 6, HEAP = 1000 };

static xep_room_view_t views[RANKS];

void unit_before_each(void)
{
    memset(views, 0, sizeof views);
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < XEP_ROOM_SOURCES; i++) views[r].room.source[i].bytes = UINT64_MAX;
}

static void draw(int rank, int source, uint64_t id, uint64_t bytes)
{
    views[rank].room.source[source] = (xep_room_source_t){id, bytes};
}

static void share(int rank, int kind, uint64_t id, uint64_t heaps)
{
    views[rank].shared[kind] = (xep_shared_room_t){id, heaps * HEAP + HEAP / 2, heaps};
}

static void check_fits(void)
{
    for (uint32_t r = 0; r < RANKS; r++) assert_int_equal(xep_room_check_together(views, RANKS, r, HEAP), XEP_OK);
}

static void check_said(const char *said)
{
    if (strstr(xep_last_error(), said) == NULL) fail_msg("\"%s\" is not in: %s", said, xep_last_error());
}

/* by so many ranks */
static void check_refused(int ranks, const char *said)
{
    int refused = 0;
    for (uint32_t r = 0; r < RANKS; r++) {
        if (xep_room_check_together(views, RANKS, r, HEAP) == XEP_OK) continue;
        check_said(said);
        refused++;
    }
    assert_int_equal(refused, ranks);
}

TEST(nothing_is_known)
{
    check_fits();
    for (int r = 0; r < RANKS; r++) draw(r, XEP_ROOM_MACHINE, 0, HEAP); /* no name: they may be anywhere */
    check_fits();
    memset(views, 0, sizeof views); /* a rank that is not asked */
    check_fits();
}

TEST(machines_each_with_their_ranks)
{
    for (int r = 0; r < RANKS; r++) draw(r, XEP_ROOM_MACHINE, r % 2 == 0 ? 70 : 30, 3 * HEAP);
    check_fits();
    draw(3, XEP_ROOM_MACHINE, 30, 3 * HEAP - 1); /* a byte less, and one rank alone has seen it */
    check_refused(
        3, "not enough memory for 3 ranks of one host, from rank 1 on: each needs 1000 bytes, all together 2.93 KiB "
           "(2.93 KiB are free of the machine)");
    memset(&views[5], 0, sizeof views[5]);
    check_fits(); /* two are left */
}

TEST(what_does_not_fit_alone_is_said_by_its_rank)
{
    for (int r = 0; r < RANKS; r++) draw(r, XEP_ROOM_MACHINE, 70, HEAP - 1);
    check_fits();
    for (int r = 0; r < RANKS; r++) draw(r, XEP_ROOM_MACHINE, 70, 0);
    check_fits();
}

/* a machine that has much and promises little; the same name stands for both */
TEST(promises)
{
    for (int r = 0; r < RANKS; r++) {
        draw(r, XEP_ROOM_MACHINE, 70, RANKS * HEAP);
        draw(r, XEP_ROOM_PROMISE, 70, RANKS * HEAP);
    }
    check_fits();
    for (int r = 0; r < RANKS; r++) draw(r, XEP_ROOM_PROMISE, 70, 2 * HEAP);
    check_refused(6, "for 6 ranks of one host, from rank 0 on");
    check_refused(6, "(1.95 KiB are free that the machine would promise)");
}

/* the limit of one rank's own group is another's at another place: the groups above it are of all */
TEST(control_groups_within_one_another)
{
    for (int r = 0; r < RANKS; r++) {
        draw(r, XEP_ROOM_MACHINE, 70, 100 * HEAP);
        draw(r, XEP_ROOM_GROUPS + r % 4, 5, 4 * HEAP);
    }
    check_refused(6, "for 6 ranks of one host, from rank 0 on: each needs 1000 bytes, all together 5.86 KiB "
                     "(3.91 KiB are free of the control group)");
    for (int r = 0; r < 2; r++) draw(r, XEP_ROOM_GROUPS + r % 4, 6, 2 * HEAP);
    check_fits();
}

TEST(kinds_of_shared_memory_add_up)
{
    for (int r = 0; r < RANKS; r++) {
        share(r, XEP_SHARED_SYSV, 8, 2);
        share(r, XEP_SHARED_POSIX, 9, 4);
    }
    check_fits();
    share(4, XEP_SHARED_POSIX, 9, 3);
    check_refused(
        6, "not enough shared memory for 6 ranks of one host, from rank 0 on: each needs 1000 bytes, all "
           "together 5.86 KiB (System V segments: 2.44 KiB free, room for 2; /dev/shm: 3.42 KiB free, room for 3)");
    for (int r = 0; r < 3; r++) share(r, XEP_SHARED_POSIX, 10, 4); /* two containers, three ranks each */
    check_fits();
    for (int r = 0; r < RANKS; r++) share(r, XEP_SHARED_SYSV, 0, 0); /* denied */
    check_fits();
    share(0, XEP_SHARED_POSIX, 10, 2);
    check_refused(3, "for 3 ranks of one host, from rank 0 on");
}

TEST(addresses)
{
    const uint64_t enough = (32 << 20) + 3 * HEAP; /* 32 MiB are for what else there is */
    const xep_room_space_t all = {UINT64_MAX, UINT64_MAX}, fits = {enough, 67}, small = {enough - 1, 67},
                           none = {0, 67}, few = {enough, 66};
    assert_int_equal(xep_room_check_space(&all, 3, HEAP), XEP_OK);
    assert_int_equal(xep_room_check_space(&fits, 3, HEAP), XEP_OK);
    assert_int_equal(xep_room_check_space(&small, 3, HEAP), XEP_ERR_NO_MEMORY);
    check_said("not enough address space: this rank maps the heaps of 3 ranks of its host, 1000 bytes each, all "
               "together 3000 (33557431 are left of ulimit -v)");
    assert_int_equal(xep_room_check_space(&none, 3, HEAP), XEP_ERR_NO_MEMORY);
    check_said("(0 are left of ulimit -v)");
    assert_int_equal(xep_room_check_space(&few, 3, HEAP), XEP_ERR_NO_MEMORY);
    check_said("not enough mappings: this rank maps the heaps of 3 ranks of its host (66 are left of "
               "vm.max_map_count)");
    assert_int_equal(xep_room_check_space(&few, 2, HEAP), XEP_OK);
}

TEST(numbers_that_would_overflow)
{
    for (int r = 0; r < RANKS; r++) {
        draw(r, XEP_ROOM_MACHINE, 70, UINT64_MAX - 1);
        share(r, XEP_SHARED_SYSV, 8, 1);
        views[r].shared[XEP_SHARED_SYSV].heaps = UINT64_MAX;
        share(r, XEP_SHARED_POSIX, 9, 1);
        views[r].shared[XEP_SHARED_POSIX].heaps = UINT64_MAX;
    }
    check_fits();
    assert_int_equal(xep_room_check_together(views, RANKS, 0, 0), XEP_OK);
    assert_int_equal(xep_room_check_together(views, RANKS, 0, UINT64_MAX / 3), XEP_ERR_NO_MEMORY);
}
