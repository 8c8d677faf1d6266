/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A stand-in for libcuda.so.1: devices without devices. Their memory is memory of the process that others can open,
 * streams are queues that a thread each works off, with delays that STANDIN_SEED chooses, and kernels are functions
 * in C. What is asked for in the wrong order, or with addresses of the wrong kind, fails here as it does there.
 */
#ifndef TEST_CUDA_STANDIN_H
#define TEST_CUDA_STANDIN_H

#include <stddef.h>
#include <stdint.h>

enum { STANDIN_ARGS_BYTES = 1024 };

/** A kernel: what it is called in a fat binary, how long its struct is, and what it does with it. */
typedef struct standin_kernel {
    const char *name;
    size_t bytes;
    void (*run)(const void *args);
} standin_kernel_t;

extern const standin_kernel_t standin_normal_kernels[], standin_ll_kernels[], standin_ll_combine_kernels[],
    standin_captured_kernels[];
extern const int standin_normal_count, standin_ll_count, standin_ll_combine_count, standin_captured_count;
void standin_layout(const void *args); /* of both modes */

/** Casts a row of a dispatch of either mode: rows is where that of token 0 goes. */
struct xep_cuda_cast;
void standin_cast_row(const struct xep_cuda_cast *cast, uint64_t token, char *rows);

/* ---- standin_experts.c ---- */

void standin_slots(const void *args);
void standin_expand(const void *args);
void standin_reduce(const void *args);

/** A piece of work of a stream; run in its thread. */
typedef struct standin_work {
    void (*run)(const void *args);
    size_t bytes;
    char args[STANDIN_ARGS_BYTES];
} standin_work_t;

/** CUresult and CUdeviceptr; a function that programs find under its name. */
typedef int result_t;
typedef uintptr_t address_t;
enum {
    DONE = 0,
    INVALID = 1,
    NO_MEMORY = 2,
    NO_DEVICE = 100,
    NO_CONTEXT = 201,
    NO_WAY = 217,
    TOO_NEW = 222,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ALREADY_PINNED = 712,
    LOST = 719,
    CAPTURED = 905
};
#define API __attribute__((visibility("default"))) result_t

/**
 * Whether this function is to fail as it would where something cannot be: STANDIN_FAILS names it, or it is the call
 * that standin_fail() has said.
 */
int standin_fails(const char *function);

/** For tests: the call of this function that fails once, 1 for the next one; 0: none. Returns how many have passed. */
#define STANDIN_TOOL __attribute__((visibility("default")))
STANDIN_TOOL int standin_fail(const char *function, int call);

/** For tests: the device falls off: no work is done and no call succeeds any more. */
STANDIN_TOOL void standin_lose(void);
int standin_is_lost(void);

/** What a function that fails returns: that the device is lost, or else what it usually would. */
result_t standin_error(result_t usual);

/** For tests: memory, events, modules and contexts that were made and not given back. */
STANDIN_TOOL int standin_alive(void);
void standin_count(int made);

/** The context of this thread; NULL: none. It begins with the number of its device, an int. */
void *standin_context(void);

/* ---- standin_streams.c ---- */

typedef struct standin_stream standin_stream_t;

/** The stream of a handle; NULL: the default one. */
standin_stream_t *standin_stream(void *handle);
standin_stream_t *standin_stream_create(void *context);
void standin_stream_destroy(standin_stream_t *stream);
void *standin_stream_context(const standin_stream_t *stream);
void standin_stream_add(standin_stream_t *stream, void (*run)(const void *args), const void *args, size_t bytes);

/**
 * Between begin and end, work is kept in a graph; replay gives it to a stream once more. capturing: whether that is so.
 */
typedef struct standin_graph standin_graph_t;

void standin_capture_begin(standin_stream_t *stream);
standin_graph_t *standin_capture_end(standin_stream_t *stream);
int standin_capturing(const standin_stream_t *stream);
/** The number of a stream's capture, or 0; others may join it, until it ends (0). */
uint64_t standin_capture_number(const standin_stream_t *stream);
int standin_capture_join(standin_stream_t *stream, uint64_t number);
void standin_graph_replay(const standin_graph_t *graph, standin_stream_t *stream);
void standin_graph_destroy(standin_graph_t *graph);

/** How many pieces of work it has been given, whether so many are done, and waiting for that. */
uint64_t standin_stream_given(standin_stream_t *stream);
int standin_stream_is_past(standin_stream_t *stream, uint64_t given);
void standin_stream_wait(standin_stream_t *stream, uint64_t given);
STANDIN_TOOL void standin_streams_wait_all(void);

#endif
