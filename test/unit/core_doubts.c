/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The members of a buffer, in one process, while some of their ranks say nothing more: whoever hears the others goes on
 * with all of these. Members are real; a wire stores at once, unless it is cut; time passes when the test says so.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "buffer.h"
#include "group_ctl.h"
#include "group_out.h"
#include "host.h"
#include "members.h"
#include "request.h"
#include "unit.h"

enum { MOST_RANKS = 5, SLOTS = 1, REQUESTS = SLOTS * XEP_REQUESTS_PER_SLOT, TURNS = 40, TIMEOUT_MS = 600 * 1000 };

typedef struct member {
    xep_heap_wire_t heap, control; /* the first is the buffer's */
    xep_buffer_t buffer;
    xep_counts_t counts;
    xep_group_t group;
    xep_transport_t transport;
    xep_boot_t boot;
    xep_peer_t peers[MOST_RANKS];
    xep_group_out_t outs[MOST_RANKS];
    xep_request_t requests[REQUESTS];
    uint8_t cut[MOST_RANKS]; /* nothing that it sends arrives there */
} member_t;

static member_t all[MOST_RANKS];
static uint32_t nranks;

/* ---- what members call ---- */

static void *wire_map(xep_wire_t *wire, uint32_t rank)
{
    (void)wire;
    return all[rank].heap.base;
}

static xep_status_t wire_put_signal(xep_wire_t *wire, uint32_t rank, uint64_t offset, const void *src, size_t bytes,
                                    uint64_t signal_offset, uint64_t value)
{
    const member_t *from = (const member_t *)(const void *)wire;
    char *base = all[rank].heap.base;
    if (from->cut[rank]) return XEP_OK;
    if (bytes != 0) memcpy(base + offset, src, bytes);
    memcpy(base + signal_offset, &value, sizeof value);
    return XEP_OK;
}

static xep_status_t wire_flush(xep_wire_t *wire)
{
    (void)wire;
    return XEP_OK;
}

static const xep_wire_ops_t wire_ops = {.size = sizeof(xep_wire_ops_t),
                                        .map = wire_map,
                                        .put_signal = wire_put_signal,
                                        .flush = wire_flush,
                                        .progress = wire_flush};

static void heap_fence_off(xep_heap_wire_t *heap, uint32_t rank)
{
    (void)heap;
    (void)rank;
}

static xep_status_t ctl(xep_transport_t *transport, uint32_t rank, const void *data, size_t bytes)
{
    uint32_t from = 0;
    while (&all[from].transport != transport) from++;
    const xep_transport_t *to = &all[rank].transport;
    if (!all[from].cut[rank]) to->on_ctl(to->on_ctl_arg, from, data, bytes);
    return XEP_OK;
}

static int ctl_has_left(xep_transport_t *transport)
{
    (void)transport;
    return 1;
}

static const xep_transport_ops_t transport_ops = {.heap_fence_off = heap_fence_off,
                                                  .ctl = ctl,
                                                  .ctl_has_left = ctl_has_left};

/* ---- a world ---- */

static xep_shape_t shape_of(uint32_t r, int is_mapped)
{
    return (xep_shape_t){.nranks = nranks, .rank = r, .nodes = is_mapped ? 1 : nranks, .slots = SLOTS};
}

static void make_heap(uint32_t r, int is_mapped)
{
    xep_shape_t shape = shape_of(r, is_mapped);
    uint64_t bytes = (xep_members_bytes(&shape) + 63) / 64 * 64;
    all[r] = (member_t){.heap = {.wire = {&wire_ops}, .base = aligned_alloc(64, bytes), .bytes = bytes},
                        .transport = {.ops = &transport_ops}};
    assert_non_null(all[r].heap.base);
    memset(all[r].heap.base, 0, bytes);
}

