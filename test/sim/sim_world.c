/* SPDX-License-Identifier: BSD-3-Clause */

#include "sim_world.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_death.h"
#include "sim_heap.h"

/* ---- chance ---- */

uint64_t sim_hash(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e)
{
    uint64_t values[] = {a, b, c, d, e}, h = 0;
    for (size_t i = 0; i < 5; i++) h = sim_mix(h + values[i] + UINT64_C(0x9e3779b97f4a7c15));
    return h;
}

xep_simd_t sim_simd_best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512vbmi")) return XEP_SIMD_AVX512VBMI;
    if (__builtin_cpu_supports("avx512f")) return XEP_SIMD_AVX512;
    if (__builtin_cpu_supports("avx2")) return XEP_SIMD_AVX2;
#elif defined(__aarch64__)
    return XEP_SIMD_NEON;
#endif
    return XEP_SIMD_SCALAR;
}

static void nodes_random(sim_dice_t *dice, sim_options_t *options)
{
    uint64_t kind = sim_below(dice, 5), host = 1 + sim_below(dice, options->nranks);
    uint32_t nodes = 0;
    for (uint32_t r = 0; r < options->nranks; r++) {
        uint32_t node = 0;                                                       /* one host */
        if (kind == 2) node = r;                                                 /* the wire moves every byte */
        if (kind == 3) node = (uint32_t)(r / host);                              /* hosts */
        if (kind == 4) node = r == 0 ? 0 : (uint32_t)sim_below(dice, nodes + 1); /* whatever */
        options->node[r] = node;
        if (node == nodes) nodes++;
    }
}

void sim_options_random(sim_dice_t *dice, sim_options_t *options)
{
    nodes_random(dice, options);
    options->feed_rows = sim_chance(dice, 50) ? 0 : 1 + sim_below(dice, sim_chance(dice, 50) ? 3 : 40);
    options->flat = options->feed_rows % 3 == 1;
    options->threads = 1 + (uint32_t)sim_below(dice, 3);
    options->stream_bytes = sim_chance(dice, 50) ? 0 : UINT64_MAX;
    options->part_bytes = sim_chance(dice, 50) ? 0 : 1 + sim_below(dice, 1000);
    options->inflight = 1 + (uint32_t)sim_below(dice, sim_chance(dice, 50) ? 3 : 100);
    options->refuse = sim_chance(dice, 50) ? 30 : 0;
    options->hold = sim_chance(dice, 30);
    options->deliver = 5 + (uint32_t)sim_below(dice, 90);
}

/* ---- what a mode calls ---- */

