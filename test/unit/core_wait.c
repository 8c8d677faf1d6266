/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Every wait on a group ends by an abort of another thread or of a signal handler, when its caller is interrupted, and
 * by the death of a rank: none of them has a deadline here, so one that does not look hangs.
 */

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "buffer.h"
#include "buffer_give_up.h"
#include "request.h"
#include "unit.h"
#include "unit_mirror.h"

enum { SOON_US = 50000, HANG_S = 60 };

typedef enum { ABORT, ABORT_BY_SIGNAL, INTERRUPT, DEATH, NOTHING } cause_t;

/* ---- what ends the waits ---- */

typedef struct ending {
    xep_group_t *group;
    cause_t cause;
    pthread_t thread, waits;
} ending_t;

static xep_group_t *to_abort; /* by the handler */

static void abort_in_handler(int number)
{
    (void)number;
    xep_group_abort(to_abort);
}

static void *end_soon(void *arg)
{
    ending_t *ending = arg;
    for (int i = 0; i < 10000 && unit_mirror.how == MIRROR_NEVER_FLUSHED && !atomic_load(&unit_mirror.unflushed); i++)
        usleep(1000);
    usleep(SOON_US);
    switch (ending->cause) {
    case ABORT: xep_group_abort(ending->group); break;
    case ABORT_BY_SIGNAL: pthread_kill(ending->waits, SIGUSR1); break;
    case INTERRUPT: atomic_store(&unit_mirror.interrupted, 1); break;
    case DEATH: atomic_store(&unit_mirror.dead, 1); break;
    case NOTHING: break;
    }
    return NULL;
}

/* from now on the mirror is as it should be, and soon the group is aborted, or rank 1 dead */
static void begin(ending_t *ending, xep_group_t *group, unit_mirror_how_t how, cause_t cause)
{
    *ending = (ending_t){.group = group, .cause = cause, .waits = pthread_self()};
    to_abort = group;
    signal(SIGUSR1, abort_in_handler);
    unit_mirror.how = how;
    atomic_store(&unit_mirror.unflushed, 0);
    assert_int_equal(pthread_create(&ending->thread, NULL, end_soon, ending), 0);
}

static void check(ending_t *ending, xep_status_t status)
{
    assert_int_equal(pthread_join(ending->thread, NULL), 0);
    assert_int_equal(status, ending->cause == DEATH ? XEP_ERR_PEER : XEP_ERR_ABORTED);
    if (ending->cause == DEATH) assert_non_null(strstr(xep_last_error(), "rank 1 has died"));
}

static void close_group(xep_group_t *group)
{
    xep_group_abort(group);
    xep_group_destroy(group);
}

/* ---- the waits ---- */

void unit_before_each(void)
{
    alarm(HANG_S); /* a wait that does not look */
}

TEST(barrier_waits)
{
    for (int how = MIRROR_SILENT; how <= MIRROR_NEVER_FLUSHED; how++)
        for (int cause = ABORT; cause <= DEATH; cause++) {
            xep_group_t *group = unit_mirror_open_group();
            ending_t ending;
            begin(&ending, group, (unit_mirror_how_t)how, (cause_t)cause);
            xep_status_t status = xep_group_barrier(group);
            /* all have come, only the last bytes have not left: no error, but no waiting either */
            if (how == MIRROR_NEVER_FLUSHED) {
                assert_int_equal(status, XEP_OK);
                assert_int_equal(pthread_join(ending.thread, NULL), 0);
            } else {
                check(&ending, status);
            }
            close_group(group);
        }
}

/* Who has left since another has died cannot be reached either: the dead one is named, if it is known soon. */
TEST(dead_rank_is_the_reason)
{
    for (int is_told = 0; is_told < 2; is_told++) {
        xep_group_t *group = unit_mirror_open_group();
        ending_t ending;
        begin(&ending, group, MIRROR_UNREACHABLE, is_told ? DEATH : NOTHING);
        assert_int_equal(xep_group_barrier(group), XEP_ERR_PEER);
        assert_non_null(strstr(xep_last_error(), is_told ? "rank 1 has died" : "rank 1 cannot be reached"));
        assert_int_equal(pthread_join(ending.thread, NULL), 0);
        close_group(group);
    }
}

TEST(allgather_waits)
{
    for (int how = MIRROR_SILENT; how <= MIRROR_TAKES_NO_SIGNAL; how++)
        for (int cause = ABORT; cause <= DEATH; cause++) {
            uint64_t mine = 1, all[MIRROR_RANKS];
            xep_group_t *group = unit_mirror_open_group();
            ending_t ending;
            assert_int_equal(xep_group_allgather(group, &mine, all, sizeof mine), XEP_OK);
            assert_int_equal(all[1], 1);
            begin(&ending, group, (unit_mirror_how_t)how, (cause_t)cause);
            check(&ending, xep_group_allgather(group, &mine, all, sizeof mine));
            close_group(group);
        }
}