/* Mapped: they are one node. Else each is a host of its own, and nobody can look up another's process. */
static void open_member(uint32_t r, int is_mapped)
{
    member_t *member = &all[r];
    xep_buffer_t *buffer = &member->buffer;
    member->group.rank = r;
    member->group.nranks = nranks;
    member->group.out = member->outs;
    member->group.peers = member->peers;
    member->group.control = &member->control;
    member->group.transport = &member->transport;
    member->group.boot = &member->boot;
    for (uint32_t other = 0; other < nranks; other++) member->peers[other].host = other + UINT64_C(1);
    buffer->group = &member->group;
    buffer->heap = &member->heap;
    buffer->shape = shape_of(r, is_mapped);
    buffer->timeout_ms = TIMEOUT_MS;
    buffer->waits.counts = &member->counts;
    buffer->broken = 1; /* there is no operation to end */
    buffer->nrequests = REQUESTS;
    buffer->requests = member->requests;
    assert_int_equal(xep_ctl_open(&member->group), XEP_OK);
    assert_int_equal(xep_members_open(buffer), XEP_OK);
}

static void open_world(uint32_t n, int is_mapped)
{
    setenv("XEP_LOG", "error", 1);
    nranks = n;
    for (uint32_t r = 0; r < n; r++) make_heap(r, is_mapped);
    for (uint32_t r = 0; r < n; r++) open_member(r, is_mapped);
}

static void close_world(void)
{
    for (uint32_t r = 0; r < nranks; r++) {
        xep_members_close(&all[r].buffer);
        xep_ctl_close(&all[r].group);
        free(all[r].heap.base);
    }
}

static void give_up(uint32_t by, uint32_t rank)
{
    assert_true(xep_group_put_out(&all[by].group, rank, XEP_OUT_LATE));
}

/* All of them are in the library for a while. */
static void play(const char *ranks)
{
    for (int turn = 0; turn < TURNS; turn++)
        for (const char *r = ranks; *r != '\0'; r++) xep_members_advance(&all[*r - '0'].buffer);
}

/* The time of every answer that they wait for is over, by a millisecond. */
static void let_time_pass(void)
{
    uint64_t ns = (TIMEOUT_MS + UINT64_C(1)) * 1000000;
    for (uint32_t r = 0; r < nranks; r++) {
        xep_agreement_t *agreement = &all[r].buffer.members->agreement;
        if (agreement->said_ns != 0) agreement->said_ns -= ns;
        for (uint32_t other = 0; other < nranks; other++)
            if (agreement->asked_ns[other] != 0) agreement->asked_ns[other] -= ns;
    }
}

/* Who is in, as a rank has decided. */
static void expect_in(uint32_t rank, const char *in)
{
    char text[MOST_RANKS + 1] = "", *to = text;
    for (uint32_t r = 0; r < nranks; r++)
        if (!all[rank].buffer.members->agreement.out[r]) *to++ = (char)('0' + r);
    *to = '\0';
    assert_string_equal(text, in);
    assert_int_equal(all[rank].buffer.members->agreement.open, 0);
    assert_int_equal(all[rank].buffer.members->own->left_out, 0);
}

/* ---- silence ---- */

/*
 * Ranks 2 and 3 of four are silent. Rank 1 gives up the second one, and rank 0 has just heard so when its own time is
 * over: rank 1 does not say the same yet as rank 0 says now, and is not silent for that.
 */
static void learn_in_the_last_moment(int is_mapped)
{
    uint64_t deadline;
    open_world(4, is_mapped);
    give_up(0, 2);
    play("01");
    assert_true(all[1].buffer.members->agreement.open);
    let_time_pass();
    assert_int_equal(xep_members_doubt(&all[1].buffer, &deadline), XEP_OK);
    assert_true(xep_group_is_out(&all[1].group, 3));
    xep_members_advance(&all[1].buffer);
    xep_members_advance(&all[0].buffer);
    assert_true(xep_group_is_out(&all[0].group, 3));
    assert_int_equal(xep_members_doubt(&all[0].buffer, &deadline), XEP_OK);
    assert_false(xep_group_is_out(&all[0].group, 1));
    play("01");
    expect_in(0, "01");
    expect_in(1, "01");
    close_world();
}

TEST(who_brings_news_is_not_silent_mapped)
{
    learn_in_the_last_moment(1);
}

TEST(who_brings_news_is_not_silent)
{
    learn_in_the_last_moment(0);
}

