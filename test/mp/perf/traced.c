/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A program to be traced: trace_output.sh runs it, and trace_check.py compares the trace with what it writes here.
 *
 *     traced FOLDER rounds      both modes; in round i rank i % R comes late; FOLDER/truth.RANK has the operations
 *     traced FOLDER flood N     spans "flood 0" .. "flood N-1"
 *     traced FOLDER killed      rank 1 is killed after a round
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mp_rig.h"

enum { EXPERTS = 10, TOPK = 3, HIDDEN = 96, TOKENS = 13, ROUNDS = 4, LATE_US = 200 * 1000 };

static float x[TOKENS][HIDDEN], out[TOKENS][HIDDEN];
static int64_t idx[TOKENS][TOPK];
static FILE *truth;

static xep_buffer_t *make_buffer(xep_group_t *group, const char *mode)
{
    xep_buffer_t *buffer;
    xep_buffer_params_t p = XEP_BUFFER_PARAMS_INIT;
    p.mode = mode, p.experts = EXPERTS, p.topk = TOPK, p.hidden = HIDDEN, p.tokens = TOKENS, p.threads = 2;
    p.dtype = p.combine_dtype = XEP_FP32;
    MP_OK(xep_buffer_create(group, &p, &buffer));
    return buffer;
}

static void compute(uint64_t rows)
{
    uint64_t outer = xep_trace_begin();
    uint64_t inner = xep_trace_begin();
    mp_sleep_us(200 + (unsigned)rows);
    xep_trace_end("gemm \"1\" \xc3\xa4\xff", inner); /* a quote, a letter, and a byte that is no text */
    xep_trace_end("experts", outer);
}

/* number: of the buffer; epoch: of its next operation, which becomes that of the one after */
static void round_of(xep_buffer_t *buffer, int number, uint64_t *epoch_p, uint64_t tokens)
{
    xep_dispatch_args_t d = XEP_DISPATCH_ARGS_INIT;
    xep_combine_args_t c = XEP_COMBINE_ARGS_INIT;
    xep_handle_t *handle;
    xep_request_t *req;
    d.tokens = tokens, d.x = x, d.topk_idx = idx;
    MP_OK(xep_dispatch(buffer, &d, &handle, *epoch_p % 4 == 1 ? &req : NULL));
    if (*epoch_p % 4 == 1) MP_OK(xep_request_wait(req)), xep_request_free(req);
    uint64_t rows = mp_recv(handle)->rows;
    compute(rows);
    size_t stride;
    MP_CHECK(mp_input(handle, &stride) != NULL);
    c.out = out;
    MP_OK(xep_combine(handle, &c, NULL));
    xep_handle_release(handle);
    for (int op = 0; op < 2; op++)
        fprintf(truth, "%d %" PRIu64 " %s %" PRIu64 " %" PRIu64 "\n", number, (*epoch_p)++,
                op == 0 ? "dispatch" : "combine", tokens, rows);
}

static void rounds(xep_group_t *group, int count)
{
    for (int m = 0; m < 2; m++) {
        xep_buffer_t *buffer = make_buffer(group, mp_modes[m]);
        uint64_t epoch = 1;
        for (int i = 0; i < count; i++) {
            MP_OK(xep_group_barrier(group));
            if ((uint32_t)i % mp_nranks() == mp_rank()) mp_sleep_us(LATE_US);
            uint64_t begin = xep_trace_begin();
            round_of(buffer, m, &epoch, mp_rank() % 3 == 2 ? 0 : TOKENS - (uint64_t)i);
            xep_trace_end("layer", begin);
        }
        xep_buffer_destroy(buffer);
    }
}

static void *another_thread(void *arg)
{
    uint64_t begin = xep_trace_begin();
    mp_sleep_us(300);
    xep_trace_end("another thread", begin);
    return arg;
}

static void flood(const char *count)
{
    for (int i = 0; i < atoi(count); i++) {
        char name[64];
        uint64_t begin = xep_trace_begin();
        snprintf(name, sizeof name, "flood %d", i);
        xep_trace_end(name, begin);
    }
    /* what is no span */
    xep_trace_end(NULL, xep_trace_begin());
    xep_trace_end("never begun", 0);
    xep_trace_end("from the future", UINT64_MAX);
}

/* What a forked child traces would go into its parent's memory. */
static void fork_child(void)
{
    pid_t child = fork();
    if (child == 0) {
        xep_trace_end("of a child", xep_trace_begin());
        _exit(xep_trace_begin() == 0 ? 0 : 3);
    }
    int status = 0;
    MP_CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv)
{
    char name[4096];
    pthread_t thread;
    MP_CHECK(argc > 2);
    MP_CHECK(xep_trace_begin() == 0);
    xep_group_t *group = mp_group();
    snprintf(name, sizeof name, "%s/truth.%u", argv[1], mp_rank());
    MP_CHECK((truth = fopen(name, "w")) != NULL);
    for (int t = 0; t < TOKENS; t++)
        for (int k = 0; k < TOPK; k++) idx[t][k] = (t * 7 + k * 3 + (int)mp_rank()) % EXPERTS;

    if (strcmp(argv[2], "rounds") == 0) {
        MP_CHECK(pthread_create(&thread, NULL, another_thread, NULL) == 0);
        MP_CHECK(pthread_join(thread, NULL) == 0);
        rounds(group, ROUNDS);
        fork_child();
    } else if (strcmp(argv[2], "flood") == 0) {
        flood(argv[3]);
    } else {
        rounds(group, 1);
        fflush(truth);
        MP_OK(xep_group_barrier(group));
        if (mp_rank() == 1) kill(getpid(), SIGKILL);
    }
    fclose(truth);
    return mp_end(group);
}
