/* SPDX-License-Identifier: BSD-3-Clause */

/** A CUDA device for a test, by its driver or by the stand-in for it. */
#ifndef TEST_CUDA_RIG_H
#define TEST_CUDA_RIG_H

#include <stdatomic.h>
#include <stddef.h>

/** Makes device (rank % devices) current. 0: there is no driver, or no device. */
int cuda_rig_open(unsigned rank);

void *cuda_rig_stream(void);
/** The context that is current in this thread. */
void *cuda_rig_context(void);
/** A stream of another device; NULL: there is no other. */
void *cuda_rig_stream_elsewhere(unsigned rank);
/** A stream of this device in another context, which stays; NULL: the device has only one for each process. */
void *cuda_rig_stream_apart(unsigned rank);
void cuda_rig_wait(void *stream);

/** What is enqueued on the stream from now on waits until the counter, which the test keeps, is at least that. */
void cuda_rig_hold(void *stream, const atomic_int *counter, int value);

/** Device memory; with the same contents as host memory if that is not NULL. */
void *cuda_rig_alloc(const void *from, size_t bytes);
void cuda_rig_free(void *memory);
/** Memory of another device; NULL: there is no other. */
void *cuda_rig_alloc_elsewhere(unsigned rank, size_t bytes);

/** Copies, in the order of a stream; get waits for it. */
void cuda_rig_put(void *to, const void *from, size_t bytes, void *stream);
void cuda_rig_get(void *to, const void *from, size_t bytes, void *stream);

/** Rows of device memory to device memory, in the order of a stream. */
void cuda_rig_copy(void *to, size_t to_stride, const void *from, size_t from_stride, size_t bytes, size_t rows,
                   void *stream);

/** What is enqueued on a stream from capture to graph is kept for replays. */
void cuda_rig_capture(void *stream);
void *cuda_rig_graph(void *stream);
void cuda_rig_replay(void *graph, void *stream);
void cuda_rig_free_graph(void *graph);

#endif
