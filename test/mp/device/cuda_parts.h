/* SPDX-License-Identifier: BSD-3-Clause */

/** The parts of cuda_ops, each with a file of its own. */
#ifndef TEST_CUDA_PARTS_H
#define TEST_CUDA_PARTS_H

#include "cuda_job.h"

/* ---- cuda_refuse.c: buffers in device memory that cannot be, and streams without them */

/** Where no device was chosen, in a mode that there is not, and without all ranks. */
void cuda_refuse_no_device(xep_group_t *group);

/** Host memory, and that of another device, for every array that a kernel touches. With recv_rows_p. */
void cuda_refuse_memory(cuda_job_t *job);

/** Streams of another device, and of another context of this one. */
void cuda_refuse_streams(cuda_job_t *job);

/** A device without memory enough, of which another rank's cannot be reached, and whose driver is too old. */
void cuda_refuse_machine(xep_group_t *group);

/** A stream, of whatever device, and arrays of a device, for a buffer in host memory. */
void cuda_refuse_stream(xep_group_t *group, void *stream);

/** As the script has made the machine: absent, there is no driver; old, one that lacks functions; none, no device. */
int cuda_refuse(xep_group_t *group, const char *driver);

/* ---- cuda_layouts.c: layouts that are counted on the device */

/** Layouts of many shapes by a buffer of a mode, compared with the oracle; and what is refused. Collective. */
void cuda_layouts(xep_group_t *group, const char *mode, void *stream);

/* ---- cuda_after.c: operations that come after those of another buffer on the device */

/** Sums of one buffer are the rows of another one, on streams that know nothing of each other; and what is refused. */
void cuda_after(xep_group_t *group, void *streams[2]);

/* ---- cuda_by_expert.c: rows by expert */

/** Of received rows, and back: compared with plain loops. Where all ranks map one another. */
void cuda_experts(xep_group_t *group, void *stream);
/** Calls with wrong arguments, each refused (cuda_refuse_experts.c). */
void cuda_refuse_experts(xep_group_t *group, void *stream);

/* ---- cuda_staged.c: ranks that do not all map one another: what is the host's part of it */

/** Nothing where all ranks map one another. */
void cuda_staged(xep_group_t *group, const char *mode, void *streams[2]);

/* ---- cuda_goes_direct.c: where rows go from device to device, by XEP_DIRECT=yes */

/** Mode normal: what such a buffer takes, outputs that cannot be put, and an error while a kernel is under way. */
void cuda_goes_direct(xep_group_t *group, void *stream);

/* ---- cuda_broken.c: what breaks a buffer in device memory */

/**
 * A rank that does not come, dispatches that all refuse, ranks that combine different things: told by the call, or by a
 * later one, and the buffer is broken until a reset.
 */
void cuda_broken(xep_group_t *group, const char *mode, void *stream);

/** Without a deadline a kernel waits as long as it takes; giving up on the group ends that, and nothing hangs. */
void cuda_give_up(xep_group_t *group, void *stream);

/* ---- cuda_captured.c: operations that are captured although their rows are staged */

/** Whether they are in this process: a thread makes progress, and memory is pinned. */
int cuda_captures_staged(void);
/** Mode ll: ranks that differ, what cannot be captured, and buffers that end. */
void cuda_captured(xep_group_t *group, void *streams[2]);
/** Mode ll: the last rank dies between two launches. */
void cuda_captured_death(cuda_job_t *job);

/* ---- cuda_graphs.c: operations that are captured into CUDA graphs and replayed */

/**
 * Replays with other rows and other routings, of several operations, beside operations that are called, by ranks that
 * have lost step, with what is wrong in them, and after a reset. mode: "normal" or "ll".
 */
void cuda_graphs(xep_group_t *group, const char *mode, void *stream);

/** Mode normal: what the host waits for cannot be captured; a combine of it can. */
void cuda_graphs_exact(xep_group_t *group, void *stream);

/* ---- cuda_standing.c: calls while the stream stands: of ll, and of normal with the counts there, none waits */

void cuda_standing(xep_group_t *group, const char *mode, void *stream);

/* ---- cuda_faults.c: every call of the driver that a buffer is made with, or that moves its rows, fails once */

/**
 * Of a create, on rank 0, which says why; the others are told of it, and nothing is left. Of operations, on all ranks;
 * a reset mends it. Nothing where there is no stand-in.
 */
void cuda_faults(xep_group_t *group, const char *mode, void *stream);

/** The last rank's device falls off under a dispatch: it says so, the others name the rank, and all of them end. */
int cuda_lost(xep_group_t *group, const char *mode, void *stream);

/* ---- cuda_death.c: a rank dies while others use its memory, and one of them frees its own */

/** The last of at least two ranks dies by SIGKILL; the others find it out, and their devices go on. */
int cuda_death(xep_group_t *group, const char *mode, void *stream);

/* ---- cuda_ll_patterns.c: casts and sums of ll in device memory, compared with those of ll in host memory */

void cuda_ll_patterns(xep_group_t *group, void *stream);

/* ---- cuda_ll_again.c: combines of ll that use again what others before them used */

void cuda_ll_again(xep_group_t *group, void *stream);

#endif
