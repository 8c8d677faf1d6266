/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1 2 4, brief: 1 4, limit: 120, again: 2 */

/*
 * Who is waited for: in both modes the rank that is late is the one that is blamed, wherever it stands, and no other;
 * what is not waiting is not counted; what operations say adds up to what the buffer says. Times are compared with
 * one another and with what the calls took, as this test's clock has it.
 *
 * A machine under load keeps ranks away, too, and the library blames them for that with reason. So what is not clear on
 * every rank is tried again with a rank that is late by three times as much, until load is nothing beside it. A library
 * that blames the wrong rank, or counts what is no waiting, is wrong by as much every time.
 */

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mp_rig.h"
#include "waits_books.h"

enum { EXPERTS = 12, TOPK = 3, HIDDEN = 96, TOKENS = 10, ROUNDS = 3 };
enum { SHORTEST_US = 30 * 1000, LONGEST_US = 81 * SHORTEST_US };

static float x[TOKENS][HIDDEN], out[TOKENS][HIDDEN];
static int64_t idx[TOKENS][TOPK];
static unsigned delay_us = SHORTEST_US; /* by which a rank is late */

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- operations ---- */

static books_t *open_books(xep_group_t *group, const char *mode)
{
    books_t *books = calloc(1, sizeof *books);
    xep_buffer_params_t p = XEP_BUFFER_PARAMS_INIT;
    p.mode = mode, p.experts = EXPERTS, p.topk = TOPK, p.hidden = HIDDEN, p.tokens = TOKENS;
    p.dtype = p.combine_dtype = XEP_FP32;
    MP_OK(xep_buffer_create(group, &p, &books->buffer));
    return books;
}

static xep_handle_t *begin_dispatch(books_t *books, xep_request_t **req_p)
{
    xep_dispatch_args_t a = XEP_DISPATCH_ARGS_INIT;
    xep_handle_t *handle;
    books_begin(books);
    a.tokens = TOKENS, a.x = x, a.topk_idx = idx, a.wait_ns = books->last;
    MP_OK(xep_dispatch(books->buffer, &a, &handle, req_p));
    return handle;
}

static void finish(books_t *books, xep_op_kind_t kind, xep_request_t *req)
{
    uint64_t begin = now_ns();
    MP_OK(xep_request_wait(req));
    books->called_ns += now_ns() - begin;
    xep_request_free(req);
    books_enter(books, kind);
}

static xep_handle_t *dispatch(books_t *books)
{
    uint64_t begin = now_ns();
    xep_handle_t *handle = begin_dispatch(books, NULL);
    books->called_ns = now_ns() - begin;
    books_enter(books, XEP_OP_DISPATCH);
    return handle;
}

static void combine(books_t *books, xep_handle_t *handle)
{
    xep_combine_args_t a = XEP_COMBINE_ARGS_INIT;
    uint64_t begin = now_ns();
    books_begin(books);
    a.out = out, a.wait_ns = books->last;
    MP_OK(xep_combine(handle, &a, NULL));
    books->called_ns = now_ns() - begin;
    books_enter(books, XEP_OP_COMBINE);
}

/* All ranks begin; this one is away for so many delays. */
static void be_late(xep_group_t *group, unsigned delays)
{
    MP_OK(xep_group_barrier(group));
    if (delays != 0) mp_sleep_us(delays * delay_us);
}

/* ---- until it is clear ---- */

/* of a show: what was not so on this rank, the first of all */
static const char *unclear;

static void clear(int condition, const char *what)
{
    if (!condition && unclear == NULL) unclear = what;
}

#define CLEAR(_condition) clear((_condition), #_condition)

typedef void (*show_fn)(xep_group_t *group, books_t *books, uint32_t late);

static void show(show_fn fn, xep_group_t *group, books_t *books, uint32_t late)
{
    uint8_t mine, all[BOOKS_RANKS];
    for (delay_us = SHORTEST_US;; delay_us *= 3) {
        unclear = NULL;
        fn(group, books, late);
        mine = unclear != NULL;
        MP_OK(xep_group_allgather(group, &mine, all, sizeof mine));
        if (memchr(all, 1, mp_nranks()) == NULL) break;
        if (delay_us == LONGEST_US && mine)
            mp_fail(__FILE__, __LINE__, "not even when rank %u is late by %u us: %s", late, delay_us, unclear);
        if (delay_us == LONGEST_US) break; /* the rank that it was not clear to says so */
    }
    delay_us = SHORTEST_US;
}

