/* SPDX-License-Identifier: BSD-3-Clause */

/** What xep_run is asked to do, and the exit statuses it answers with. */
#ifndef RUN_OPTIONS_H
#define RUN_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

/** Exit statuses that are not a rank's; as timeout(1) and the shell use them. */
enum { RUN_EXIT_USAGE = 2, RUN_EXIT_TIME = 124, RUN_EXIT_SELF = 125, RUN_EXIT_EXEC = 127, RUN_EXIT_SIGNAL = 128 };

typedef struct run_options {
    uint32_t nranks;
    uint32_t nodes;   /* virtual nodes; 0: not drawn */
    int keep_going;   /* a failed rank does not end the others */
    int label;        /* whole lines, "[rank] " before each */
    int64_t limit_ms; /* of the whole job; 0: none */
    char **sets;      /* [nsets] NAME=VALUE for ranks only */
    size_t nsets;
    char **program; /* argv of the ranks */
} run_options_t;

/** Fills options, or prints what is asked for or wrong and returns the exit status; -1: go on. */
int run_options_parse(run_options_t *options, int argc, char **argv);

#endif
