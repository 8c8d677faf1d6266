/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The functions behind the env that a mode gets. They know the buffer by the address of the env, which is a member of
 * it: a mode hands back what it was given, and needs no pointer to anything of ours.
 */
#include "buffer.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "backoff.h"
#include "cache.h"
#include "cpu.h"
#include "group_doorbell.h"
#include "heap.h"
#include "host.h"
#include "log.h"
#include "members.h"
#include "request.h"
#include "staging.h"

static xep_buffer_t *buffer_of(const xep_env_t *env)
{
    return (xep_buffer_t *)(uintptr_t)((const char *)env - offsetof(xep_buffer_t, env));
}

typedef struct traced_work {
    const xep_buffer_t *buffer;
    xep_parallel_fn fn;
    void *arg;
} traced_work_t;

static void run_traced(void *arg, uint32_t thread, uint32_t nthreads)
{
    const traced_work_t *work = arg;
    xep_trace_event_t event = {.begin_ns = xep_clock_ns(),
                               .where = work->buffer->trace_number,
                               .lane = (uint16_t)thread,
                               .kind = XEP_TRACE_WORK};
    work->fn(work->arg, thread, nthreads);
    event.end_ns = xep_clock_ns();
    xep_trace_write(&event);
}

/* A team of one works in a phase of the operation: the trace has that. */
static void env_alone(const xep_env_t *env, xep_parallel_fn fn, void *arg)
{
    (void)env;
    fn(arg, 0, 1);
}

/* Thread 0 of the team is the one that calls. */
static void env_parallel(const xep_env_t *env, xep_parallel_fn fn, void *arg)
{
    const xep_buffer_t *buffer = buffer_of(env);
    traced_work_t work = {buffer, fn, arg};
    if (xep_trace_is_on()) xep_team_run(buffer->team, run_traced, &work);
    else xep_team_run(buffer->team, fn, arg);
}

/*
 * A budget for each buffer: mapped pages of peers are memory of the kernel for page tables, and time. While a mode is
 * opened, others may not have their pages yet.
 */
static void env_prefault(const xep_env_t *env, void *base, uint64_t bytes)
{
    xep_buffer_t *buffer = buffer_of(env);
    int own = (uintptr_t)base - (uintptr_t)buffer->heap->base < buffer->heap->bytes;
    if (own || buffer->mode != NULL)
        xep_heap_prefault(base, bytes, own ? XEP_PAGES_OWN : XEP_PAGES_OF_PEER, &buffer->prefault_left);
    else xep_heap_prefault_later(&buffer->peer_pages, base, bytes, &buffer->prefault_left);
}

static uint64_t env_now_ns(const xep_env_t *env)
{
    (void)env;
    return xep_clock_ns();
}

/*
 * The sentence of an operation is kept with it and not with the thread: a thread that makes progress may meet the error
 * of an operation that another thread will ask for.
 */
__attribute__((format(printf, 4, 5))) static xep_status_t env_fail(const xep_env_t *env, xep_op_t *op,
                                                                   xep_status_t status, const char *format, ...)
{
    xep_request_t *req = op == NULL ? NULL : xep_request_of(op);
    va_list args;
    (void)env;
    if (format == NULL) {
        if (req != NULL) xep_request_keep_reason(req);
        return status;
    }
    va_start(args, format);
    if (req == NULL) xep_vfail(status, format, args);
    else vsnprintf(req->reason, sizeof req->reason, format, args);
    va_end(args);
    return status;
}

__attribute__((format(printf, 3, 4))) static void env_log(const xep_env_t *env, xep_log_level_t level,
                                                          const char *format, ...)
{
    char text[1024];
    va_list args;
    if (!xep_log_enabled(level)) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    xep_log(level, "%s: %s", buffer_of(env)->plugin.plugin->name, text);
}

static void env_span(const xep_env_t *env, const xep_op_t *op, const char *name, uint32_t rank, uint64_t begin_ns,
                     uint64_t end_ns)
{
    (void)env;
    if (xep_trace_is_on()) xep_request_trace_span(xep_request_of(op), name, rank, begin_ns, end_ns);
}