/* ---- who is blamed ---- */

/* What the books of a kind say now, less what they said. */
typedef struct view {
    uint64_t sum_ns[BOOKS_RANKS];
    uint64_t called_ns;
} view_t;

/* The late rank has most of what the calls took, the others next to nothing beside it. */
static void check_blame(const view_t *view, uint32_t late)
{
    if (mp_rank() == late) return;
    CLEAR(2 * view->sum_ns[late] > view->called_ns);
    for (uint32_t r = 0; r < mp_nranks(); r++)
        if (r != late) CLEAR(3 * view->sum_ns[r] < view->sum_ns[late]);
    MP_CHECK(view->sum_ns[mp_rank()] == 0);
}

static void add(view_t *view, const books_t *books)
{
    for (uint32_t r = 0; r < mp_nranks(); r++) view->sum_ns[r] += books->last[r];
    view->called_ns += books->called_ns;
}

static void one_is_late(xep_group_t *group, books_t *books, uint32_t late)
{
    view_t view[BOOKS_KINDS] = {0};
    for (int i = 0; i < ROUNDS; i++) {
        be_late(group, mp_rank() == late);
        xep_handle_t *handle = dispatch(books);
        add(&view[XEP_OP_DISPATCH], books);
        mp_input(handle, NULL);
        be_late(group, mp_rank() == late);
        combine(books, handle);
        add(&view[XEP_OP_COMBINE], books);
        xep_handle_release(handle);
    }
    for (int kind = 0; kind < BOOKS_KINDS; kind++) check_blame(&view[kind], late);
}

static int is_by_nodes(const books_t *books)
{
    return mp_buffer_info(books->buffer).path == XEP_PATH_NODES;
}

/* Where rows go once to each node, one of another node is heard through one of this node, which is waited for first. */
static int is_behind(const books_t *books, xep_group_t *group, uint32_t rank)
{
    return is_by_nodes(books) && !mp_is_mapped(group, rank);
}

/* Whether it is heard through rank 0: its place on its node, modulo the ranks of this one, is that of rank 0. */
static int is_behind_first(const books_t *books, xep_group_t *group, uint32_t rank)
{
    xep_peer_info_t peer = XEP_PEER_INFO_INIT, other = XEP_PEER_INFO_INIT;
    uint32_t place = 0, mates = 0;
    MP_OK(xep_group_peer(group, 0, &peer));
    if (!peer.mapped || !is_behind(books, group, rank)) return 0;
    MP_OK(xep_group_peer(group, rank, &peer));
    for (uint32_t r = 0; r < mp_nranks(); r++) {
        MP_OK(xep_group_peer(group, r, &other));
        mates += (uint32_t)other.mapped;
        place += r < rank && other.node == peer.node;
    }
    return place % mates == 0;
}

/*
 * The first rank is late, the last twice as much: the time it is late beyond the first is not all it gets. But where it
 * is heard through the first, which is waited for first, each has its half.
 */
static void two_are_late(xep_group_t *group, books_t *books, uint32_t last)
{
    view_t view = {0};
    if (mp_nranks() < 3) return;
    for (int i = 0; i < ROUNDS; i++) {
        be_late(group, mp_rank() == 0 ? 1 : mp_rank() == last ? 2 : 0);
        xep_handle_release(dispatch(books));
        add(&view, books);
    }
    if (mp_rank() == 0 || mp_rank() == last) return;
    if (is_behind_first(books, group, last)) {
        CLEAR(3 * (view.sum_ns[0] + view.sum_ns[last]) > 2 * view.called_ns);
        CLEAR(3 * view.sum_ns[last] > view.sum_ns[0]);
    } else {
        CLEAR(2 * view.sum_ns[last] > view.called_ns);
        CLEAR(3 * view.sum_ns[last] > 4 * view.sum_ns[0]);
    }
    CLEAR(4 * view.sum_ns[0] > view.sum_ns[last]);
}

