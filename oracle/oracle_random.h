/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * Random numbers of tools and tests: splitmix64 streams, each a pure function of
 * (seed, kind, rank, token), so that every rank can work out every other's data.
 */
#ifndef ORACLE_RANDOM_H
#define ORACLE_RANDOM_H

#include <stdint.h>

/** What a stream is for; streams of different kinds are independent. */
enum {
    ORACLE_KIND_ROUTING = 1, /* selections and weights of a token */
    ORACLE_KIND_ROW = 2,     /* the row of a token */
    ORACLE_KIND_SCALES = 3,
    ORACLE_KIND_BIAS = 4, /* and 5: the second bias */
    ORACLE_KIND_EXPERT = 6,
    ORACLE_KIND_POPULARITY = 7,
    ORACLE_KIND_PAYLOAD = 8,
    ORACLE_KIND_OWNERS = 9,
    ORACLE_KIND_BESIDE = 10 /* and more: payloads of a token */
};

/** The mixing step: a bijection of 64 bits in which every input bit reaches every output bit. */
static inline uint64_t oracle_mix(uint64_t word)
{
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9u;
    word = (word ^ word >> 27) * 0x94d049bb133111ebu;
    return word ^ word >> 31;
}

static inline uint64_t oracle_next(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    return oracle_mix(*state);
}

/** The state a stream starts from. rank < 2^24, token < 2^32. */
static inline uint64_t oracle_stream(uint64_t seed, uint32_t kind, uint32_t rank, uint64_t token)
{
    uint64_t state = seed;

    state = oracle_next(&state) ^ ((uint64_t)kind << 56 | (uint64_t)rank << 32 | token);
    return oracle_next(&state);
}

#endif