static int env_is_told(const xep_env_t *env)
{
    return atomic_load_explicit(&buffer_of(env)->members->own->left_out, memory_order_relaxed) != 0;
}

static int env_has_ended(const xep_env_t *env, uint32_t rank)
{
    return xep_group_has_ended(buffer_of(env)->group, rank);
}

static void env_leave_out(const xep_env_t *env, xep_op_t *op, uint32_t rank)
{
    (void)env;
    xep_members_leave_out(xep_request_of(op), rank);
}

static void env_wake(const xep_env_t *env, uint32_t rank)
{
    xep_group_wake(buffer_of(env)->group, rank);
}

/* All kernels have the same bits: a missing instruction set only costs time, and the user is told. */
static xep_simd_t simd_of(const xep_config_t *config)
{
    xep_simd_t have = xep_cpu_simd(), want = (xep_simd_t)config->simd;
    if (want > have && config->simd != XEP_SIMD_AUTO)
        xep_log(XEP_LOG_WARN, "XEP_SIMD is %s, but this CPU only has %s, which is used", xep_cpu_simd_name(want),
                xep_cpu_simd_name(have));
    return want < have ? want : have;
}

/*
 * Rows stay in a cache until they are loaded if what all ranks of the host move together has room there: each rank has
 * its share, which src/util/cache.c has figures of. Staged rows are loaded by the copy engine of a device, which gains
 * nothing by a cache. Two ranks of one H100, XEP_MAP=never, mode ll, 128 tokens, five runs in turn: a combine took
 * 2,619 us with the limit for host memory, 2,510 with the least (xep_perf --memory cuda --mode ll, XEP_STREAMING=768k).
 */
uint64_t xep_buffer_stream_bytes(const xep_buffer_t *buffer)
{
    const xep_config_t *config = &buffer->group->config;
    const uint64_t least = xep_config_stream(config);
    if (config->stream != XEP_CONFIG_AUTO || buffer->staging != NULL) return least;
    const uint64_t share = xep_cache_bytes("") / buffer->group->here;
    return share > least ? share : least;
}

/* Bases of regions are known only now that there is a heap; the lines behind them are none of the mode's. */
void xep_buffer_fill_env(xep_buffer_t *buffer)
{
    const xep_config_t *config = &buffer->group->config;
    xep_env_t *env = &buffer->env;
    env->size = sizeof *env;
    env->shape = &buffer->shape;
    env->heap = buffer->heap->base;
    env->heap_bytes = buffer->areas.lines;
    env->device = buffer->device == NULL || buffer->staging != NULL ? NULL : &buffer->device->device;
    for (int i = 0; i < XEP_REGIONS; i++) {
        xep_region_t *region = &env->regions[i];
        region->base = (char *)(region->memory == XEP_MEMORY_HOST ? env->heap : buffer->device->base) + region->offset;
    }
    env->wire = &buffer->heap->wire;
    env->simd = simd_of(config);
    env->stream_bytes = xep_buffer_stream_bytes(buffer);
    env->part_bytes = config->part == 0 ? 1 : config->part; /* each row by itself */
    env->parallel = env->threads == 1 ? env_alone : env_parallel;
    env->prefault = env_prefault;
    env->now_ns = env_now_ns;
    env->fail = env_fail;
    env->log = env_log;
    env->tracing = xep_trace_is_on();
    env->span = env_span;
    env->is_told = env_is_told;
    env->has_ended = env_has_ended;
    env->leave_out = env_leave_out;
    env->wake = xep_group_sleeps(buffer->group) ? env_wake : NULL;
    env->direct = xep_staging_direct(buffer);
    env->rows_came = buffer->staging == NULL ? NULL : xep_staging_rows_came;
    buffer->heap->moved = &buffer->waits.counts->wire_bytes;
    xep_counts_show(buffer->waits.counts, buffer->shape.rank, buffer->shape.nranks, buffer->number,
                    buffer->plugin.plugin->name);
}
