/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Everything that waits or copies here does so outside of what is timed, but perf_device_end(), which is the end of an
 * operation. A call of the driver that fails ends the run at once: nothing is left to be measured then.
 */
#include "perf_cuda.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_alloc.h"
#include "perf_say.h"

enum { NON_BLOCKING = 1 };

/* ---- calls of the driver ---- */

/* Made of the one list in the header: the name to look for, and where its pointer belongs in a perf_cuda_driver_t. */
static const struct {
    const char *symbol;
    size_t offset;
} functions[] = {
#define PERF_CUDA_FUNCTION(_name, _symbol, _params) {_symbol, offsetof(perf_cuda_driver_t, _name)},
    PERF_CUDA_FUNCTIONS(PERF_CUDA_FUNCTION)
#undef PERF_CUDA_FUNCTION
};

/*
 * NULL or a complaint. It stays loaded: the library has it, too. A driver that lacks one of the functions is not used
 * at all, so nobody has to ask whether a pointer is there. ISO C knows no cast from an object's address to a function.
 */
static const char *open_driver(perf_cuda_driver_t *driver, char *why, size_t why_bytes)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(why, why_bytes, "--memory cuda: there is no driver for CUDA devices here: %s", dlerror());
        return why;
    }
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *symbol = dlsym(library, functions[i].symbol);
        if (symbol == NULL) {
            snprintf(why, why_bytes, "--memory cuda: the driver of the CUDA devices is too old: it has no %s",
                     functions[i].symbol);
            return why;
        }
        memcpy((char *)driver + functions[i].offset, &symbol, sizeof symbol);
    }
    return NULL;
}

void perf_cuda_must(const perf_t *perf, int result, const char *what)
{
    const char *text = NULL;

    if (result == 0) return;
    perf->cuda->driver.error_text(result, &text);
    fprintf(stderr, "xep_perf: rank %" PRIu32 ": CUDA cannot %s: %s (%d)\n", perf->info.rank, what,
            text != NULL ? text : "an error it has no words for", result);
    exit(PERF_EXIT_FAILED);
}

/* A byte more, as the driver refuses to allocate none, and a rank may have no rows. */
uintptr_t perf_cuda_allocate(const perf_t *perf, size_t bytes)
{
    uintptr_t address = 0;

    perf_cuda_must(perf, perf->cuda->driver.allocate(&address, bytes + 1), "allocate memory of the device");
    return address;
}

/* ---- memory ---- */

/*
 * As far from the begin of the twins as the array is from that of the private memory. NULL, for what a run does not
 * have, stays NULL.
 */
void *perf_there(const perf_t *perf, const void *here)
{
    if (perf->cuda == NULL || here == NULL) return (void *)(uintptr_t)here;
    return (void *)(perf->cuda->twins + (uintptr_t)((const char *)here - (const char *)perf->memory.base));
}

void *perf_stream(const perf_t *perf)
{
    return perf->cuda == NULL ? NULL : perf->cuda->stream;
}

static void wait_for_stream(const perf_t *perf)
{
    perf_cuda_must(perf, perf->cuda->driver.stream_wait(perf->cuda->stream), "wait for a stream");
}

/* On the stream of the operations and waited for, so that an operation that is enqueued later finds it. */
void perf_copy(const perf_t *perf, void *to, const void *from, size_t bytes)
{
    const perf_cuda_t *cuda = perf->cuda;

    if (bytes == 0) return;
    perf_cuda_must(perf, cuda->driver.copy((uintptr_t)to, (uintptr_t)from, bytes, cuda->stream), "copy");
    wait_for_stream(perf);
}

void perf_put(const perf_t *perf, const void *here, size_t bytes)
{
    if (perf->cuda != NULL && here != NULL) perf_copy(perf, perf_there(perf, here), here, bytes);
}

void perf_fetch(const perf_t *perf, void *here, size_t bytes)
{
    if (perf->cuda != NULL && here != NULL) perf_copy(perf, here, perf_there(perf, here), bytes);
}

/* What perf_dispatch_args() gives to the library. Outputs and the area are put by those who fill them. */
void perf_put_inputs(const perf_t *perf)
{
    const size_t selections = perf->tokens * perf->options.topk;

    perf_put(perf, perf->x, perf->tokens * perf->row_bytes);
    perf_put(perf, perf->idx, selections * sizeof *perf->idx);
    perf_put(perf, perf->weights, selections * sizeof *perf->weights);
    perf_put(perf, perf->scales, perf->tokens * perf->scale_bytes);
}

void perf_fill(const perf_t *perf, void *there, uint8_t value, size_t bytes)
{
    if (bytes != 0)
        perf_cuda_must(perf, perf->cuda->driver.fill((uintptr_t)there, value, bytes, perf->cuda->stream),
                       "fill memory");
}

/* ---- received rows ---- */

static void free_fetched(perf_cuda_t *cuda)
{
    for (size_t i = 0; i < cuda->nfetched; i++) free(cuda->fetched[i]);
    cuda->nfetched = 0;
}

/* In host memory, until the next slot is fetched; NULL for what this dispatch does not have. */
static void *fetched(const perf_t *perf, const void *there, size_t bytes)
{
    perf_cuda_t *cuda = perf->cuda;

    if (there == NULL) return NULL;
    void *here = cuda->fetched[cuda->nfetched++] = oracle_alloc(bytes + 1);
    perf_copy(perf, here, there, bytes);
    return here;
}

