/* SPDX-License-Identifier: BSD-3-Clause */

#include "run.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>

void run_say(const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "xep_run: %s\n", text);
}

/* ---- time ---- */

/* Monotonic: a clock that somebody sets must neither end a job nor keep it. */
int64_t run_clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}
