/* SPDX-License-Identifier: BSD-3-Clause */

/* Heaps that fit one by one and not together: what each rank sees goes in, the verdict that all come to comes out. */

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
    assert_int_equal(xep_room_check_together(views, RANKS, HEAP), XEP_OK);
}

static void check_refused(const char *said)
{
    assert_int_equal(xep_room_check_together(views, RANKS, HEAP), XEP_ERR_NO_MEMORY);
    if (strstr(xep_last_error(), said) == NULL) fail_msg("\"%s\" is not in: %s", said, xep_last_error());
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
        "not enough memory for 3 ranks of one host, from rank 1 on: each needs 1000 bytes, all together 2.93 KiB "
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
    check_refused("for 6 ranks of one host, from rank 0 on");
    check_refused("(1.95 KiB are free that the machine would promise)");
}

/* the limit of one rank's own group is another's at another place: the groups above it are of all */
TEST(control_groups_within_one_another)
{
    for (int r = 0; r < RANKS; r++) {
        draw(r, XEP_ROOM_MACHINE, 70, 100 * HEAP);
        draw(r, XEP_ROOM_GROUPS + r % 4, 5, 4 * HEAP);
    }
    check_refused("for 6 ranks of one host, from rank 0 on: each needs 1000 bytes, all together 5.86 KiB "
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
        "not enough shared memory for 6 ranks of one host, from rank 0 on: each needs 1000 bytes, all "
        "together 5.86 KiB (System V segments: 2.44 KiB free, room for 2; /dev/shm: 3.42 KiB free, room for 3)");
    for (int r = 0; r < 3; r++) share(r, XEP_SHARED_POSIX, 10, 4); /* two containers, three ranks each */
    check_fits();
    for (int r = 0; r < RANKS; r++) share(r, XEP_SHARED_SYSV, 0, 0); /* denied */
    check_fits();
    share(0, XEP_SHARED_POSIX, 10, 2);
    check_refused("for 3 ranks of one host, from rank 0 on");
}

TEST(addresses)
{
    for (int r = 0; r < RANKS; r++) {
        views[r].heaps = 3;
        views[r].space = (xep_room_space_t){UINT64_MAX, UINT64_MAX};
    }
    check_fits();
    views[4].space.bytes = (32 << 20) + 3 * HEAP; /* 32 MiB are for what else there is */
    check_fits();
    views[4].space.bytes--;
    check_refused("not enough address space in rank 4: it maps the heaps of 3 ranks of its host, 1000 bytes each, all "
                  "together 3000 (33557431 are left of ulimit -v)");
    views[4].space.bytes = 0;
    check_refused("(0 are left of ulimit -v)");
    views[4].space.bytes = UINT64_MAX;
    views[5].space.mappings = 66;
    check_refused("not enough mappings in rank 5: it maps the heaps of 3 ranks of its host (66 are left of "
                  "vm.max_map_count)");
    views[5].heaps = 2;
    check_fits();
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
    assert_int_equal(xep_room_check_together(views, RANKS, 0), XEP_OK);
    assert_int_equal(xep_room_check_together(views, RANKS, UINT64_MAX / 3), XEP_ERR_NO_MEMORY);
}