/* By expert the counts and places are the device's, too, and the rows are what they say; by rank the library's own. */
static void fetch_places(const perf_t *perf, const xep_recv_t *there, xep_recv_t *recv)
{
    const size_t experts = there->local_experts, pairs = experts * perf->info.nranks;

    recv->expert_begin = fetched(perf, there->expert_begin, experts * sizeof *recv->expert_begin);
    recv->expert_count = fetched(perf, there->expert_count, experts * sizeof *recv->expert_count);
    recv->expert_rows = fetched(perf, there->expert_rows, experts * sizeof *recv->expert_rows);
    recv->pair_begin = fetched(perf, there->pair_begin, pairs * sizeof *recv->pair_begin);
    recv->pair_count = fetched(perf, there->pair_count, pairs * sizeof *recv->pair_count);
    recv->rows = 0;
    for (size_t e = 0; e < experts; e++)
        recv->rows += recv->arrangement == XEP_ROWS_BY_EXPERT_PADDED ? recv->expert_count[e] : recv->expert_rows[e];
}

const xep_recv_t *perf_received(const xep_handle_t *handle)
{
    const xep_recv_t *recv = NULL;
    (void)xep_handle_recv(handle, &recv);
    return recv;
}

/* All that the slot has room for, not the rows alone: what lies behind them is compared, too. */
const xep_recv_t *perf_recv(const perf_t *perf, uint32_t slot)
{
    const xep_recv_t *there = perf_received(perf->handle[slot]);

    if (perf->cuda == NULL) return there;
    xep_recv_t *recv = &perf->cuda->recv;
    free_fetched(perf->cuda);
    *recv = *there;
    if (there->expert_begin != NULL) fetch_places(perf, there, recv);
    recv->x = fetched(perf, there->x, there->capacity * there->x_stride);
    recv->topk_idx =
        fetched(perf, there->topk_idx, there->capacity * there->topk * xep_dtype_size(there->topk_idx_dtype));
    recv->topk_weights = fetched(perf, there->topk_weights, there->capacity * there->topk * sizeof(float));
    recv->scales = fetched(perf, there->scales, there->capacity * there->nscales * 4);
    recv->src_token = fetched(perf, there->src_token, there->capacity * sizeof(int32_t));
    return recv;
}

/* ---- the clock of the device ---- */

void perf_device_begin(const perf_t *perf)
{
    if (perf->cuda != NULL)
        perf_cuda_must(perf, perf->cuda->driver.event_record(perf->cuda->begin, perf->cuda->stream), "time");
}

/* The wait is part of what the wall sees of an operation; reading the events is not, but takes no time beside it. */
void perf_device_end(perf_t *perf)
{
    float ms = 0;

    if (perf->cuda == NULL) return;
    perf_cuda_must(perf, perf->cuda->driver.event_record(perf->cuda->end, perf->cuda->stream), "time");
    wait_for_stream(perf);
    perf_cuda_must(perf, perf->cuda->driver.event_elapsed(&ms, perf->cuda->begin, perf->cuda->end), "tell the time");
    perf->device_ns = (uint64_t)((double)ms * 1e6);
}

/* ---- open and close ---- */

/* NULL or a complaint. Ranks take the devices in turn, and share them where there are fewer. */
static const char *find_device(const perf_t *perf, perf_cuda_driver_t *driver, char *why, size_t why_bytes)
{
    void *context;
    int count = 0;

    if (open_driver(driver, why, why_bytes) != NULL) return why;
    if (driver->init(0) != 0 || driver->device_count(&count) != 0 || count == 0)
        return "--memory cuda: the driver finds no CUDA device that this process may use";
    if (driver->context_retain(&context, (int)(perf->info.rank % (uint32_t)count)) != 0 ||
        driver->context_set(context) != 0)
        return "--memory cuda: the device cannot be used";
    return NULL;
}

/*
 * All ranks end with the same complaint if one of them has no device. Called when the private memory is there and
 * before inputs are filled, as these are put into the twins.
 */
void perf_cuda_open(perf_t *perf)
{
    char why[256];

    if (!perf->options.cuda) return;
    perf_cuda_t *cuda = oracle_alloc(sizeof *cuda);
    const char *complaint = find_device(perf, &cuda->driver, why, sizeof why);
    perf_stop_if(perf, complaint, PERF_EXIT_FAILED);
    perf->cuda = cuda;
    perf_cuda_must(perf, cuda->driver.stream_create(&cuda->stream, NON_BLOCKING), "make a stream");
    perf_cuda_must(perf, cuda->driver.event_create(&cuda->begin, 0), "make an event");
    perf_cuda_must(perf, cuda->driver.event_create(&cuda->end, 0), "make an event");
    cuda->twins = perf_cuda_allocate(perf, perf->memory.bytes);
    perf_put(perf, perf->memory.base, perf->memory.bytes);
}

/* Streams and events go with the process. */
void perf_cuda_close(perf_t *perf)
{
    perf_cuda_t *cuda = perf->cuda;

    if (cuda == NULL) return;
    cuda->driver.release(cuda->twins);
    free_fetched(cuda);
    free(cuda);
    perf->cuda = NULL;
}
