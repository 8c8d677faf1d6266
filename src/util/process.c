/* SPDX-License-Identifier: BSD-3-Clause */

#define _GNU_SOURCE
#include "process.h"

#include <dlfcn.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/auxv.h>

#include "error.h"

const char *xep_loaded_from(const void *address)
{
    Dl_info info;
    return dladdr(address, &info) != 0 && info.dli_fname != NULL ? info.dli_fname : "";
}

/* ---- programs that have more rights than who starts them ---- */

/* Refused, not cleared: to change the environment is a race with every getenv() of the program's other threads. */

extern char **environ;

/* Setuid, setgid, or a program file with capabilities. */
static int is_privileged(void)
{
    return getauxval(AT_SECURE) != 0;
}

xep_status_t xep_secure_check(const char *prefix)
{
    if (!is_privileged()) return XEP_OK;
    for (char **e = environ; e != NULL && *e != NULL; e++)
        if (strncmp(*e, prefix, strlen(prefix)) == 0)
            return xep_fail(XEP_ERR_INVALID,
                            "%.*s is set for a setuid program, or one with capabilities (unset all %s*: they would act "
                            "with its rights)",
                            (int)strcspn(*e, "="), *e, prefix);
    return XEP_OK;
}

/* ---- forks ---- */

unsigned xep_forks;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int counts;

static void count(void)
{
    xep_forks++;
}

static void begin(void)
{
    counts = pthread_atfork(NULL, NULL, count) == 0;
}

int xep_forks_begin(void)
{
    pthread_once(&once, begin);
    return counts ? 0 : -1;
}

/* ---- threads of the library ---- */

int xep_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int ret = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return ret;
}

void xep_cond_open(pthread_cond_t *cond)
{
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &clock);
    pthread_condattr_destroy(&clock);
}
