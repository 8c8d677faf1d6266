/* SPDX-License-Identifier: BSD-3-Clause */

/** What parts of xep_run share: its options, the environment of ranks, and what it tells the user. */
#ifndef RUN_H
#define RUN_H

#include <stddef.h>
#include <stdint.h>

/* ---- run_options.c ---- */

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

/* ---- run_environ.c: ours, without the variables of another job ---- */

/** A malloc'ed copy of our environment as a rank is to see it, before PMIx adds its part; NULL: no memory. */
char **run_environ_make(const run_options_t *options);
void run_environ_free(char **env);

/** The first variable of ours that begins so, "NAME=VALUE", or NULL. */
const char *run_environ_find(const char *prefix);

/* ---- run_say.c ---- */

/** One line on stderr, "xep_run: " before it. */
void run_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** Milliseconds of a clock that nobody sets. */
int64_t run_clock_ms(void);

#endif
