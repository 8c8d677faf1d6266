/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * What programs on ranks share: checks that end the process with a sentence (the launcher then ends the others), the
 * group of all ranks, guarded memory, time.
 */
#ifndef TEST_MP_RIG_H
#define TEST_MP_RIG_H

#include <stdatomic.h>

#include <xep/cuda.h>
#include <xep/elastic.h>
#include <xep/inspect.h>
#include <xep/pieces.h>
#include <xep/serve.h>
#include <xep/xep.h>

/** Says what failed, where, on which rank, and exits with 1. */
#define MP_CHECK(_condition)     mp_check((_condition), __FILE__, __LINE__, #_condition)
#define MP_OK(_call)             mp_status((_call), XEP_OK, __FILE__, __LINE__, #_call)
#define MP_FAILS(_status, _call) mp_status((_call), (_status), __FILE__, __LINE__, #_call)
/** The reason of the last error must hold the text. */
#define MP_REASON(_text) mp_reason((_text), __FILE__, __LINE__)
/** Both: the call fails so, for a reason that holds the text. */
#define MP_SAYS(_status, _text, _call) (MP_FAILS(_status, _call), MP_REASON(_text))
/** The call says so with this value in a field of what it is given; afterwards that has its own again. */
#define MP_WRONG(_given, _field, _value, _status, _text, _call) \
    do {                                                        \
        const __typeof__(_given) right_ = (_given);             \
        (_given)._field = (_value);                             \
        MP_SAYS(_status, _text, _call);                         \
        (_given) = right_;                                      \
    } while (0)

void mp_check(int condition, const char *file, int line, const char *what);
void mp_status(xep_status_t got, xep_status_t expected, const char *file, int line, const char *what);
void mp_reason(const char *text, const char *file, int line);
void mp_fail(const char *file, int line, const char *format, ...) __attribute__((noreturn, format(printf, 3, 4)));

/** The group of all ranks; its rank is put before messages. */
xep_group_t *mp_group(void);
/** The same, where making it may fail. */
xep_status_t mp_try_group(xep_group_t **group_p);
/**
 * The same on nodes of two if there are five ranks, else of three (XEP_NODE_RANKS); every other rank sends its rows of
 * ll in many small parts. NULL: no two ranks map one another.
 */
xep_group_t *mp_nodes_group(void);
/** What main() returns when all was right; destroys the group. */
int mp_end(xep_group_t *group);
/** From now on the group of all ranks is this one. */
void mp_go_on(xep_group_t *group);
uint32_t mp_rank(void);
uint32_t mp_nranks(void);
/** Whether this is the last of several ranks: the one that is odd, late or away in many tests. */
int mp_is_last(void);
/** What they say of themselves. */
xep_group_info_t mp_group_info(const xep_group_t *group);
xep_buffer_info_t mp_buffer_info(const xep_buffer_t *buffer);

/** Sets of ranks, by the bits of their numbers: those that the group says are out; that a dispatch was without. */
uint32_t mp_ranks_out(xep_group_t *group);
uint32_t mp_out_of(const xep_recv_t *recv);

/** Both modes. */
extern const char *const mp_modes[2];

/** Whether this rank maps the heaps of that one. */
int mp_is_mapped(xep_group_t *group, uint32_t rank);

/** Another group of the same ranks, by a callback, which is this group's allgather; timeout_ms 0: the default. */
xep_group_t *mp_second_group(xep_group_t *group, int32_t timeout_ms);
/** A group of this process alone. */
xep_group_t *mp_group_alone(void);

/** Exit status for a test that cannot run here; says why once. */
int mp_skip(const char *why);

/** Params of a small buffer, for tests that make them wrong. */
xep_buffer_params_t mp_small_params(void);

/**
 * Milliseconds of a deadline that is to pass, and of one that is not. A busy machine keeps a rank away for seconds: who
 * waits in vain gives the others as much to come to what they wait in.
 */
enum { MP_VAIN_MS = 4000, MP_FAR_MS = 600 * 1000 };

/** Seconds of a monotonic clock. */
double mp_now(void);

void mp_sleep_us(unsigned us);

/** The kernel kills this process, at any instruction, within so many microseconds, drawn from the seed. */
void mp_die_within(uint64_t seed, uint32_t most_us);

/** A processor of its own for each rank, where there are enough: two on one would time each other. */
void mp_stay_on_one_cpu(void);

/** The smallest number first. */
void mp_sort(double *numbers, size_t count);

/** Memory that all ranks on one kernel share and that is not xep's; zeros at first, unmapped at exit. Collective. */
void *mp_shared(xep_group_t *group, size_t bytes);
/** A counter there. */
atomic_int *mp_counter(xep_group_t *group);
/** Waits, outside of xep, until it is at least that. */
void mp_await(const atomic_int *counter, int value);

/** What a handle has received; NULL: xep_handle_recv() has failed. */
const xep_recv_t *mp_recv(const xep_handle_t *handle);

/** Where its outputs go; NULL: xep_handle_combine_input() has failed. */
void *mp_input(xep_handle_t *handle, size_t *stride_p);

/** Waits for a request, twice, as the second must say the same, and frees it. */
void mp_finish(xep_request_t *req);

/* ---- memory ------------------------------------------------------------------ */

enum { MP_POISON = 0xA5 };

/** bytes between canaries, filled with MP_POISON; begins misaligned by shift bytes from a 64-byte boundary. */
void *mp_alloc(size_t bytes, size_t shift);
/** Checks the canaries and frees; NULL is a no-op. */
void mp_free(void *memory, const char *what);

#endif
