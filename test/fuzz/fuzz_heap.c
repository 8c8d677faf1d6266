/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Words and records in the heap that a peer corrupts: a simulated world plays a random script in one of the two modes,
 * and between its turns the input overwrites what lies in the heaps. Every rank is the victim of all others. Whatever
 * it makes of it, no access may leave a heap or the caller's memory, the inputs and what lies around the outputs stay
 * as they were, and every turn ends. With masks the words by which the core's members agree on who is out are spoiled,
 * too, and ranks die.
 *
 * limit: 240
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz_target.h"
#include "script_player.h"
#include "sim_cases.h"
#include "sim_death.h"
#include "sim_members.h"
#include "sim_wire.h"

const fuzz_target_t fuzz_target = {.name = "heap", .unit = "words and records spoiled", .runs = 10000};

enum { MOST_SPOILS = 64, TURNS_AFTER = 2000, MOST_DEATHS = 2, MORTAL = 240 /* turns, behind which a rank dies */ };

/* How a word is spoiled; as often as their numbers come out of fuzz_below(). */
typedef enum {
    SPOIL_XOR,
    SPOIL_SET_32,
    SPOIL_SET_64,
    SPOIL_ADD,
    SPOIL_COPY_WORD,   /* of another place in the heaps: an old epoch, another rank's count */
    SPOIL_COPY_RECORD, /* a line of 64 bytes */
    SPOIL_CLEAR_RECORD,
    SPOIL_KINDS
} spoil_t;

/* ---- spoiling ---- */

static int is_written(const xep_region_t *region, uint64_t place, size_t width)
{
    const char *at = (const char *)region->base + place * width;
    for (size_t b = 0; b < width; b++)
        if (at[b] != 0) return 1;
    return 0;
}

/* One of the words in which something was written, each as often as any other: most are 0, and what nobody reads is
 * not worth spoiling. */
static uint64_t find_written(const xep_region_t *region, uint64_t which, size_t width)
{
    uint64_t places = region->bytes / width, written = 0, place = 0;
    for (uint64_t i = 0; i < places; i++) written += (uint64_t)is_written(region, i, width);
    if (written == 0) return which % places;
    for (which %= written; which > 0 || !is_written(region, place, width); place++)
        which -= (uint64_t)is_written(region, place, width);
    return place;
}

/* What members say to one another lies behind the mode's regions. */
static xep_region_t members_of(const sim_rank_t *rank)
{
    uint64_t bytes = sim_members.bytes(&rank->shape);
    return (xep_region_t){.base = (char *)rank->env.heap + rank->env.heap_bytes - bytes, .bytes = bytes};
}

/* A place in a rank's region that holds width bytes, NULL where there is none; control words come as often as rows. */
static char *find_place(sim_world_t *world, fuzz_input_t *input, size_t width)
{
    sim_rank_t *rank = &world->ranks[fuzz_below(input, world->options.nranks)];
    uint64_t byte = fuzz_take(input, 1), kind = byte % 8, where = fuzz_take(input, 2);
    const xep_region_t members = members_of(rank), *region = &rank->env.regions[kind < 5   ? XEP_REGION_CONTROL
                                                                                : kind < 7 ? XEP_REGION_METADATA
                                                                                           : XEP_REGION_ROWS];
    if (world->around != NULL && kind < 3) region = &members;
    uint64_t places = region->bytes / width;
    if (places == 0) return NULL;
    return (char *)region->base + (byte < 128 ? where % places : find_written(region, where, width)) * width;
}

static void spoil(sim_world_t *world, fuzz_input_t *input)
{
    spoil_t kind = (spoil_t)fuzz_below(input, SPOIL_KINDS);
    size_t width = kind == SPOIL_XOR                                         ? 1
                   : kind == SPOIL_SET_32                                    ? 4
                   : kind == SPOIL_COPY_RECORD || kind == SPOIL_CLEAR_RECORD ? 64
                                                                             : 8;
    char *to = find_place(world, input, width);
    const char *from = kind == SPOIL_COPY_WORD || kind == SPOIL_COPY_RECORD ? find_place(world, input, width) : to;
    uint64_t value = 0, number = kind < SPOIL_COPY_WORD ? fuzz_number(input) : 0;
    if (to == NULL || from == NULL) return;
    if (width <= 8) memcpy(&value, from, width);
    if (kind == SPOIL_XOR) value ^= number | 1;
    if (kind == SPOIL_SET_32 || kind == SPOIL_SET_64) value = number;
    if (kind == SPOIL_ADD) value += number;
    if (kind == SPOIL_CLEAR_RECORD) memset(to, 0, width);
    else if (width <= 8) memcpy(to, &value, width);
    else memmove(to, from, width);
    fuzz_count(1);
}

/* ---- a world ---- */

/* Between two of its turns, as others see it. */
static void kill_rank(sim_world_t *world, sim_death_t *death, uint32_t r)
{
    if (world->around == NULL || world->ranks[r].dead) return;
    *death = (sim_death_t){.next = world->death, .rank = r, .at = SIM_NEVER, .is_over = 1, .since = world->now};
    world->death = death;
    world->ranks[r].dead = 1;
    sim_wire_bury(&world->ranks[r].wire);
}

/* What one input says before it spoils anything: mode, number of ranks, whether with masks, seed of all else. */
static sim_run_t *open_run(fuzz_input_t *input)
{
    static sim_case_t cases[2];
    if (cases[0].plugin == NULL) cases[0] = sim_case_load(&sim_normal), cases[1] = sim_case_load(&sim_ll);
    uint64_t head = fuzz_take(input, 1), seed = fuzz_take(input, 2);
    void *state = &cases[head & 1];
    sim_run_t *run = sim_run_begin(&state, seed, 1 + (uint32_t)(head >> 1 & 3));
    run->options.spoiled = 1;
    if ((head & 8) != 0) run->options.masks = 1, run->world.around = &sim_members;
    run->world.options.masks = run->options.masks; /* scripts may ask for less then */
    script_make(&run->world, run->mode, &run->script, run->options.nranks, NULL);
    run->script.unchecked = 1;
    return sim_run_open(run) ? run : NULL;
}

static void close_run(sim_run_t *run)
{
    sim_wire_clear(&run->world.net);
    script_players_free(&run->world);
    sim_world_close(&run->world);
}

static void ignore(void *arg, xep_log_level_t level, const char *message)
{
    (void)arg, (void)level, (void)message;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = {data, data + size};
    xep_log_set(ignore, NULL);
    sim_run_t *run = open_run(&input);
    sim_death_t deaths[MOST_DEATHS];
    size_t dead = 0;
    if (run == NULL) fuzz_fail("no world");
    for (int i = 0; i < MOST_SPOILS && input.at < input.end; i++) {
        uint64_t turns = fuzz_below(&input, 256);
        sim_world_run(&run->world, turns, 1);
        if (turns >= MORTAL && dead < MOST_DEATHS && run->world.around != NULL)
            kill_rank(&run->world, &deaths[dead++], (uint32_t)fuzz_below(&input, run->options.nranks));
        spoil(&run->world, &input);
    }
    sim_world_run(&run->world, TURNS_AFTER, 1);
    close_run(run);
    if (run->world.failed) fuzz_fail("seed %llu: %s", (unsigned long long)run->world.seed, run->world.failure);
    return 0;
}