/* ---- what is not waiting ---- */

/* One rank is late, and the others come to receive half of that later: they waited for the other half. */
static void computing_between(xep_group_t *group, books_t *books, uint32_t late)
{
    xep_request_t *req;
    view_t view = {0};
    for (int i = 0; i < ROUNDS; i++) {
        be_late(group, mp_rank() == late ? 2 : 0);
        xep_handle_t *handle = begin_dispatch(books, &req);
        if (mp_rank() != late) mp_sleep_us(delay_us);
        finish(books, XEP_OP_DISPATCH, req);
        add(&view, books);
        xep_handle_release(handle);
    }
    check_blame(&view, late);
}

/* A rank that only tests is never seen to wait; neither is one that computes for longer than the others are late. */
static void tests_only(xep_group_t *group, books_t *books)
{
    static const uint64_t none[BOOKS_RANKS];
    xep_request_t *req;
    xep_status_t status;
    be_late(group, mp_rank() == 0);
    xep_handle_t *handle = begin_dispatch(books, &req);
    while ((status = xep_request_test(req)) == XEP_INPROGRESS) mp_sleep_us(100);
    MP_OK(status);
    finish(books, XEP_OP_DISPATCH, req);
    MP_CHECK(memcmp(books->last, none, sizeof none) == 0);
    xep_handle_release(handle);
}

/*
 * Normal: one rank tells its counts, but sends its rows late; the others are told the counts and come back for the
 * rows. By nodes such a rank also keeps back what it has heard of other nodes, and the others wait for those.
 */
static void computing_after_counts(xep_group_t *group, books_t *books, uint32_t late)
{
    xep_request_t *req;
    view_t view = {0};
    if (is_by_nodes(books)) return;
    for (int i = 0; i < ROUNDS; i++) {
        be_late(group, 0);
        xep_handle_t *handle = begin_dispatch(books, &req);
        if (mp_rank() == late) mp_sleep_us(2 * delay_us);
        uint64_t begin = now_ns();
        MP_OK(xep_request_wait_counts(req));
        books->called_ns = now_ns() - begin;
        if (mp_rank() != late) mp_sleep_us(delay_us);
        finish(books, XEP_OP_DISPATCH, req);
        add(&view, books);
        xep_handle_release(handle);
    }
    if (getenv("XEP_PROGRESS") == NULL) check_blame(&view, late); /* a thread of its would send its rows */
}

/* ---- the rest ---- */

/* What ranks that never came were waited for is told with the error. */
static void deadline(xep_group_t *group, books_t *books, uint32_t alone)
{
    if (mp_rank() == alone && mp_nranks() > 1) {
        xep_dispatch_args_t a = XEP_DISPATCH_ARGS_INIT;
        xep_handle_t *handle;
        books_begin(books);
        a.tokens = TOKENS, a.x = x, a.topk_idx = idx, a.wait_ns = books->last, a.timeout_ms = delay_us / 1000;
        uint64_t begin = now_ns();
        MP_FAILS(XEP_ERR_TIMEOUT, xep_dispatch(books->buffer, &a, &handle, NULL));
        books->called_ns = now_ns() - begin;
        books_enter(books, XEP_OP_DISPATCH);
        for (uint32_t r = 0; r < mp_nranks(); r++)
            if (r != alone && !is_behind(books, group, r)) CLEAR(2 * books->last[r] > books->called_ns);
    }
    MP_OK(xep_buffer_reset(books->buffer));
}

