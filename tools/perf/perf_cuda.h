/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * --memory cuda: a device for each rank, on which every array of the private memory has a twin at the same offset. What
 * is filled and compared on the host is put there before operations and fetched behind them. Without it (perf->cuda is
 * NULL) all of these do nothing.
 */
#ifndef PERF_CUDA_H
#define PERF_CUDA_H

#include "perf.h"
#include "perf_cuda_driver.h"

typedef struct perf_cuda perf_cuda_t;

/** Makes a device current and allocates the twins. 0 or the exit status, said why. Collective. */
int perf_cuda_open(perf_t *perf);
void perf_cuda_close(perf_t *perf);

/** Where operations find an array of the private memory: its twin, or itself. */
void *perf_there(const perf_t *perf, const void *here);

/** The stream of all operations; NULL without a device. */
void *perf_stream(const perf_t *perf);

/** So many bytes of an array from here to there, and back; both wait. */
void perf_put(const perf_t *perf, const void *here, size_t bytes);
void perf_fetch(const perf_t *perf, void *here, size_t bytes);

/** All inputs, from here to there. */
void perf_put_inputs(const perf_t *perf);

/** The same for any memory of the device. */
void perf_put_to(const perf_t *perf, void *there, const void *here, size_t bytes);

/** Bytes of the device, set to a value. */
void perf_fill(const perf_t *perf, void *there, uint8_t value, size_t bytes);

/** What a handle has received, wherever that is; NULL: nothing. */
const xep_recv_t *perf_received(const xep_handle_t *handle);

/** What a slot has received, in host memory; valid until the next call. */
const xep_recv_t *perf_recv(const perf_t *perf, uint32_t slot);

/** Around an operation, in the order of the stream: how long it took there, once end has waited for it. */
void perf_device_begin(const perf_t *perf);
void perf_device_end(perf_t *perf);

/* ---- with --memory cuda alone ---- */

const perf_cuda_driver_t *perf_cuda_calls(const perf_t *perf);

/** Ends the run where a call of the driver has failed: what could not be done. */
void perf_cuda_must(const perf_t *perf, int result, const char *what);

/** Memory of the device, at least a byte. */
uintptr_t perf_cuda_allocate(const perf_t *perf, size_t bytes);

#endif
