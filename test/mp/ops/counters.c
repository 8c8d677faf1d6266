/* SPDX-License-Identifier: BSD-3-Clause */
/* ranks: 1 3, brief: 3, limit: 60 */

/*
 * Counters say what the operations did, in both modes, with shapes that fill no line and a rank without tokens; and
 * xep_info shows the same to other processes, which believe nothing that it finds unchecked.
 */

#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mp_job.h"
#include "mp_rig.h"

enum { HIDDEN = 33, ROUNDS = 3, TEXT = 1 << 16 };

static char text[TEXT];

static xep_counters_t counters_of(const xep_buffer_t *buffer, xep_op_kind_t kind)
{
    xep_counters_t counters = XEP_COUNTERS_INIT;
    MP_OK(xep_buffer_counters(buffer, kind, &counters));
    return counters;
}

static mp_case_t make_case(const char *mode)
{
    return (mp_case_t){.name = "counters", .mode = mode, MP_SHAPE(7, 3, HIDDEN, 13), .ragged = 1};
}

static xep_buffer_t *make_buffer(xep_group_t *group)
{
    const xep_buffer_params_t p = mp_small_params();
    xep_buffer_t *buffer;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    return buffer;
}

/* Returns the rows that came. */
static uint64_t run(mp_job_t *job)
{
    xep_handle_t *handle = mp_job_receive(job, NULL);
    const uint64_t came = mp_recv(handle)->rows;
    mp_job_sum(job, handle);
    xep_handle_release(handle);
    return came;
}

static void check_counters(const xep_buffer_t *buffer, uint64_t operations, uint64_t came)
{
    for (xep_op_kind_t kind = XEP_OP_DISPATCH; kind <= XEP_OP_COMBINE; kind++) {
        const xep_counters_t counters = counters_of(buffer, kind);
        MP_CHECK(counters.operations == operations && counters.errors == 0 && counters.peer_errors == 0);
        MP_CHECK(counters.rows == came && counters.bytes == came * HIDDEN * sizeof(uint16_t));
        MP_CHECK(counters.waits <= operations && counters.wait_ns <= counters.age_ns && counters.ranks_out == 0);
        MP_CHECK((counters.waits == 0) == (counters.wait_ns == 0));
    }
    MP_CHECK(counters_of(buffer, XEP_OP_NEXT).operations == 0);
}

/* Ranks that map one another give nothing to UCX. */
static void check_wire(const xep_buffer_t *buffer)
{
    const xep_buffer_info_t info = mp_buffer_info(buffer);
    MP_CHECK((counters_of(buffer, XEP_OP_DISPATCH).wire_bytes == 0) == (info.mapped_peers == mp_nranks()));
}

