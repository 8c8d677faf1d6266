/* SPDX-License-Identifier: BSD-3-Clause */

/** What the parts of a fuzz world may do inside of a fiber: let others go on, and throw dice. */
#ifndef FUZZ_TURNS_H
#define FUZZ_TURNS_H

#include <stdint.h>

/** Lets other ranks go on; so much time has passed then, at least. */
void fuzz_turn(uint64_t ns);

/** 0 .. n - 1 */
uint64_t fuzz_dice(uint64_t n);

#endif
