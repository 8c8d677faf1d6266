/* SPDX-License-Identifier: BSD-3-Clause */

/** xep_trace: makes one file for trace viewers of what the ranks of a job wrote with XEP_TRACE. */
#include <stdio.h>
#include <string.h>

#include <xep/version.h>

#include "trace_merge.h"
#include "trace_say.h"

static const char usage[] =
    "usage: xep_trace merge FILE\n"
    "Makes FILE of FILE.0, FILE.1, ..., which the ranks of a job with XEP_TRACE=FILE have written. FILE is JSON in\n"
    "the trace-event format: https://ui.perfetto.dev and chrome://tracing open it. xep_run does the same at the end\n"
    "of a job; this is for other launchers, after the files of all hosts have been brought together.\n"
    "\n"
    "  -h, --help     this text\n"
    "  -V, --version\n"
    "\n"
    "Exit status: 0 when all ranks are in FILE; 1 when some are missing, or nothing could be written; 2 for wrong\n"
    "arguments.\n";

int main(int argc, char **argv)
{
    if (argc == 2 && (strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0)) return fputs(usage, stdout) < 0;
    if (argc == 2 && (strcmp(argv[1], "-V") == 0 || strcmp(argv[1], "--version") == 0))
        return puts("xep_trace " XEP_VERSION) < 0;
    if (argc < 2) trace_say("command missing (xep_trace merge FILE; xep_trace --help says more)");
    else if (strcmp(argv[1], "merge") != 0) trace_say("unknown command: \"%s\" (merge)", argv[1]);
    else if (argc < 3) trace_say("file missing (xep_trace merge FILE, as in XEP_TRACE)");
    else if (argc > 3) trace_say("unexpected file: \"%s\" (xep_trace merge FILE)", argv[3]);
    else return trace_merge(argv[2]) == TRACE_WHOLE ? 0 : 1;
    return 2;
}