static void env_parallel(const xep_env_t *env, xep_parallel_fn fn, void *arg)
{
    sim_rank_t *rank = (sim_rank_t *)env;
    uint32_t first = (uint32_t)sim_below(&rank->dice, env->threads);
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

__attribute__((format(printf, 4, 5))) static xep_status_t env_fail(const xep_env_t *env, xep_op_t *op,
                                                                   xep_status_t status, const char *format, ...)
{
    sim_rank_t *rank = (sim_rank_t *)env;
    sim_reason_t *reason = &rank->reasons[rank->nreasons % SIM_REASONS];
    va_list args;
    if (format == NULL && sim_reason(rank, op)[0]) return status;
    rank->nreasons++;
    reason->op = op;
    va_start(args, format);
    if (format == NULL) snprintf(reason->text, sizeof reason->text, "%s", rank->wire.told);
    else vsnprintf(reason->text, sizeof reason->text, format, args);
    va_end(args);
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

/* The simulator stops where a mode tells the trace what cannot be. */
static void env_span(const xep_env_t *env, const xep_op_t *op, const char *name, uint32_t rank, uint64_t begin_ns,
                     uint64_t end_ns)
{
    int is_wait = rank != XEP_NO_RANK;
    if (op->epoch == 0 || begin_ns > end_ns || end_ns > env->now_ns(env) || is_wait != (name == NULL) ||
        (is_wait && rank >= env->shape->nranks))
        abort();
}

static void env_log(const xep_env_t *env, xep_log_level_t level, const char *format, ...)
{
    (void)env;
    (void)level;
    (void)format;
}

/* Nobody is out. */
static int env_is_told(const xep_env_t *env)
{
    (void)env;
    return 0;
}

static int env_has_ended(const xep_env_t *env, uint32_t rank)
{
    (void)env;
    (void)rank;
    return 0;
}

/* ---- a world ---- */

void sim_fail(sim_world_t *world, const char *format, ...)
{
    va_list args;
    if (atomic_exchange(&world->failed, 1)) return;
    va_start(args, format);
    vsnprintf(world->failure, sizeof world->failure, format, args);
    va_end(args);
}

void sim_world_init(sim_world_t *world, uint64_t seed, const xep_plugin_t *plugin)
{
    memset(world, 0, sizeof *world);
    world->now = 1;
    world->seed = seed;
    world->dice.state = sim_mix(seed);
    world->plugin = plugin;
    world->first_dead = UINT32_MAX;
}

/* ---- what wires call ---- */

static sim_rank_t *rank_of(const sim_wire_t *wire)
{
    return (sim_rank_t *)(void *)((uintptr_t)wire - offsetof(sim_rank_t, wire));
}

static void net_fail(sim_wire_t *self, const char *text)
{
    sim_fail(rank_of(self)->world, "%s", text);
}

static void net_pause(sim_wire_t *self)
{
    sim_interleave(rank_of(self));
}

static void net_progress(sim_wire_t *self)
{
    sim_rank_t *rank = rank_of(self);
    if (rank->world->still || !sim_chance(&rank->dice, 50)) return;
    int watched = sim_death_leave(rank, 1); /* what arrives is no store of its own */
    sim_wire_step(self->net, &rank->dice);
    if (watched) sim_death_enter(rank);
}

/* Where the others do not go on without ranks that die, these take what was on its way. */
static sim_presence_t net_presence(const sim_wire_t *self)
{
    const sim_rank_t *rank = rank_of(self);
    if (rank->world->around == NULL) return SIM_PRESENT;
    return rank->dead ? SIM_DEAD : rank->stopped ? SIM_STOPPED : SIM_PRESENT;
}

static void net_ctl(sim_wire_t *self, uint32_t from, const void *data, size_t bytes)
{
    sim_rank_t *rank = rank_of(self);
    rank->world->around->on_ctl(rank, from, data, bytes);
}

static const sim_net_ops_t net_ops = {.fail = net_fail,
                                      .pause = net_pause,
                                      .progress = net_progress,
                                      .presence = net_presence,
                                      .on_ctl = net_ctl};

static void wire_init(sim_world_t *world, sim_rank_t *rank)
{
    sim_wire_t *wire = &rank->wire;
    wire->super = (xep_heap_wire_t){.wire = {&sim_wire_ops},
                                    .base = rank->env.heap,
                                    .bytes = rank->env.heap_bytes,
                                    .spares = world->around != NULL};
    wire->net = &world->net;
    wire->dice = &rank->dice;
    wire->rank = rank->index;
    wire->nranks = world->options.nranks;
    for (uint32_t r = 0; r < wire->nranks; r++) {
        wire->of[r] = &world->ranks[r].wire;
        wire->is_mapped[r] = world->options.node[r] == world->options.node[rank->index];
    }
}

/* ---- ranks ---- */

static void rank_init(sim_world_t *world, uint32_t index, const xep_shape_t *shape, const xep_region_t *regions,
                      uint64_t bytes)
{
    sim_rank_t *rank = &world->ranks[index];
    rank->world = world;
    rank->index = index;
    rank->dice.state = sim_random(&world->dice);
    rank->shape = *shape;
    sim_shape_fill(&rank->shape, index, world->options.node);
    if (world->around != NULL) bytes = (bytes + 63) / 64 * 64 + world->around->bytes(&rank->shape);
    rank->env = (xep_env_t){
        .size = sizeof(xep_env_t),
        .shape = &rank->shape,
        .heap_bytes = bytes,
        .wire = &rank->wire.super.wire,
        .threads = world->options.threads,
        .simd = world->options.simd,
        .stream_bytes = world->options.stream_bytes,
        .part_bytes = world->options.part_bytes != 0 ? world->options.part_bytes : UINT64_MAX,
        .parallel = env_parallel,
        .prefault = env_prefault,
        .now_ns = env_now_ns,
        .fail = env_fail,
        .log = env_log,
        .tracing = 1,
        .span = env_span,
        .is_told = env_is_told,
        .has_ended = env_has_ended,
    };
    if (world->options.masks) rank->env.out = rank->out;
    for (uint32_t r = 0; r < rank->shape.nranks; r++) rank->ranks[r] = r;
    rank->everybody = (xep_ranks_t){rank->shape.nranks, rank->index, rank->ranks};
    rank->env.heap = sim_heap_make(bytes, (int)world->options.spoiled);
    memcpy(rank->env.regions, regions, sizeof rank->env.regions);
    for (int i = 0; i < XEP_REGIONS; i++) rank->env.regions[i].base = (char *)rank->env.heap + regions[i].offset;
    wire_init(world, rank);
}

int sim_world_open(sim_world_t *world, const sim_options_t *options, const xep_shape_t *asked)
{
    xep_region_t regions[XEP_REGIONS];
    xep_shape_t own = *asked, *shape = &own;
    uint64_t bytes, rows;
    world->options = *options;
    world->net = (sim_net_t){.ops = &net_ops, .options = &world->options, .dice = &world->dice};
    shape->by_nodes = world->plugin->traffic != NULL && options->feed_rows != 0 && !options->flat && !options->masks;
    shape->feed_rows = options->masks ? 0 : options->feed_rows;
    if (sim_shape_measure(world->plugin, shape, world->options.node, regions, &bytes, &rows) != XEP_OK) {
        sim_fail(world, "heap_size refused the shape");
        return 0;
    }
    world->ranks = calloc(options->nranks, sizeof *world->ranks);
    for (uint32_t r = 0; r < options->nranks; r++) rank_init(world, r, shape, regions, bytes);
    if (world->around != NULL) world->around->open(world);
    for (uint32_t r = 0; r < options->nranks; r++)
        if (world->plugin->open(&world->ranks[r].env, &world->ranks[r].mode) != XEP_OK)
            sim_fail(world, "rank %u: open: %s", r, sim_reason(&world->ranks[r], NULL));
    return !world->failed;
}

static void modes_close(sim_world_t *world)
{
    sim_wire_clear(&world->net);
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
            sim_fail(world, "rank %u: open again: %s", r, sim_reason(&world->ranks[r], NULL));
    return !world->failed;
}

void sim_world_close(sim_world_t *world)
{
    if (world->ranks == NULL) return;
    modes_close(world);
    if (world->around != NULL) world->around->close(world);
    for (uint32_t r = 0; r < world->options.nranks; r++) {
        const xep_env_t *env = &world->ranks[r].env;
        sim_shape_free(&world->ranks[r].shape);
        if (!sim_heap_free(env->heap, env->heap_bytes, (int)world->options.spoiled))
            sim_fail(world, "rank %u: bytes were written behind its heap", r);
    }
    free(world->ranks);
    world->ranks = NULL;
}

/* ---- the scheduler ---- */

static void heap_spoil(sim_world_t *world)
{
    sim_rank_t *rank = &world->ranks[sim_below(&world->dice, world->options.nranks)];
    uint64_t most =
        world->options.corrupt_bytes < rank->env.heap_bytes ? world->options.corrupt_bytes : rank->env.heap_bytes;
    uint64_t at = sim_below(&world->dice, most), length = sim_chance(&world->dice, 50) ? 1 : 4;
    for (uint64_t i = at; i < at + length && i < most; i++)
        ((unsigned char *)rank->env.heap)[i] ^= (unsigned char)sim_random(&world->dice);
}

static void turn(sim_world_t *world)
{
    sim_rank_t *rank = &world->ranks[sim_below(&world->dice, world->options.nranks)];
    world->now++;
    if (sim_chance(&world->dice, world->options.deliver)) sim_wire_step(&world->net, &world->dice);
    if (world->options.corrupt && sim_chance(&world->dice, 3)) heap_spoil(world);
    if (rank->busy || rank->dead || (rank->stalled && rank->stalled--)) return;
    if (sim_below(&world->dice, 200) == 0) rank->stalled = (uint32_t)sim_below(&world->dice, 300);
    rank->busy = 1;
    sim_death_step(rank);
    rank->busy = 0;
}

void sim_interleave(sim_rank_t *rank)
{
    sim_world_t *world = rank->world;
    if (world->threads || world->still || !rank->busy) return;
    int watched = sim_death_leave(rank, 1);
    sim_death_pass(rank);
    if (sim_chance(&world->dice, 30))
        for (uint64_t n = sim_below(&world->dice, 20); n > 0 && !world->failed; n--) turn(world);
    if (watched) sim_death_enter(rank);
}

void sim_world_run(sim_world_t *world, uint64_t turns, int quiet)
{
    for (; turns > 0 && !world->failed; turns--) {
        uint32_t left = 0;
        for (uint32_t r = 0; r < world->options.nranks; r++)
            left += !world->ranks[r].dead && !world->ranks[r].stopped && !world->finished(&world->ranks[r]);
        if (!left) return;
        turn(world);
    }
    if (!quiet && !world->failed) sim_fail(world, "ranks have not finished");
}
