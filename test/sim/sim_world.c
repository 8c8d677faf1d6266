/* SPDX-License-Identifier: BSD-3-Clause */

/* The ranks of a world and the scheduler that interleaves them. */
#include "sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- chance ---- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

uint64_t sim_random(sim_world_t *world)
{
    return mix(world->random += UINT64_C(0x9e3779b97f4a7c15));
}

uint64_t sim_below(sim_world_t *world, uint64_t n)
{
    return sim_random(world) % n;
}

int sim_chance(sim_world_t *world, uint32_t percent)
{
    return sim_below(world, 100) < percent;
}

uint64_t sim_hash(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e)
{
    uint64_t values[] = {a, b, c, d, e}, h = 0;
    for (size_t i = 0; i < 5; i++) h = mix(h + values[i] + UINT64_C(0x9e3779b97f4a7c15));
    return h;
}

static void maps_random(sim_world_t *world, sim_options_t *options)
{
    uint64_t kind = sim_below(world, 5), host = 1 + sim_below(world, options->nranks);
    for (uint32_t a = 0; a < options->nranks; a++)
        for (uint32_t b = 0; b < options->nranks; b++) {
            int maps = kind <= 1;                         /* one host */
            if (kind == 2) maps = 0;                      /* the wire moves every byte */
            if (kind == 3) maps = a / host == b / host;   /* hosts */
            if (kind == 4) maps = sim_chance(world, 60);  /* whatever, not even mutual */
            options->maps[a][b] = (uint8_t)maps;
        }
}

void sim_options_random(sim_world_t *world, sim_options_t *options)
{
    maps_random(world, options);
    options->threads = 1 + (uint32_t)sim_below(world, 3);
    options->stream_bytes = sim_chance(world, 50) ? 0 : UINT64_MAX;
    options->inflight = 1 + (uint32_t)sim_below(world, sim_chance(world, 50) ? 3 : 100);
    options->refuse = sim_chance(world, 50) ? 30 : 0;
    options->hold = sim_chance(world, 30);
    options->deliver = 5 + (uint32_t)sim_below(world, 90);
}

/* ---- what a mode calls ---- */

static void env_parallel(const xep_env_t *env, xep_parallel_fn fn, void *arg)
{
    sim_rank_t *rank = (sim_rank_t *)env;
    uint32_t first = (uint32_t)sim_below(rank->world, env->threads);
    sim_interleave(rank);
    for (uint32_t i = 0; i < env->threads; i++) {
        fn(arg, (first + i) % env->threads, env->threads);
        sim_interleave(rank);
    }
}

static void env_prefault(const xep_env_t *env, void *base, uint64_t bytes)
{
    sim_world_t *world = ((sim_rank_t *)env)->world;
    for (uint32_t r = 0; r < world->options.nranks; r++) {
        char *heap = world->ranks[r].env.heap, *begin = base;
        if (begin >= heap && begin - heap <= (ptrdiff_t)env->heap_bytes - (ptrdiff_t)bytes) return;
    }
    sim_fail(world, "prefault of %llu bytes that are in no heap", (unsigned long long)bytes);
}

static uint64_t env_now_ns(const xep_env_t *env)
{
    return ((const sim_rank_t *)env)->world->now;
}

__attribute__((format(printf, 4, 5))) static xep_status_t env_fail(const xep_env_t *env, xep_op_t *op, xep_status_t status, const char *format, ...)
{
    sim_rank_t *rank = (sim_rank_t *)env;
    sim_reason_t *reason = &rank->reasons[rank->nreasons++ % SIM_REASONS];
    va_list args;
    reason->op = op;
    va_start(args, format);
    vsnprintf(reason->text, sizeof reason->text, format, args);
    va_end(args);
    rank->reason = reason->text;
    return status;
}

const char *sim_reason(const sim_rank_t *rank, const xep_op_t *op)
{
    for (uint32_t back = 1; back <= SIM_REASONS && back <= rank->nreasons; back++) {
        const sim_reason_t *reason = &rank->reasons[(rank->nreasons - back) % SIM_REASONS];
        if (reason->op == op) return reason->text;
    }
    return "";
}

static void env_log(const xep_env_t *env, xep_log_level_t level, const char *format, ...)
{
    (void)env;
    (void)level;
    (void)format;
}

/* ---- a world ---- */

void sim_fail(sim_world_t *world, const char *format, ...)
{
    va_list args;
    if (world->failure[0]) return;
    va_start(args, format);
    vsnprintf(world->failure, sizeof world->failure, format, args);
    va_end(args);
}

void sim_world_init(sim_world_t *world, uint64_t seed, const xep_plugin_t *plugin)
{
    memset(world, 0, sizeof *world);
    world->now = 1;
    world->seed = seed;
    world->random = mix(seed);
    world->plugin = plugin;
}

static void rank_init(sim_world_t *world, uint32_t index, const xep_shape_t *shape, uint64_t bytes)
{
    sim_rank_t *rank = &world->ranks[index];
    uint32_t each = shape->experts / shape->nranks, more = shape->experts % shape->nranks;
    rank->world = world;
    rank->index = index;
    rank->reason = "";
    rank->shape = *shape;
    rank->shape.rank = index;
    rank->shape.first_expert = each * index + (index < more ? index : more);
    rank->shape.local_experts = each + (index < more);
    rank->wire.wire.ops = &sim_wire_ops;
    rank->wire.rank = rank;
    rank->env = (xep_env_t){
        .size = sizeof(xep_env_t),
        .shape = &rank->shape,
        .heap_bytes = bytes,
        .wire = &rank->wire.wire,
        .threads = world->options.threads,
        .simd = world->options.simd,
        .stream_bytes = world->options.stream_bytes,
        .parallel = env_parallel,
        .prefault = env_prefault,
        .now_ns = env_now_ns,
        .fail = env_fail,
        .log = env_log,
    };
    if (posix_memalign(&rank->env.heap, 4096, bytes) != 0) abort(); /* exactly this long: a sanitizer sees more */
    memset(rank->env.heap, 0, bytes);
}

