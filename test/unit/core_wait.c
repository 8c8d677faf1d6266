/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Every wait on a group ends by an abort of another thread or of a signal handler, when its caller is interrupted, and
 * by the death of a rank: none of them has a deadline here, so one that does not look hangs. The group has two ranks;
 * rank 1 is a mirror, which does what rank 0 does at once, until it falls silent, or takes nothing any more.
 */

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "buffer.h"
#include "group_create.h"
#include "handle.h"
#include "unit.h"

enum { RANKS = 2, LINE = 64, SHARE = 4096, SOON_US = 50000, HANG_S = 60 };

typedef enum { FINE, SILENT, TAKES_NO_SIGNAL, NEVER_FLUSHED } mirror_t;
typedef enum { ABORT, ABORT_BY_SIGNAL, INTERRUPT, DEATH } cause_t;

typedef struct fake_heap {
    xep_heap_wire_t super; /* first: the core's pointer is ours */
    char *regions[RANKS];
    int control;
} fake_heap_t;

static mirror_t mirror;
static atomic_int died, unflushed, interrupted;
static int nheaps;

/* ---- wire and transport ---- */

static void *fake_map(xep_wire_t *wire, uint32_t rank)
{
    return ((fake_heap_t *)wire)->regions[rank];
}

static xep_status_t fake_put(xep_wire_t *wire, uint32_t rank, uint64_t offset, const void *src, size_t bytes)
{
    memmove(((fake_heap_t *)wire)->regions[rank] + offset, src, bytes);
    return XEP_OK;
}

/* what rank 0 tells rank 1, rank 1 tells rank 0: its share of an allgather lies behind ours, its word too */
static void answer(fake_heap_t *heap, uint64_t offset, size_t bytes, uint64_t word, uint64_t value)
{
    char *own = heap->regions[0];
    if (bytes != 0) memcpy(own + offset + SHARE, own + offset, bytes);
    memcpy(own + word + (heap->control ? LINE : sizeof value), &value, sizeof value);
}

static xep_status_t fake_put_signal(xep_wire_t *wire, uint32_t rank, uint64_t offset, const void *src, size_t bytes,
                                    uint64_t word, uint64_t value)
{
    fake_heap_t *heap = (fake_heap_t *)wire;
    if (mirror == TAKES_NO_SIGNAL && rank == 1) return XEP_INPROGRESS;
    if (bytes != 0) memmove(heap->regions[rank] + offset, src, bytes);
    memcpy(heap->regions[rank] + word, &value, sizeof value);
    if (rank == 1 && mirror != SILENT) answer(heap, offset, bytes, word, value);
    return XEP_OK;
}

static xep_status_t fake_flush(xep_wire_t *wire)
{
    (void)wire;
    if (mirror != NEVER_FLUSHED) return XEP_OK;
    atomic_store(&unflushed, 1);
    return XEP_INPROGRESS;
}

static xep_status_t fake_wire_progress(xep_wire_t *wire)
{
    (void)wire;
    return XEP_OK;
}

static const xep_wire_ops_t wire_ops = {.size = sizeof(xep_wire_ops_t),
                                        .map = fake_map,
                                        .put = fake_put,
                                        .put_signal = fake_put_signal,
                                        .flush = fake_flush,
                                        .progress = fake_wire_progress};

static void fake_address(xep_transport_t *transport, const void **address_p, size_t *bytes_p)
{
    (void)transport;
    *address_p = "a";
    *bytes_p = 1;
}

static xep_status_t fake_connect(xep_transport_t *transport, uint32_t rank, uint32_t nranks,
                                 const void *const *addresses, const size_t *bytes, const uint8_t *may_map)
{
    (void)transport, (void)rank, (void)nranks, (void)addresses, (void)bytes, (void)may_map;
    return XEP_OK;
}

static xep_status_t fake_heap_open(xep_transport_t *transport, uint64_t bytes, xep_heap_wire_t **heap_p)
{
    fake_heap_t *heap = calloc(1, sizeof *heap);
    uint64_t pages = (bytes + 4095) / 4096 * 4096;
    (void)transport;
    assert_non_null(heap);
    for (int r = 0; r < RANKS; r++) {
        heap->regions[r] = aligned_alloc(4096, pages);
        assert_non_null(heap->regions[r]);
        memset(heap->regions[r], 0, pages);
    }
    heap->super =
        (xep_heap_wire_t){.wire = {&wire_ops}, .base = heap->regions[0], .bytes = bytes, .key = "k", .key_bytes = 1};
    heap->control = nheaps++ == 0;
    *heap_p = &heap->super;
    return XEP_OK;
}