/* A program of an older header has no such field; what is behind its struct is not looked at. */
static void older_callers(xep_group_t *group, books_t *books)
{
    uint64_t poison[BOOKS_RANKS], is[BOOKS_RANKS];
    xep_dispatch_args_t a = XEP_DISPATCH_ARGS_INIT;
    xep_combine_args_t c = XEP_COMBINE_ARGS_INIT;
    xep_handle_t *handle;
    memset(poison, 0xa5, sizeof poison);
    memcpy(is, poison, sizeof is);
    a.size = offsetof(xep_dispatch_args_t, wait_ns), a.wait_ns = is;
    c.size = offsetof(xep_combine_args_t, wait_ns), c.wait_ns = is;
    a.tokens = TOKENS, a.x = x, a.topk_idx = idx, c.out = out;
    be_late(group, mp_rank() == 0);
    MP_OK(xep_dispatch(books->buffer, &a, &handle, NULL));
    mp_input(handle, NULL);
    be_late(group, mp_rank() == 0);
    MP_OK(xep_combine(handle, &c, NULL));
    MP_CHECK(memcmp(is, poison, sizeof is) == 0);
    xep_handle_release(handle);
}

static void refusals(const books_t *books)
{
    struct {
        xep_waits_t waits;
        uint64_t newer;
    } grown = {XEP_WAITS_INIT, 1};
    xep_waits_t none = XEP_WAITS_INIT;
    MP_OK(xep_buffer_waits(books->buffer, XEP_OP_COMBINE, &none)); /* every array left out */
    MP_SAYS(XEP_ERR_INVALID, "buffer is NULL", xep_buffer_waits(NULL, XEP_OP_DISPATCH, &none));
    MP_SAYS(XEP_ERR_INVALID, "waits is NULL", xep_buffer_waits(books->buffer, XEP_OP_DISPATCH, NULL));
    MP_SAYS(XEP_ERR_INVALID, "invalid kind: 3", xep_buffer_waits(books->buffer, (xep_op_kind_t)3, &none));
    grown.waits.size = sizeof grown;
    MP_FAILS(XEP_ERR_INVALID, xep_buffer_waits(books->buffer, XEP_OP_DISPATCH, &grown.waits));
    none.size = 0;
    MP_SAYS(XEP_ERR_INVALID, "_INIT", xep_buffer_waits(books->buffer, XEP_OP_DISPATCH, &none));
}

typedef struct watch {
    const books_t *books;
    atomic_int over;
} watch_t;

/* Reads while others are in the buffer: what was waited never gets less. */
static void *look_on(void *arg)
{
    watch_t *watch = arg;
    uint64_t before[BOOKS_RANKS] = {0}, sum_ns[BOOKS_RANKS];
    xep_waits_t waits = XEP_WAITS_INIT;
    waits.sum_ns = sum_ns;
    while (!atomic_load(&watch->over)) {
        MP_OK(xep_buffer_waits(watch->books->buffer, XEP_OP_DISPATCH, &waits));
        for (uint32_t r = 0; r < mp_nranks(); r++) MP_CHECK(sum_ns[r] >= before[r]);
        memcpy(before, sum_ns, sizeof before);
        mp_sleep_us(1000);
    }
    return NULL;
}

static void run(xep_group_t *group, const char *mode)
{
    books_t *books = open_books(group, mode);
    watch_t watch = {.books = books};
    pthread_t thread;
    MP_CHECK(pthread_create(&thread, NULL, look_on, &watch) == 0);
    show(one_is_late, group, books, 0);
    show(one_is_late, group, books, mp_nranks() - 1);
    show(two_are_late, group, books, mp_nranks() - 1);
    show(computing_between, group, books, 0);
    tests_only(group, books);
    if (strcmp(mode, "normal") == 0) show(computing_after_counts, group, books, 0);
    show(deadline, group, books, 0);
    xep_handle_release(dispatch(books));
    books_check(books);
    older_callers(group, books);
    refusals(books);
    atomic_store(&watch.over, 1);
    pthread_join(thread, NULL);
    xep_buffer_destroy(books->buffer);
    free(books);
}

int main(void)
{
    xep_group_t *group = mp_group();
    if (mp_nranks() > BOOKS_RANKS) return mp_skip("more than 16 ranks");
    for (int t = 0; t < TOKENS; t++)
        for (int k = 0; k < TOPK; k++) idx[t][k] = (t * 7 + k * 5 + (int)mp_rank()) % EXPERTS;
    run(group, "normal");
    run(group, "ll");
    return mp_end(group);
}