/* Its exit status; what it prints is in text. */
static int run_info(const char *arguments)
{
    char command[256];
    snprintf(command, sizeof command, "./xep_info --metrics %s 2>&1", arguments);
    FILE *pipe = popen(command, "r");
    MP_CHECK(pipe != NULL);
    size_t length = fread(text, 1, sizeof text - 1, pipe);
    text[length] = '\0';
    const int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* One line of xep_info. */
static void check_line(const char *name, const char *mode, const char *op, uint64_t value)
{
    char line[256], labels[128];
    snprintf(labels, sizeof labels, "%s{pid=\"%d\",rank=\"%u\",", name, (int)getpid(), mp_rank());
    snprintf(line, sizeof line, ",mode=\"%s\",op=\"%s\"} %" PRIu64 "\n", mode, op, value);
    for (const char *at = text; (at = strstr(at, labels)) != NULL; at++) {
        const char *end = strchr(at, '}'), *found = strstr(at, line);
        if (found != NULL && found < end) return;
    }
    mp_fail(__FILE__, __LINE__, "no line %s...%s in:\n%s", labels, line, text);
}

static void check_info(const char *mode, uint64_t operations, uint64_t came)
{
    char pid[32];
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    MP_CHECK(run_info(pid) == 0);
    check_line("xep_operations_total", mode, "dispatch", operations);
    check_line("xep_operations_total", mode, "combine", operations);
    check_line("xep_errors_total", mode, "combine", 0);
    check_line("xep_rows_total", mode, "dispatch", came);
    check_line("xep_bytes_total", mode, "combine", came * HIDDEN * sizeof(uint16_t));
    MP_CHECK(strstr(text, "# TYPE xep_wait_seconds_total counter\n") != NULL);
}

static void check_mode(xep_group_t *group, const char *mode)
{
    const mp_case_t c = make_case(mode);
    uint64_t came = 0;
    mp_job_t job;
    mp_job_begin(&job, &c, 1, group);
    check_counters(job.buffer, 0, 0);
    for (unsigned round = 0; round < ROUNDS; round++) {
        came += run(&job);
        check_counters(job.buffer, round + 1, came);
    }
    check_wire(job.buffer);
    check_info(mode, ROUNDS, came);
    mp_job_close(&job);
}

/* Where ranks disagree the operation counts as one with an error, and moves nothing. */
static void check_error(xep_group_t *group)
{
    const mp_case_t c = make_case("normal");
    mp_job_t job;
    mp_job_begin(&job, &c, 1, group);
    xep_dispatch_args_t d = mp_job_dispatch(&job);
    d.hidden = mp_is_last() ? HIDDEN - 1 : HIDDEN;
    if (mp_nranks() > 1) MP_REFUSES(&job, &d, XEP_ERR_MISMATCH, "hidden");
    const xep_counters_t counters = counters_of(job.buffer, XEP_OP_DISPATCH);
    MP_CHECK(counters.operations == (mp_nranks() > 1) && counters.errors == counters.operations);
    MP_CHECK(counters.rows == 0 && counters.peer_errors == 0);
    mp_job_close(&job);
}

static void check_arguments(xep_group_t *group)
{
    xep_counters_t counters = XEP_COUNTERS_INIT;
    xep_buffer_t *buffer = make_buffer(group);
    MP_FAILS(XEP_ERR_INVALID, xep_buffer_counters(NULL, XEP_OP_DISPATCH, &counters));
    MP_FAILS(XEP_ERR_INVALID, xep_buffer_counters(buffer, XEP_OP_NEXT + 1, &counters));
    MP_FAILS(XEP_ERR_INVALID, xep_buffer_counters(buffer, XEP_OP_DISPATCH, NULL));
    MP_OK(xep_buffer_destroy(buffer));
}

/* ---- processes that have no counters, or wrong ones ---- */

static void check_refused(const char *arguments, int status, const char *sentence)
{
    MP_CHECK(run_info(arguments) == status);
    if (strstr(text, sentence) == NULL || strchr(text, '{') != NULL)
        mp_fail(__FILE__, __LINE__, "\"%s\" is not what it says of %s: %s", sentence, arguments, text);
}

/* A file of this name, and of what its owner likes, in place of a buffer's. */
static void check_forged(const char *pid, const void *bytes, size_t count, const char *sentence)
{
    int file = memfd_create("xep-counters", MFD_CLOEXEC);
    MP_CHECK(file >= 0 && write(file, bytes, count) == (ssize_t)count);
    check_refused(pid, 1, sentence);
    close(file);
}

/* What a buffer of this process shows. */
static size_t copy_shown(uint8_t *bytes, size_t most)
{
    char path[64], target[64];
    for (int fd = 0; fd < 1024; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        const ssize_t length = readlink(path, target, sizeof target - 1);
        if (length < 0 || strncmp(target, "/memfd:xep-counters", 19) != 0) continue;
        return (size_t)pread(fd, bytes, most, 0);
    }
    return 0;
}

static void check_others(xep_group_t *group)
{
    uint8_t bytes[1024] = {0};
    char pid[32];
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    check_refused("", 2, "--metrics");
    check_refused("12x", 2, "invalid process: \"12x\"");
    check_refused("-- -1", 2, "invalid process: \"-1\"");
    check_refused("2147483647", 1, "process 2147483647: there is none");
    check_refused(pid, 1, "it has no buffer of xep");
    xep_buffer_t *buffer = make_buffer(group);
    const size_t count = copy_shown(bytes, sizeof bytes);
    MP_CHECK(count > 64 && count < sizeof bytes);
    MP_OK(xep_buffer_destroy(buffer));
    check_forged(pid, bytes, 0, "invalid counters");
    check_forged(pid, bytes, count - 1, "invalid counters");
    check_forged(pid, bytes, count + 1, "invalid counters");
    static const size_t places[] = {0, 8, 12, 32}; /* the magic, the size, ranks, the mode's name */
    for (int i = 0; i < 4; i++) {
        uint8_t wrong[sizeof bytes];
        memcpy(wrong, bytes, count);
        memset(wrong + places[i], '"', 8);
        check_forged(pid, wrong, count, "invalid counters (is its xep of another version?)");
    }
}

int main(void)
{
    xep_group_t *group = mp_group();
    check_others(group);
    check_mode(group, "normal");
    check_mode(group, "ll");
    check_error(group);
    check_arguments(group);
    MP_OK(xep_group_destroy(group));
    return 0;
}