/* Rank 1 has said nothing for as long as rank 2, and then something new: it has time again, and rank 2 has not. */
TEST(news_of_one_is_no_answer_of_another)
{
    uint64_t deadline;
    open_world(5, 0);
    all[0].cut[1] = 1; /* what rank 1 says is less than what rank 0 says then */
    give_up(0, 4);
    xep_members_advance(&all[0].buffer);
    let_time_pass();
    give_up(1, 3);
    xep_members_advance(&all[1].buffer);
    xep_members_advance(&all[0].buffer);
    assert_true(xep_group_is_out(&all[0].group, 3));
    assert_int_equal(xep_members_doubt(&all[0].buffer, &deadline), XEP_OK);
    assert_false(xep_group_is_out(&all[0].group, 1));
    assert_true(xep_group_is_out(&all[0].group, 2));
    close_world();
}

/* Rank 0 gives rank 3 up, and asks ranks 1 and 2, which had answered, again: they have as long as that one had. */
TEST(who_is_asked_something_new_has_time)
{
    uint64_t deadline;
    open_world(5, 0);
    give_up(0, 4);
    play("012");
    let_time_pass();
    assert_int_equal(xep_members_doubt(&all[0].buffer, &deadline), XEP_OK);
    assert_true(xep_group_is_out(&all[0].group, 3));
    xep_members_advance(&all[0].buffer);
    assert_int_equal(xep_members_doubt(&all[0].buffer, &deadline), XEP_OK);
    assert_false(xep_group_is_out(&all[0].group, 1));
    assert_false(xep_group_is_out(&all[0].group, 2));
    let_time_pass();
    assert_int_equal(xep_members_doubt(&all[0].buffer, &deadline), XEP_OK);
    assert_true(xep_group_is_out(&all[0].group, 1)); /* that time, too, comes to an end */
    close_world();
}

/* ---- most of those that are not gone ---- */

/* Ranks 0 and 1 are dead, and just half is left: rank 2, of their host, knows it and tells rank 3, which cannot. */
TEST(who_cannot_know_of_a_death_is_told)
{
    open_world(4, 0);
    for (uint32_t r = 0; r < 2; r++) give_up(3, r);
    play("23");
    for (uint32_t r = 2; r < 4; r++) assert_true(xep_members_has_lost_quorum(&all[r].buffer));
    for (uint32_t r = 0; r < 2; r++) {
        all[2].peers[r].visible = 1;
        all[2].peers[r].pid = getpid(); /* its number belongs to another process by now */
        all[2].peers[r].start = xep_host_start(getpid()) + 1;
    }
    play("23");
    expect_in(2, "23");
    expect_in(3, "23");
    close_world();
}

/*
 * Ranks 0 to 2 of five agree to go on; rank 0 has decided when rank 2 falls silent, before rank 1 has its word. Two of
 * three are most, two of five would not be.
 */
TEST(who_has_not_heard_a_decision_takes_it_over)
{
    open_world(5, 0);
    all[2].cut[1] = 1;
    for (uint32_t r = 0; r < 3; r++) give_up(r, 3);
    for (uint32_t r = 0; r < 3; r++) give_up(r, 4);
    play("012");
    expect_in(0, "012");
    assert_true(all[1].buffer.members->agreement.open);
    give_up(1, 2);
    play("01");
    expect_in(0, "01");
    expect_in(1, "01");
    close_world();
}

/* Two of four that live and know of no death: neither half has most, and the one with rank 0 goes on. */
TEST(of_two_halves_one_goes_on)
{
    open_world(4, 0);
    for (uint32_t r = 0; r < 4; r++) {
        give_up(r, r < 2 ? 2 : 0);
        give_up(r, r < 2 ? 3 : 1);
        for (uint32_t other = 0; other < 4; other++) all[r].cut[other] = r / 2 != other / 2;
    }
    play("0123");
    expect_in(0, "01");
    expect_in(1, "01");
    for (uint32_t r = 2; r < 4; r++) {
        assert_true(all[r].buffer.members->agreement.open);
        assert_true(xep_members_has_lost_quorum(&all[r].buffer));
    }
    close_world();
}
