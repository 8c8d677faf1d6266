/* SPDX-License-Identifier: BSD-3-Clause */

/** A generator of random numbers: what follows from a seed is the same each time, on every machine. */
#ifndef SIM_DICE_H
#define SIM_DICE_H

#include <stdint.h>

typedef struct sim_dice {
    uint64_t state;
} sim_dice_t;

/** All bits of a number shuffled. */
static inline uint64_t sim_mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static inline uint64_t sim_random(sim_dice_t *dice)
{
    return sim_mix(dice->state += UINT64_C(0x9e3779b97f4a7c15));
}

/** 0 .. n - 1 */
static inline uint64_t sim_below(sim_dice_t *dice, uint64_t n)
{
    return sim_random(dice) % n;
}

static inline int sim_chance(sim_dice_t *dice, uint32_t percent)
{
    return sim_below(dice, 100) < percent;
}

#endif
