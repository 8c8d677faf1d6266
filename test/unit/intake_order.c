/* SPDX-License-Identifier: BSD-3-Clause */

/* Messages taken in any order: signals are stored in the sender's, and nothing outside the heap is ever touched. */

#include <stdlib.h>
#include <string.h>

#include "ucp_intake.h"
#include "unit.h"

#define NO_SIGNALS .held_offset = XEP_UCP_NO_SIGNAL, .signal_offset = XEP_UCP_NO_SIGNAL

enum { WORDS = 64, HEAP = WORDS * 8, NRANKS = 3 };

typedef struct box {
    uint64_t *heap; /* exactly HEAP bytes, so that the sanitizer sees a byte too much */
    xep_ucp_intake_t *intake;
} box_t;

static box_t box_open_for(uint64_t stream_bytes)
{
    box_t box = {.heap = calloc(1, HEAP)};
    assert_non_null(box.heap);
    assert_int_equal(xep_ucp_intake_open(box.heap, HEAP, NRANKS, stream_bytes, &box.intake), XEP_OK);
    return box;
}

static box_t box_open(void)
{
    return box_open_for(UINT64_MAX);
}

static void box_close(box_t *box)
{
    xep_ucp_intake_close(box->intake);
    free(box->heap);
}

/* message n of a sender: word 8 + n becomes value, then word 0 the signal n + 1 */
static xep_status_t deliver(box_t *box, uint32_t sender, uint64_t n, uint64_t value)
{
    xep_ucp_message_t message = {.sequence = n,
                                 .sender = sender,
                                 .offset = (8 + n) * 8,
                                 .held_offset = XEP_UCP_NO_SIGNAL,
                                 .signal_offset = sender * 8,
                                 .signal_value = n + 1};
    return xep_ucp_intake_deliver(box->intake, &message, &value, sizeof value);
}

TEST(in_order)
{
    box_t box = box_open();
    for (uint64_t n = 0; n < 10; n++) {
        assert_int_equal(deliver(&box, 0, n, 100 + n), XEP_OK);
        assert_int_equal(box.heap[0], n + 1);
        assert_int_equal(box.heap[8 + n], 100 + n);
    }
    box_close(&box);
}

/* every order of five messages: a signal is never seen before the bytes of all messages up to it */
TEST(every_order)
{
    enum { N = 5, ORDERS = 5 * 4 * 3 * 2 };
    for (unsigned order = 0; order < ORDERS; order++) {
        box_t box = box_open();
        uint64_t left[N] = {0, 1, 2, 3, 4};
        unsigned digits = order;
        for (unsigned nleft = N; nleft > 0; nleft--) {
            unsigned pick = digits % nleft;
            digits /= nleft;
            assert_int_equal(deliver(&box, 1, left[pick], 100 + left[pick]), XEP_OK);
            memmove(&left[pick], &left[pick + 1], (nleft - pick - 1) * sizeof left[0]);
            for (uint64_t n = 0; n < box.heap[1]; n++) assert_int_equal(box.heap[8 + n], 100 + n);
        }
        assert_int_equal(box.heap[1], N);
        box_close(&box);
    }
}

TEST(early_signal_waits)
{
    box_t box = box_open();
    assert_int_equal(deliver(&box, 2, 1, 7), XEP_OK);
    assert_int_equal(box.heap[9], 7);
    assert_int_equal(box.heap[2], 0);
    assert_int_equal(deliver(&box, 0, 0, 8), XEP_OK); /* another sender's numbers are its own */
    assert_int_equal(box.heap[0], 1);
    assert_int_equal(box.heap[2], 0);
    assert_int_equal(deliver(&box, 2, 0, 9), XEP_OK);
    assert_int_equal(box.heap[2], 2);
    box_close(&box);
}

/* Messages 0, 1, 2: each takes a signal along that was held, its number, in word 20. */
static void deliver_held(box_t *box, uint64_t n)
{
    uint64_t value = 100 + n;
    xep_ucp_message_t message = {.sequence = n,
                                 .offset = (8 + n) * 8,
                                 .held_offset = 20 * 8,
                                 .held_value = n,
                                 .signal_offset = XEP_UCP_NO_SIGNAL};
    assert_int_equal(xep_ucp_intake_deliver(box->intake, &message, &value, sizeof value), XEP_OK);
}

TEST(held_signals)
{
    box_t box = box_open();
    deliver_held(&box, 0);
    deliver_held(&box, 2);
    assert_int_equal(box.heap[20], 0);
    assert_int_equal(box.heap[10], 102);
    deliver_held(&box, 1);
    assert_int_equal(box.heap[20], 2);
    box_close(&box);
}

TEST(several_runs)
{
    struct {
        xep_ucp_run_t runs[2];
        uint64_t words[3];
    } payload = {{{HEAP - 8, 8}, {64, 16}}, {1, 2, 3}};
    xep_ucp_message_t message = {.nruns = 2, NO_SIGNALS};
    box_t box = box_open();
    assert_int_equal(xep_ucp_intake_deliver(box.intake, &message, &payload, sizeof payload), XEP_OK);
    assert_int_equal(box.heap[WORDS - 1], 1);
    assert_int_equal(box.heap[8], 2);
    assert_int_equal(box.heap[9], 3);
    box_close(&box);
}