static xep_status_t fake_heap_connect(xep_heap_wire_t *heap, const void *const *keys, const size_t *bytes)
{
    (void)heap, (void)keys, (void)bytes;
    return XEP_OK;
}

static void fake_heap_close(xep_heap_wire_t *base)
{
    fake_heap_t *heap = (fake_heap_t *)base;
    if (base->release != NULL) base->release(base->release_arg);
    for (int r = 0; r < RANKS; r++) free(heap->regions[r]);
    free(heap);
}

static xep_status_t fake_progress(xep_transport_t *transport)
{
    (void)transport;
    return XEP_OK;
}

static xep_status_t fake_mail(xep_transport_t *transport, uint32_t rank, const void *data, size_t bytes)
{
    (void)transport, (void)rank, (void)data, (void)bytes;
    return XEP_OK;
}

static int fake_mail_has_left(xep_transport_t *transport)
{
    (void)transport;
    return 1;
}

static int fake_is_gone(xep_transport_t *transport, uint32_t rank, char *why, size_t bytes)
{
    (void)transport, (void)rank, (void)why, (void)bytes;
    return 0;
}

static void fake_close(xep_transport_t *transport)
{
    free(transport);
}

static const xep_transport_ops_t transport_ops = {.name = "fake",
                                                  .address = fake_address,
                                                  .connect = fake_connect,
                                                  .heap_open = fake_heap_open,
                                                  .heap_connect = fake_heap_connect,
                                                  .heap_close = fake_heap_close,
                                                  .progress = fake_progress,
                                                  .is_gone = fake_is_gone,
                                                  .mail = fake_mail,
                                                  .mail_has_left = fake_mail_has_left,
                                                  .close = fake_close};

/* ---- bootstrap ---- */

static xep_status_t boot_allgather(xep_boot_t *boot, const void *send, void *recv, size_t bytes)
{
    (void)boot;
    for (int r = 0; r < RANKS; r++) memcpy((char *)recv + (size_t)r * bytes, send, bytes);
    return XEP_OK;
}

static uint32_t boot_dead_rank(xep_boot_t *boot)
{
    (void)boot;
    return atomic_load(&died) ? 1 : UINT32_MAX;
}

static void boot_close(xep_boot_t *boot)
{
    free(boot);
}

static const xep_boot_ops_t boot_ops = {.name = "fake",
                                        .allgather = boot_allgather,
                                        .dead_rank = boot_dead_rank,
                                        .close = boot_close};

static int was_interrupted(void *ctx)
{
    (void)ctx;
    return atomic_load(&interrupted);
}

static xep_status_t open_transport(const xep_config_t *config, uint32_t nranks, int local,
                                   xep_transport_t **transport_p)
{
    (void)config, (void)nranks, (void)local;
    *transport_p = calloc(1, sizeof **transport_p);
    assert_non_null(*transport_p);
    (*transport_p)->ops = &transport_ops;
    return XEP_OK;
}

static xep_group_t *open_group(void)
{
    xep_boot_t *boot = calloc(1, sizeof *boot);
    xep_config_t config;
    xep_group_t *group = NULL;
    assert_non_null(boot);
    *boot = (xep_boot_t){.ops = &boot_ops, .nranks = RANKS, .timeout_ms = -1};
    boot->interrupted = was_interrupted;
    mirror = FINE;
    atomic_store(&died, 0);
    atomic_store(&interrupted, 0);
    nheaps = 0;
    assert_int_equal(xep_config_read(&config), XEP_OK);
    assert_int_equal(xep_group_open(&config, -1, boot, open_transport, &group), XEP_OK);
    return group;
}

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
    for (int i = 0; i < 10000 && mirror == NEVER_FLUSHED && !atomic_load(&unflushed); i++) usleep(1000);
    usleep(SOON_US);
    switch (ending->cause) {
    case ABORT: xep_group_abort(ending->group); break;
    case ABORT_BY_SIGNAL: pthread_kill(ending->waits, SIGUSR1); break;
    case INTERRUPT: atomic_store(&interrupted, 1); break;
    case DEATH: atomic_store(&died, 1); break;
    }
    return NULL;
}

