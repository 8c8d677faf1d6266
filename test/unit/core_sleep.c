/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Ranks that sleep: woken by the one that they wait for and by no other, and not late for what was told before. Two
 * threads are the two ranks; each word is where its owner's control heap would have it.
 */

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "backoff.h"
#include "group_doorbell.h"
#include "transport.h"
#include "unit.h"

enum { RANKS = 3, SELF = 0, PEER = 1, OTHER = 2, LONG_NS = 900 * 1000 * 1000, MANY = 40, ROUNDS = 20000 };

/** The groups of three ranks that map one another. */
typedef struct house {
    xep_group_t group[RANKS];
    xep_heap_wire_t control[RANKS];
    char *control_of[RANKS][RANKS];
} house_t;

static house_t house;

void unit_before_each(void)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        free(house.control[r].base);
        house.control[r].base = aligned_alloc(64, xep_group_doorbells_bytes(RANKS));
        assert_non_null(house.control[r].base);
        memset(house.control[r].base, 0, xep_group_doorbells_bytes(RANKS));
        for (uint32_t p = 0; p < RANKS; p++) house.control_of[p][r] = p == r ? NULL : house.control[r].base;
        house.group[r] = (xep_group_t){.rank = r,
                                       .nranks = RANKS,
                                       .nnodes = 1,
                                       .backoff = XEP_BACKOFF_OVERSUBSCRIBED,
                                       .control = &house.control[r],
                                       .control_of = house.control_of[r]};
    }
}

TEST(who_sleeps_and_who_does_not)
{
    xep_group_t *group = &house.group[SELF];
    assert_true(xep_group_sleeps(group));
    group->backoff = XEP_BACKOFF_ALONE;
    assert_false(xep_group_sleeps(group));
    group->backoff = XEP_BACKOFF_OVERSUBSCRIBED;
    group->nnodes = 2;
    assert_false(xep_group_sleeps(group));
}

/*
 * It says so at once, whatever time it was given. The machine may keep this thread away for longer, but not each time.
 */
TEST(told_before_it_sleeps)
{
    xep_group_t *group = &house.group[SELF];
    int at_once = 0;
    for (int i = 0; i < MANY && !at_once; i++) {
        const uint64_t begin = xep_clock_ns();
        assert_true(xep_group_prepare_wait(group, PEER));
        xep_group_wake(&house.group[PEER], SELF);
        assert_true(xep_group_sleep(group, PEER, LONG_NS));
        xep_group_finish_wait(group);
        at_once = xep_clock_ns() - begin < LONG_NS;
    }
    assert_true(at_once);
}

TEST(what_others_tell_wakes_nobody)
{
    xep_group_t *group = &house.group[SELF];
    assert_true(xep_group_prepare_wait(group, PEER));
    xep_group_wake(&house.group[OTHER], SELF);
    xep_group_wake(group, SELF);
    assert_false(xep_group_sleep(group, PEER, 1000));
    xep_group_finish_wait(group);
}

TEST(an_abort_wakes_whoever_sleeps)
{
    xep_group_t *group = &house.group[SELF];
    assert_true(xep_group_prepare_wait(group, PEER));
    xep_group_wake_all(&house.group[OTHER]);
    assert_true(xep_group_sleep(group, PEER, LONG_NS));
    xep_group_finish_wait(group);
}

TEST(one_thread_sleeps_at_a_time)
{
    xep_group_t *group = &house.group[SELF];
    assert_true(xep_group_prepare_wait(group, PEER));
    assert_false(xep_group_prepare_wait(group, OTHER));
    xep_group_finish_wait(group);
    assert_true(xep_group_prepare_wait(group, OTHER));
}

TEST(a_rank_that_is_not_mapped_is_left_alone)
{
    house.control_of[PEER][SELF] = NULL;
    xep_group_wake(&house.group[PEER], SELF);
    xep_group_wake_all(&house.group[PEER]);
}

/* ---- one after the other, as often as it takes to meet in every place ---- */

static _Atomic uint64_t said[RANKS];

/* Until it is woken. A word that got lost wakes nobody, however often one sleeps; one of a thread that gets no
 * processor comes after a few of those times. */
static void sleep_long(uint32_t self, uint32_t from)
{
    int times = 0;
    while (!xep_group_sleep(&house.group[self], from, LONG_NS)) assert_in_range(++times, 1, MANY);
}

static void hear(uint32_t self, uint32_t from, uint64_t turn)
{
    while (atomic_load_explicit(&said[from], memory_order_acquire) < turn) {
        assert_true(xep_group_prepare_wait(&house.group[self], from));
        if (atomic_load_explicit(&said[from], memory_order_acquire) < turn) sleep_long(self, from);
        xep_group_finish_wait(&house.group[self]);
    }
}

static void tell(uint32_t self, uint32_t to, uint64_t turn)
{
    atomic_store_explicit(&said[self], turn, memory_order_release);
    xep_group_wake(&house.group[self], to);
}

static void *play_peer(void *arg)
{
    for (uint64_t turn = 1; turn <= ROUNDS; turn++) {
        hear(PEER, SELF, turn);
        tell(PEER, SELF, turn);
    }
    return arg;
}

TEST(no_word_is_lost)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, play_peer, NULL), 0);
    for (uint64_t turn = 1; turn <= ROUNDS; turn++) {
        tell(SELF, PEER, turn);
        hear(SELF, PEER, turn);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
}
