/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * For heartbeat.sh: every rank is a host of its own. The last one falls silent: it stops, which its connections do not
 * show, as when its cable is pulled. The others have deadlines of minutes, and must be told who it was long before.
 *
 * heartbeat WHERE
 *   barrier, dispatch, tests   where the others wait then
 *   ends                       nowhere: they leave, and wait for nobody
 *   deadline                   without a heartbeat: XEP_ERR_TIMEOUT
 *   computes                   nobody is silent, only away from the library for many intervals: all is well
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mp_job.h"
#include "mp_rig.h"

enum { AWAY_US = 8 * 1000 * 1000 };

static const mp_case_t base = {.name = "heartbeat", MP_SHAPE(12, 4, 300, 30), .weights = 1, .slots = 2};

static xep_status_t dispatch(mp_job_t *job, int by_tests, int32_t timeout_ms)
{
    xep_dispatch_args_t d = mp_job_dispatch(job);
    xep_handle_t *handle;
    xep_request_t *req;
    d.timeout_ms = timeout_ms;
    if (!by_tests) return xep_dispatch(job->buffer, &d, &handle, NULL);
    xep_status_t status = xep_dispatch(job->buffer, &d, &handle, &req);
    if (status != XEP_OK) return status;
    while ((status = xep_request_test(req)) == XEP_INPROGRESS) mp_sleep_us(1000);
    return status;
}

/* Until it is known to have stopped there may be something of it under way. */
static void await_stop(pid_t pid)
{
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    for (double end = mp_now() + 60; strstr(line, ") T ") == NULL && mp_now() < end; mp_sleep_us(1000)) {
        FILE *stat = fopen(path, "r");
        MP_CHECK(stat != NULL && fgets(line, sizeof line, stat) != NULL);
        fclose(stat);
    }
    MP_CHECK(strstr(line, ") T ") != NULL);
}

/* Has ended, or will be a zombie until the launcher looks. */
static void await_end(pid_t pid)
{
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    for (double end = mp_now() + 60; strstr(line, ") Z ") == NULL && mp_now() < end; mp_sleep_us(1000)) {
        FILE *stat = fopen(path, "r");
        if (stat == NULL) return;
        if (fgets(line, sizeof line, stat) == NULL) line[0] = '\0';
        fclose(stat);
    }
}

static void be_told(xep_group_t *group, mp_job_t *job, const char *where)
{
    char name[64];
    snprintf(name, sizeof name, "rank %u is gone: nothing was heard of it for ", mp_nranks() - 1);
    if (strcmp(where, "ends") == 0) return;
    if (strcmp(where, "deadline") == 0) {
        MP_FAILS(XEP_ERR_TIMEOUT, dispatch(job, 0, MP_VAIN_MS));
        return;
    }
    if (strcmp(where, "barrier") == 0) MP_FAILS(XEP_ERR_PEER, xep_group_barrier(group));
    else MP_FAILS(XEP_ERR_PEER, dispatch(job, strcmp(where, "tests") == 0, 0));
    MP_REASON(name);
}

static void stop_one(xep_group_t *group, mp_job_t *job, const char *where)
{
    pid_t mine = getpid(), *all = calloc(mp_nranks(), sizeof mine);
    MP_CHECK(all != NULL);
    MP_OK(xep_group_allgather(group, &mine, all, sizeof mine));
    if (mp_is_last()) raise(SIGSTOP);
    await_stop(all[mp_nranks() - 1]);
    be_told(group, job, where);
    mp_job_close(job);
    xep_group_destroy(group);
    printf("survived\n");
    fflush(stdout);
    if (mp_rank() == 0) { /* the launcher tells of a death as well: not before all others know from the heartbeat */
        for (uint32_t r = 1; r < mp_nranks() - 1; r++) await_end(all[r]);
        kill(all[mp_nranks() - 1], SIGKILL);
    }
    free(all);
}

int main(int argc, char **argv)
{
    const char *where = argc > 1 ? argv[1] : "";
    xep_group_t *group = mp_group();
    mp_job_t job;
    mp_job_begin(&job, &base, 1, group);
    mp_job_round(&job);
    if (strcmp(where, "computes") != 0) {
        stop_one(group, &job, where);
        return 0;
    }
    if (mp_rank() == 0) mp_sleep_us(AWAY_US);
    mp_job_round(&job);
    MP_OK(xep_group_barrier(group));
    mp_job_close(&job);
    xep_group_destroy(group);
    printf("well\n");
    return 0;
}