/* from now on the mirror is as it should be, and soon the group is aborted, or rank 1 dead */
static void begin(ending_t *ending, xep_group_t *group, mirror_t how, cause_t cause)
{
    *ending = (ending_t){.group = group, .cause = cause, .waits = pthread_self()};
    to_abort = group;
    signal(SIGUSR1, abort_in_handler);
    mirror = how;
    atomic_store(&unflushed, 0);
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
    for (int how = SILENT; how <= NEVER_FLUSHED; how++)
        for (int cause = ABORT; cause <= DEATH; cause++) {
            xep_group_t *group = open_group();
            ending_t ending;
            begin(&ending, group, (mirror_t)how, (cause_t)cause);
            xep_status_t status = xep_group_barrier(group);
            /* all have come, only the last bytes have not left: no error, but no waiting either */
            if (how == NEVER_FLUSHED) {
                assert_int_equal(status, XEP_OK);
                assert_int_equal(pthread_join(ending.thread, NULL), 0);
            } else {
                check(&ending, status);
            }
            close_group(group);
        }
}

TEST(allgather_waits)
{
    for (int how = SILENT; how <= TAKES_NO_SIGNAL; how++)
        for (int cause = ABORT; cause <= DEATH; cause++) {
            uint64_t mine = 1, all[RANKS];
            xep_group_t *group = open_group();
            ending_t ending;
            assert_int_equal(xep_group_allgather(group, &mine, all, sizeof mine), XEP_OK);
            assert_int_equal(all[1], 1);
            begin(&ending, group, (mirror_t)how, (cause_t)cause);
            check(&ending, xep_group_allgather(group, &mine, all, sizeof mine));
            close_group(group);
        }
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
    for (int how = SILENT; how <= NEVER_FLUSHED; how++)
        for (int cause = ABORT; cause <= DEATH; cause++) {
            xep_group_t *group = open_group();
            xep_buffer_t *buffer = open_buffer(group);
            ending_t ending;
            begin(&ending, group, (mirror_t)how, (cause_t)cause);
            xep_buffer_destroy(buffer);
            assert_int_equal(pthread_join(ending.thread, NULL), 0);
            close_group(group);
        }
}

TEST(operation_waits)
{
    for (int cause = ABORT; cause <= DEATH; cause++) {
        xep_group_t *group = open_group();
        xep_buffer_t *buffer = open_buffer(group);
        xep_dispatch_args_t args = XEP_DISPATCH_ARGS_INIT;
        xep_handle_t *handle = NULL;
        ending_t ending;
        begin(&ending, group, SILENT, (cause_t)cause);
        check(&ending, xep_dispatch(buffer, &args, &handle, NULL));
        xep_group_abort(group);
        xep_buffer_destroy(buffer);
        close_group(group);
    }
}

static xep_status_t never_ready(void *mode, uint32_t slot, void **base_p, size_t *stride_p)
{
    (void)mode, (void)slot, (void)base_p, (void)stride_p;
    return XEP_INPROGRESS;
}

TEST(combine_input_waits)
{
    for (int cause = ABORT; cause <= DEATH; cause++) {
        xep_group_t *group = open_group();
        xep_buffer_t *buffer = open_buffer(group);
        const xep_plugin_t *plugin = buffer->plugin.plugin;
        xep_plugin_t reading = *plugin;
        ending_t ending;
        reading.input = never_ready;
        buffer->plugin.plugin = &reading;
        buffer->handles[0].state = XEP_HANDLE_READY;
        begin(&ending, group, FINE, (cause_t)cause);
        assert_null(xep_handle_combine_input(&buffer->handles[0], NULL));
        buffer->plugin.plugin = plugin;
        check(&ending, cause == DEATH ? XEP_ERR_PEER : XEP_ERR_ABORTED);
        xep_group_abort(group);
        xep_buffer_destroy(buffer);
        close_group(group);
    }
}