int sim_world_open(sim_world_t *world, const sim_options_t *options, const xep_shape_t *shape)
{
    uint64_t bytes, rows;
    world->options = *options;
    if (world->plugin->heap_size(shape, &bytes, &rows) != XEP_OK) {
        sim_fail(world, "heap_size refused the shape");
        return 0;
    }
    world->ranks = calloc(options->nranks, sizeof *world->ranks);
    for (uint32_t r = 0; r < options->nranks; r++) rank_init(world, r, shape, bytes);
    for (uint32_t r = 0; r < options->nranks; r++)
        if (world->plugin->open(&world->ranks[r].env, &world->ranks[r].mode) != XEP_OK)
            sim_fail(world, "rank %u: open: %s", r, world->ranks[r].reason);
    return world->failure[0] == 0;
}

static void modes_close(sim_world_t *world)
{
    sim_wire_clear(world);
    for (uint32_t r = 0; r < world->options.nranks; r++) {
        world->plugin->close(world->ranks[r].mode);
        world->ranks[r].mode = NULL;
    }
}

int sim_world_reopen(sim_world_t *world)
{
    modes_close(world);
    for (uint32_t r = 0; r < world->options.nranks; r++)
        if (world->plugin->open(&world->ranks[r].env, &world->ranks[r].mode) != XEP_OK)
            sim_fail(world, "rank %u: open again: %s", r, world->ranks[r].reason);
    return world->failure[0] == 0;
}

void sim_world_close(sim_world_t *world)
{
    if (!world->ranks) return;
    modes_close(world);
    for (uint32_t r = 0; r < world->options.nranks; r++) free(world->ranks[r].env.heap);
    free(world->ranks);
    world->ranks = NULL;
}

/* ---- waits ---- */

xep_late_t sim_late(sim_waits_t *waits)
{
    return (xep_late_t){.ranks = waits->ranks, .wait_ns = waits->wait_ns};
}

static void waits_check(sim_world_t *world, const xep_op_t *op, const sim_waits_t *waits)
{
    if (op->late.count || op->late.since_ns) sim_fail(world, "an operation that ended waits for %u ranks", op->late.count);
    for (uint32_t r = 0; r < world->options.nranks; r++)
        if (waits->wait_ns[r] != waits->expected[r])
            sim_fail(world, "epoch %llu waited for rank %u for %llu, not %llu", (unsigned long long)op->epoch, r,
                     (unsigned long long)waits->wait_ns[r], (unsigned long long)waits->expected[r]);
}

xep_status_t sim_progress(sim_rank_t *rank, xep_op_t *op, sim_waits_t *waits)
{
    sim_world_t *world = rank->world;
    uint64_t look = world->now; /* the clock stands still until the mode has looked at words */
    for (uint32_t i = 0; i < waits->nlate; i++) waits->expected[waits->late[i]] += look - waits->looked;
    xep_status_t status = world->plugin->progress(rank->mode, op);
    if (status == XEP_OK) waits_check(world, op, waits);
    if (status != XEP_INPROGRESS || op->epoch % 3 == 0) return status;
    waits->looked = op->late.since_ns ? look : world->now;
    if (op->late.count && !op->late.since_ns) op->late.since_ns = world->now;
    waits->nlate = op->late.count;
    memcpy(waits->late, op->late.ranks, waits->nlate * sizeof *waits->late);
    return status;
}

/* ---- the scheduler ---- */

static void heap_spoil(sim_world_t *world)
{
    sim_rank_t *rank = &world->ranks[sim_below(world, world->options.nranks)];
    uint64_t most = world->options.corrupt_bytes < rank->env.heap_bytes ? world->options.corrupt_bytes : rank->env.heap_bytes;
    uint64_t at = sim_below(world, most), length = sim_chance(world, 50) ? 1 : 4;
    for (uint64_t i = at; i < at + length && i < most; i++) ((unsigned char *)rank->env.heap)[i] ^= (unsigned char)sim_random(world);
}

static void turn(sim_world_t *world)
{
    sim_rank_t *rank = &world->ranks[sim_below(world, world->options.nranks)];
    world->now++;
    if (sim_chance(world, world->options.deliver)) sim_wire_step(world);
    if (world->options.corrupt && sim_chance(world, 3)) heap_spoil(world);
    if (rank->busy || (rank->stalled && rank->stalled--)) return;
    if (sim_below(world, 200) == 0) rank->stalled = (uint32_t)sim_below(world, 300);
    rank->busy = 1;
    world->step(rank);
    rank->busy = 0;
}

void sim_interleave(sim_rank_t *rank)
{
    sim_world_t *world = rank->world;
    if (!rank->busy || !sim_chance(world, 30)) return;
    for (uint64_t n = sim_below(world, 20); n > 0 && !world->failure[0]; n--) turn(world);
}

void sim_world_run(sim_world_t *world, uint64_t turns, int quiet)
{
    for (; turns > 0 && !world->failure[0]; turns--) {
        uint32_t left = 0;
        for (uint32_t r = 0; r < world->options.nranks; r++) left += !world->finished(&world->ranks[r]);
        if (!left) return;
        turn(world);
    }
    if (!quiet && !world->failure[0]) sim_fail(world, "ranks have not finished");
}
