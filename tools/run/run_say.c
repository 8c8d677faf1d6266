/* SPDX-License-Identifier: BSD-3-Clause */

#include "run_say.h"

#include <stdarg.h>
#include <stdio.h>

void run_say(const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "xep_run: %s\n", text);
}
