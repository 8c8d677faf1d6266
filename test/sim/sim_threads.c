/* SPDX-License-Identifier: BSD-3-Clause */

#include "sim_world.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

enum { MOST_STEPS = 50 * 1000 * 1000 }; /* of a rank: hours, where tens of thousands are enough */

typedef struct job {
    sim_world_t *world;
    pthread_t threads[SIM_MAX_RANKS];
    atomic_uint running;
} job_t;

typedef struct seat {
    job_t *job;
    sim_rank_t *rank;
} seat_t;

static void *play(void *arg)
{
    const seat_t *seat = arg;
    sim_world_t *world = seat->job->world;
    uint64_t steps = 0;
    while (!world->failed && !world->finished(seat->rank)) {
        world->step(seat->rank);
        if (++steps % 16 == 0) sched_yield();
        if (steps == MOST_STEPS) sim_fail(world, "rank %u has not finished", seat->rank->index);
    }
    seat->job->running--;
    return NULL;
}

/* ---- delays ---- */

static void on_signal(int number)
{
    const struct timespec some = {0, 50 * 1000};
    (void)number;
    nanosleep(&some, NULL);
}

/* Stops one rank after the other, wherever it is. */
static void delay_ranks(job_t *job)
{
    const struct timespec pause = {0, 20 * 1000};
    while (job->running > 0) {
        uint64_t rank = sim_below(&job->world->dice, job->world->options.nranks);
        pthread_kill(job->threads[rank], SIGUSR1); /* joined later: a thread that has ended is one still */
        nanosleep(&pause, NULL);
    }
}

void sim_threads_run(sim_world_t *world, int delays)
{
    job_t job = {.world = world, .running = world->options.nranks};
    seat_t seats[SIM_MAX_RANKS];
    signal(SIGUSR1, on_signal);
    world->threads = 1;
    for (uint32_t r = 0; r < world->options.nranks; r++) {
        seats[r] = (seat_t){&job, &world->ranks[r]};
        if (pthread_create(&job.threads[r], NULL, play, &seats[r]) != 0) abort();
    }
    if (delays) delay_ranks(&job);
    for (uint32_t r = 0; r < world->options.nranks; r++) pthread_join(job.threads[r], NULL);
}
