/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Messages of the process: to the program's function, or to stderr, one line each. Any thread may call these, even
 * before the configuration is read or after reading it failed.
 */
#include "log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER; /* guards fn and arg as a pair */
static xep_log_fn sink_fn;
static void *sink_arg;
static atomic_int level_enabled = -1; /* not read yet */
static atomic_int log_rank = -1;

/* Sets both under the lock, so that no function gets the argument of another. */
void xep_log_set(xep_log_fn fn, void *arg)
{
    pthread_mutex_lock(&sink_lock);
    sink_fn = fn;
    sink_arg = arg;
    pthread_mutex_unlock(&sink_lock);
}

void xep_log_rank(int rank)
{
    atomic_store(&log_rank, rank);
}

/* Read here, not with the rest of the configuration: messages about the configuration need the level already. */
xep_log_level_t xep_log_level_asked(void)
{
    static const struct {
        const char *name;
        xep_log_level_t level;
    } levels[] = {
#define LEVEL(_name, _level) {_name, _level},
        XEP_LOG_LEVELS(LEVEL)
#undef LEVEL
    };
    const char *text = getenv("XEP_LOG");
    for (size_t i = 0; text != NULL && i < sizeof levels / sizeof levels[0]; i++)
        if (strcasecmp(text, levels[i].name) == 0) return levels[i].level;
    return XEP_LOG_WARN;
}

/* Two threads may both read the variable: they find the same. */
int xep_log_enabled(xep_log_level_t level)
{
    int enabled = atomic_load_explicit(&level_enabled, memory_order_relaxed);
    if (enabled < 0) {
        enabled = (int)xep_log_level_asked();
        atomic_store(&level_enabled, enabled);
    }
    return (int)level <= enabled;
}

/* "[2026-11-27T01:02:03.456Z node7:4242]": when, by UTC, on which host, in which process. */
static void tell_origin(char *text, size_t bytes)
{
    struct timespec now;
    struct tm utc;
    char date[32] = "", host[64] = "";
    clock_gettime(CLOCK_REALTIME, &now);
    if (gmtime_r(&now.tv_sec, &utc) != NULL) strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
    gethostname(host, sizeof host - 1);
    host[strcspn(host, ".")] = '\0';
    snprintf(text, bytes, "[%s.%03ldZ %s:%ld]", date, now.tv_nsec / 1000000, host, (long)getpid());
}

/* One call for each message: lines of several ranks do not mix. */
static void to_stderr(xep_log_level_t level, const char *message)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    int rank = atomic_load(&log_rank);
    char origin[160], who[32] = "";
    tell_origin(origin, sizeof origin);
    if (rank >= 0) snprintf(who, sizeof who, "rank %d: ", rank);
    fprintf(stderr, "%s xep: %s%s: %s\n", origin, who, names[level], message);
}

/* The callback is called without the lock, so that a slow one does not hold up other threads. */
void xep_log(xep_log_level_t level, const char *format, ...)
{
    char message[2048];
    xep_log_fn fn;
    void *arg;
    va_list args;
    if (!xep_log_enabled(level)) return;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    pthread_mutex_lock(&sink_lock);
    fn = sink_fn;
    arg = sink_arg;
    pthread_mutex_unlock(&sink_lock);
    if (fn != NULL) fn(arg, level, message);
    else to_stderr(level, message);
}