/* Only what waits in vain has a deadline. A call may come to it in an earlier round, too. */
static void fall_silent(xep_group_t *group, int rounds)
{
    group->timeout_ms = 20;
    unit_mirror.silent_after = rounds;
}

static void answer_again(xep_group_t *group)
{
    group->timeout_ms = -1;
    unit_mirror.silent_after = 0;
    unit_mirror.how = MIRROR_FINE;
}

/*
 * Given up in any of its rounds, it goes on there when it is called again. Another one gives it up for good, and waits
 * for those that it waited for.
 */
TEST(allgather_goes_on)
{
    enum { BYTES = 3 * 4080 + 5 };
    static uint8_t mine[BYTES], all[MIRROR_RANKS][BYTES], others[MIRROR_RANKS][BYTES];
    xep_group_t *group = unit_mirror_open_group();
    for (int rounds = 1; rounds < 4; rounds++) {
        for (size_t i = 0; i < BYTES; i++) mine[i] = (uint8_t)(i * 7 + (i >> 8) + (size_t)rounds);
        memset(all, 0, sizeof all);
        fall_silent(group, rounds);
        for (int i = 0; i < 3; i++) assert_int_equal(xep_group_allgather(group, mine, all, BYTES), XEP_ERR_TIMEOUT);
        answer_again(group);
        assert_int_equal(xep_group_allgather(group, mine, all, BYTES), XEP_OK);
        assert_memory_equal(all[0], mine, BYTES);
        assert_memory_equal(all[1], mine, BYTES);

        fall_silent(group, rounds);
        assert_int_equal(xep_group_allgather(group, mine, all, BYTES), XEP_ERR_TIMEOUT);
        assert_int_equal(xep_group_allgather(group, mine, others, BYTES - 1), XEP_ERR_TIMEOUT);
        answer_again(group);
        memset(all, 0, sizeof all);
        assert_int_equal(xep_group_allgather(group, mine, all, BYTES), XEP_OK);
        assert_memory_equal(all[0], mine, BYTES);
        assert_memory_equal(all[1], mine, BYTES);
    }
    close_group(group);
}

static xep_buffer_t *open_buffer(xep_group_t *group)
{
    xep_buffer_params_t params = XEP_BUFFER_PARAMS_INIT;
    xep_buffer_t *buffer = NULL;
    params.mode = "normal";
    params.experts = 4;
    params.topk = 2;
    params.hidden = 16;
    params.tokens = 4;
    params.timeout_ms = -1;
    assert_int_equal(xep_buffer_create(group, &params, &buffer), XEP_OK);
    return buffer;
}

/* collective, and void: that it returns is the test */
TEST(end_of_a_buffer_waits)
{
    for (int how = MIRROR_SILENT; how <= MIRROR_NEVER_FLUSHED; how++)
        for (int cause = ABORT; cause <= DEATH; cause++) {
            xep_group_t *group = unit_mirror_open_group();
            xep_buffer_t *buffer = open_buffer(group);
            ending_t ending;
            begin(&ending, group, (unit_mirror_how_t)how, (cause_t)cause);
            xep_buffer_destroy(buffer);
            assert_int_equal(pthread_join(ending.thread, NULL), 0);
            close_group(group);
        }
}

TEST(operation_waits)
{
    for (int cause = ABORT; cause <= DEATH; cause++) {
        xep_group_t *group = unit_mirror_open_group();
        xep_buffer_t *buffer = open_buffer(group);
        xep_dispatch_args_t args = XEP_DISPATCH_ARGS_INIT;
        xep_handle_t *handle = NULL;
        ending_t ending;
        begin(&ending, group, MIRROR_SILENT, (cause_t)cause);
        check(&ending, xep_dispatch(buffer, &args, &handle, NULL));
        xep_group_abort(group);
        xep_buffer_destroy(buffer);
        close_group(group);
    }
}

static void *wait_for(void *req)
{
    (void)xep_request_wait(req);
    return NULL;
}

static uint32_t free_slots(const xep_buffer_t *buffer)
{
    xep_buffer_info_t info = XEP_BUFFER_INFO_INIT;
    assert_int_equal(xep_buffer_query(buffer, &info), XEP_OK);
    return info.free_slots;
}

