/* SPDX-License-Identifier: BSD-3-Clause */

/** Unit test of the bootstrap over a caller's allgather: ranks are threads, and some callbacks are wrong. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "boot.h"
#include "error.h"
#include "unit.h"

enum { RANKS = 3, BLOCK = 1000 };

typedef struct world {
    pthread_barrier_t barrier;
    char block[RANKS][BLOCK];
} world_t;

typedef struct seat {
    world_t *world;
    uint32_t rank, nranks;                                     /* as told to the library */
    uint32_t place;                                            /* true one in the world */
    int (*wrong)(struct seat *seat, void *recv, size_t bytes); /* done to recv after a right allgather */
    xep_status_t status;
    char reason[XEP_REASON_BYTES];
} seat_t;

static int allgather(void *ctx, const void *send, void *recv, size_t bytes)
{
    seat_t *seat = ctx;
    world_t *world = seat->world;
    memcpy(world->block[seat->place], send, bytes);
    pthread_barrier_wait(&world->barrier);
    for (uint32_t i = 0; i < RANKS; i++) memcpy((char *)recv + i * bytes, world->block[i], bytes);
    pthread_barrier_wait(&world->barrier);
    return seat->wrong == NULL ? 0 : seat->wrong(seat, recv, bytes);
}

static xep_status_t open_seat(seat_t *seat, xep_boot_t **boot_p)
{
    xep_group_params_t params = XEP_GROUP_PARAMS_INIT;
    params.allgather = allgather;
    params.allgather_ctx = seat;
    params.rank = seat->rank;
    params.nranks = seat->nranks;
    return xep_boot_callback_open(&params, 1000, boot_p);
}

/* whether all exchanges of this rank are right, from 1 byte up; and barriers */
static int use(xep_boot_t *boot)
{
    char send[BLOCK], recv[RANKS * BLOCK];
    for (size_t bytes = 1; bytes <= BLOCK; bytes += 111) {
        memset(send, (int)(boot->rank + bytes), bytes);
        if (boot->allgather(boot, NULL, NULL, 0) != XEP_OK) return 0;
        if (boot->allgather(boot, send, recv, bytes) != XEP_OK) return 0;
        for (size_t i = 0; i < RANKS * bytes; i++)
            if (recv[i] != (char)(i / bytes + bytes)) return 0;
    }
    return xep_boot_dead_rank(boot) == UINT32_MAX;
}

static void *run_seat(void *arg)
{
    seat_t *seat = arg;
    xep_boot_t *boot;
    seat->status = open_seat(seat, &boot);
    if (seat->status == XEP_OK) {
        if (!use(boot)) seat->status = xep_fail(XEP_ERR_PROTOCOL, "wrong data: %s", xep_last_error());
        free(boot);
    }
    strcpy(seat->reason, seat->status == XEP_OK ? "" : xep_last_error());
    return NULL;
}

static void seat_all(seat_t *seats, world_t *world)
{
    pthread_barrier_init(&world->barrier, NULL, RANKS);
    for (uint32_t i = 0; i < RANKS; i++) seats[i] = (seat_t){.world = world, .rank = i, .place = i, .nranks = RANKS};
}

static void run_all(seat_t *seats)
{
    pthread_t threads[RANKS];
    for (uint32_t i = 0; i < RANKS; i++) assert_int_equal(pthread_create(&threads[i], NULL, run_seat, &seats[i]), 0);
    for (uint32_t i = 0; i < RANKS; i++) pthread_join(threads[i], NULL);
}

static void expect(const seat_t *seat, xep_status_t status, const char *part)
{
    if (seat->status != status || strstr(seat->reason, part) == NULL)
        print_error("rank %u: %s, \"%s\"; wanted %s, \"%s\"\n", seat->rank, xep_status_name(seat->status), seat->reason,
                    xep_status_name(status), part);
    assert_int_equal(seat->status, status);
    assert_non_null(strstr(seat->reason, part));
}

TEST(a_right_one_works)
{
    world_t world;
    seat_t seats[RANKS];
    seat_all(seats, &world);
    run_all(seats);
    for (uint32_t i = 0; i < RANKS; i++) expect(&seats[i], XEP_OK, "");
}

