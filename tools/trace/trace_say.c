/* SPDX-License-Identifier: BSD-3-Clause */

#include "trace_say.h"

#include <stdarg.h>
#include <stdio.h>

void trace_say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("xep_trace: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}