/* Any thread may release, free and abort while another one waits, which heeds that; nothing else ends its wait. */
TEST(releasing_does_not_wait)
{
    for (int all = 0; all < 2; all++) {
        xep_group_t *group = unit_mirror_open_group();
        xep_buffer_t *buffer = open_buffer(group);
        xep_dispatch_args_t args = XEP_DISPATCH_ARGS_INIT;
        xep_handle_t *handles[2];
        xep_request_t *reqs[2];
        pthread_t thread;
        unit_mirror.how = MIRROR_SILENT;
        const uint32_t slots = free_slots(buffer);
        for (int i = 0; i < 2; i++) assert_int_equal(xep_dispatch(buffer, &args, &handles[i], &reqs[i]), XEP_OK);
        assert_int_equal(pthread_create(&thread, NULL, wait_for, reqs[0]), 0);
        while (!(atomic_load(&buffer->entered) & XEP_ENTERED_BY_CALL)) sched_yield();
        xep_request_free(reqs[1]);
        for (int i = 0; i < 2; i++) xep_handle_release(handles[i]);
        if (all) xep_group_abort(group);
        else xep_buffer_abort(buffer);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(xep_request_wait(reqs[0]), all ? XEP_ERR_ABORTED : XEP_ERR_BROKEN);
        assert_int_equal(free_slots(buffer), slots);
        assert_int_equal(xep_request_wait(reqs[1]), XEP_ERR_INVALID); /* it was freed */
        xep_request_free(reqs[0]);
        unit_mirror.how = MIRROR_FINE;
        xep_buffer_destroy(buffer);
        close_group(group);
    }
}

/*
 * Rank 1 is silent from a step of the reset on: its allgather, or one in which all are quiet. It has said that it
 * leaves, or, behind the allgather, that it gives the reset up, which does not keep it from the next one.
 */
TEST(reset_hears_who_does_not_come)
{
    for (int answered = 0; answered < 3; answered++)
        for (int leaves = answered == 0; leaves < 2; leaves++) {
            xep_group_t *group = unit_mirror_open_group();
            xep_buffer_t *buffer = open_buffer(group);
            xep_buffer_line_t *line = (void *)((char *)buffer->heap->base + buffer->areas.lines);
            line[1].left = (uint64_t)leaves;
            line[1].given_up = leaves ? 0 : buffer->epoch + 1;
            line[1].why = XEP_ERR_TIMEOUT;
            unit_mirror.how = answered == 0 ? MIRROR_SILENT : MIRROR_FINE;
            unit_mirror.silent_after = answered;
            assert_int_equal(xep_buffer_reset(buffer), leaves ? XEP_ERR_BROKEN : XEP_ERR_TIMEOUT);
            assert_non_null(strstr(xep_last_error(), leaves ? "rank 1 destroys the buffer" : "given up by rank 1"));
            unit_mirror.how = MIRROR_FINE;
            unit_mirror.silent_after = 0;
            if (!leaves) assert_int_equal(xep_buffer_reset(buffer), XEP_OK);
            assert_int_equal(xep_buffer_destroy(buffer), XEP_OK);
            close_group(group);
        }
}

/* Rank 1 comes to a reset while this one leaves: that does not say that it leaves, too. */
TEST(end_of_a_buffer_counts_no_reset)
{
    xep_group_t *group = unit_mirror_open_group();
    xep_buffer_t *buffer = open_buffer(group);
    ((xep_buffer_line_t *)(void *)((char *)buffer->heap->base + buffer->areas.lines))[1].quiet = buffer->quiesces + 1;
    buffer->timeout_ms = 50;
    unit_mirror.how = MIRROR_SILENT;
    assert_int_equal(xep_buffer_destroy(buffer), XEP_ERR_TIMEOUT);
    close_group(group);
}

static xep_status_t never_ready(void *mode, uint32_t slot, void **base_p, size_t *stride_p)
{
    (void)mode, (void)slot, (void)base_p, (void)stride_p;
    return XEP_INPROGRESS;
}

TEST(combine_input_waits)
{
    for (int cause = ABORT; cause <= DEATH; cause++) {
        xep_group_t *group = unit_mirror_open_group();
        xep_buffer_t *buffer = open_buffer(group);
        const xep_plugin_t *plugin = buffer->plugin.plugin;
        xep_plugin_t reading = *plugin;
        ending_t ending;
        reading.input = never_ready;
        buffer->plugin.plugin = &reading;
        buffer->handles[0].state = XEP_HANDLE_READY;
        begin(&ending, group, MIRROR_FINE, (cause_t)cause);
        void *base = NULL;
        assert_int_equal(xep_handle_combine_input(&buffer->handles[0], &base, NULL),
                         cause == DEATH ? XEP_ERR_PEER : XEP_ERR_ABORTED);
        assert_null(base);
        buffer->plugin.plugin = plugin;
        check(&ending, cause == DEATH ? XEP_ERR_PEER : XEP_ERR_ABORTED);
        xep_group_abort(group);
        xep_buffer_destroy(buffer);
        close_group(group);
    }
}
