/* SPDX-License-Identifier: BSD-3-Clause */

#include "run_clock.h"

#include <time.h>

/* Monotonic: a clock that somebody sets must neither end a job nor keep it. */
int64_t run_clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}