static int wrong_status(seat_t *seat, void *recv, size_t bytes)
{
    (void)seat, (void)recv, (void)bytes;
    return 7;
}

static int wrong_nothing(seat_t *seat, void *recv, size_t bytes)
{
    memset(recv, 0, seat->nranks * bytes); /* as the library's calloc left it */
    return 0;
}

static int wrong_garbage(seat_t *seat, void *recv, size_t bytes)
{
    char *other = (char *)recv + (seat->place + 1) % RANKS * bytes;
    memset(other, 0xa5, bytes);
    return 0;
}

static int wrong_order(seat_t *seat, void *recv, size_t bytes)
{
    char *first = recv, *last = first + (RANKS - 1) * bytes;
    (void)seat;
    for (size_t i = 0; i < bytes; i++) {
        char kept = first[i];
        first[i] = last[i];
        last[i] = kept;
    }
    return 0;
}

/* right in the first exchange, then raises: what a callback into another language can look like */
static int wrong_later(seat_t *seat, void *recv, size_t bytes)
{
    return bytes == 16 ? 0 : wrong_nothing(seat, recv, bytes);
}

TEST(wrong_ones_are_found)
{
    static const struct {
        int (*wrong)(seat_t *seat, void *recv, size_t bytes);
        xep_status_t status;
        const char *part;
    } cases[] = {{wrong_status, XEP_ERR_BOOT, "returned 7"},
                 {wrong_nothing, XEP_ERR_BOOT, "did nothing"},
                 {wrong_garbage, XEP_ERR_BOOT, "did not bring what rank"},
                 {wrong_order, XEP_ERR_MISMATCH, "in the order of the allgather"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        world_t world;
        seat_t seats[RANKS];
        seat_all(seats, &world);
        for (uint32_t r = 0; r < RANKS; r++) seats[r].wrong = cases[i].wrong;
        run_all(seats);
        expect(&seats[1], cases[i].status, cases[i].part);
    }
}

TEST(one_that_fails_later_is_found)
{
    world_t world;
    seat_t seats[RANKS];
    seat_all(seats, &world);
    for (uint32_t r = 0; r < RANKS; r++) seats[r].wrong = wrong_later;
    run_all(seats);
    for (uint32_t r = 0; r < RANKS; r++) expect(&seats[r], XEP_ERR_PROTOCOL, "did nothing");
}

TEST(ranks_must_agree)
{
    world_t world;
    seat_t seats[RANKS];
    seat_all(seats, &world);
    seats[2].nranks = RANKS + 1;
    run_all(seats);
    expect(&seats[0], XEP_ERR_MISMATCH, "rank 2 and rank 0 disagree on nranks: 4, 3");
    expect(&seats[1], XEP_ERR_MISMATCH, "rank 2 and rank 1 disagree on nranks: 4, 3");

    seat_all(seats, &world);
    seats[2].rank = 0; /* two of them */
    run_all(seats);
    expect(&seats[0], XEP_ERR_MISMATCH, "position 2 of the allgather holds what rank 0 sent");
    expect(&seats[1], XEP_ERR_MISMATCH, "position 2 of the allgather holds what rank 0 sent");
}

/* the params say 2 ranks, the allgather is over 3: found before it writes over anything */
TEST(more_ranks_than_told_are_found)
{
    world_t world;
    seat_t seats[RANKS];
    seat_all(seats, &world);
    for (uint32_t r = 0; r < RANKS; r++) {
        seats[r].nranks = RANKS - 1;
        seats[r].rank = r % (RANKS - 1);
    }
    run_all(seats);
    expect(&seats[0], XEP_ERR_MISMATCH, "more ranks than the params say");
    expect(&seats[1], XEP_ERR_MISMATCH, "more ranks than the params say");
}

TEST(rank_must_be_one_of_them)
{
    seat_t seat = {.rank = 3, .nranks = 3};
    xep_boot_t *boot = NULL;
    assert_int_equal(open_seat(&seat, &boot), XEP_ERR_INVALID);
    assert_null(boot);
}