/* Any place and length, through the caches, past them, and from some byte on past them: these bytes and no others. */
TEST(any_bytes)
{
    static const uint64_t limits[] = {UINT64_MAX, 0, 40000};
    uint8_t payload[HEAP], expected[HEAP] = {0};
    for (unsigned i = 0; i < HEAP; i++) payload[i] = (uint8_t)(i * 37 + 1);
    for (unsigned l = 0; l < 3; l++) {
        box_t box = box_open_for(limits[l]);
        uint64_t sequence = 0;
        for (size_t at = 0; at < 130; at++)
            for (size_t bytes = 1; bytes < 300; bytes += 13) {
                xep_ucp_message_t message = {.sequence = sequence++, .offset = at, NO_SIGNALS};
                memset(box.heap, 0, HEAP);
                memset(expected, 0, HEAP);
                memcpy(expected + at, payload + at % 7, bytes);
                assert_int_equal(xep_ucp_intake_deliver(box.intake, &message, payload + at % 7, bytes), XEP_OK);
                assert_memory_equal(box.heap, expected, HEAP);
            }
        box_close(&box);
    }
}

static void refuse(box_t *box, xep_ucp_message_t message, const void *payload, size_t bytes)
{
    assert_int_equal(xep_ucp_intake_deliver(box->intake, &message, payload, bytes), XEP_ERR_PROTOCOL);
    for (unsigned i = 0; i < WORDS; i++) assert_int_equal(box->heap[i], 0);
}

TEST(wild_messages)
{
    static const uint64_t word = 1;
    xep_ucp_run_t runs[2] = {{0, 8}, {0, 8}};
    xep_ucp_message_t good = {NO_SIGNALS}, m;
    box_t box = box_open();
    m = good, m.sender = NRANKS, refuse(&box, m, &word, 8);
    m = good, m.offset = HEAP - 7, refuse(&box, m, &word, 8);
    m = good, m.offset = UINT64_MAX - 3, refuse(&box, m, &word, 8);
    m = good, m.signal_offset = HEAP, refuse(&box, m, &word, 8);
    m = good, m.signal_offset = 4, refuse(&box, m, &word, 8);
    m = good, m.signal_offset = UINT64_MAX - 7, refuse(&box, m, &word, 8);
    m = good, m.held_offset = HEAP, refuse(&box, m, &word, 8);
    m = good, m.held_offset = 12, refuse(&box, m, &word, 8);
    m = good, m.held_offset = UINT64_MAX - 7, refuse(&box, m, &word, 8);
    m = good, m.nruns = UINT32_MAX, refuse(&box, m, &word, 8);
    m = good, m.nruns = 1, refuse(&box, m, runs, sizeof runs[0]); /* a run of 8 bytes that are not there */
    m = good, m.nruns = 1, refuse(&box, m, runs, sizeof runs);    /* 16 bytes for a run of 8 */
    runs[0] = (xep_ucp_run_t){UINT64_MAX - 7, 16};
    m = good, m.nruns = 1, refuse(&box, m, runs, sizeof runs); /* offset + bytes wraps */
    runs[0] = (xep_ucp_run_t){HEAP, 16};
    m = good, m.nruns = 1, refuse(&box, m, runs, sizeof runs);
    assert_int_equal(deliver(&box, 0, 0, 5), XEP_OK); /* and still works */
    box_close(&box);
}

TEST(twice)
{
    box_t box = box_open();
    assert_int_equal(deliver(&box, 0, 0, 1), XEP_OK);
    assert_int_equal(deliver(&box, 0, 0, 2), XEP_ERR_PROTOCOL);
    assert_int_equal(box.heap[8], 1);
    assert_int_equal(deliver(&box, 0, 3, 1), XEP_OK);
    assert_int_equal(deliver(&box, 0, 3, 2), XEP_ERR_PROTOCOL);
    assert_int_equal(box.heap[11], 1);
    box_close(&box); /* with an early message left */
}

TEST(too_many_early)
{
    box_t box = box_open();
    xep_status_t status = XEP_OK;
    uint64_t n = 1;
    for (; n < 1000000 && status == XEP_OK; n++) {
        xep_ucp_message_t message = {.sequence = UINT32_MAX - n, NO_SIGNALS};
        status = xep_ucp_intake_deliver(box.intake, &message, NULL, 0);
    }
    assert_int_equal(status, XEP_ERR_PROTOCOL);
    assert_in_range(n, 1000, 100000);
    box_close(&box);
}

/* A sender that is out changes nothing any more, also by what it sent before; the others go on. */
TEST(refused)
{
    box_t box = box_open();
    assert_int_equal(deliver(&box, 0, 0, 1), XEP_OK);
    assert_int_equal(deliver(&box, 0, 2, 3), XEP_OK); /* its signal waits for message 1 */
    xep_ucp_intake_refuse(box.intake, 0);
    assert_int_equal(deliver(&box, 0, 1, 2), XEP_OK);
    assert_int_equal(deliver(&box, 0, 3, 4), XEP_OK);
    assert_int_equal(box.heap[0], 1);
    assert_int_equal(box.heap[9], 0);
    assert_int_equal(box.heap[11], 0);
    assert_int_equal(deliver(&box, 1, 0, 7), XEP_OK);
    assert_int_equal(box.heap[8], 7);
    box_close(&box);
}
