/* SPDX-License-Identifier: BSD-3-Clause */

/** The library, loaded at run time: its functions, and its errors as exceptions. */
#ifndef EXT_LIBRARY_H
#define EXT_LIBRARY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <xep/cuda.h>
#include <xep/elastic.h>
#include <xep/experts.h>
#include <xep/inspect.h>
#include <xep/pieces.h>
#include <xep/serve.h>
#include <xep/xep.h>

/** Every function that is called, without its prefix. */
/* clang-format off */
#define EXT_FUNCTIONS(X)                                                                                               \
    X(version_string) X(last_error) X(log_set) X(library_query) X(config_each) X(mode_each) X(mode_query)              \
    X(group_create) X(group_destroy) X(group_abort) X(group_barrier) X(group_allgather) X(group_query) X(group_peer)   \
    X(group_event_fd)                                                                                                  \
    X(group_mask_set) X(group_mask_query) X(group_shrink)                                                              \
    X(group_grow) X(group_join) X(buffer_follow) X(expert_range) X(layout)                                             \
    X(buffer_size) X(buffer_create) X(buffer_destroy) X(buffer_reset) X(buffer_memory) X(buffer_query) X(buffer_waits) \
    X(buffer_abort) X(buffer_loads) X(buffer_counters) X(buffer_send_memory) X(handle_gather)                          \
    X(dispatch) X(combine) X(handle_next) X(handle_recv) X(handle_combine_input) X(handle_release)                     \
    X(handle_expand) X(handle_reduce)                                                                                  \
    X(request_test) X(request_wait) X(request_wait_counts) X(request_free)                                             \
    X(weights_create) X(weights_destroy) X(weights_change) X(weights_publish) X(weights_of) X(weights_prefetch)        \
    X(weights_reduce) X(serve) X(serve_stop) X(step_end) X(announce_dispatch) X(announce_layers)                       \
    X(trace_begin) X(trace_end)
/* clang-format on */

#define EXT_FIELD_(_name) __typeof__(xep_##_name) *_name;

typedef struct ext_library {
    EXT_FUNCTIONS(EXT_FIELD_)
} ext_library_t;

#undef EXT_FIELD_

/** Set by load(). One in a process, for its symbols are local to whoever loads it. */
extern ext_library_t lib;

/**
 * A new exception of errors.py, with the reason given or, with NULL, that of this thread's last call. Returns NULL if
 * another exception is set.
 */
PyObject *ext_error_new(xep_status_t status, const char *reason);

/** Sets an error that was made, which it takes over; NULL. */
PyObject *ext_raise_error(PyObject *error);

/** Sets that exception; NULL. */
PyObject *ext_raise(xep_status_t status);

/** None, or with an exception set NULL. */
PyObject *ext_none_or_raise(xep_status_t status);

/** Whether nobody but this thread can be in a call of the library and want the GIL there. */
int ext_is_alone(void);

/** How often this process was forked off another since the module was loaded. */
unsigned ext_forks(void);

/** load, version and the other functions that ask the library about itself; -1: an exception is set. */
int ext_library_ready(PyObject *module);

/* ---- Ctrl-C, which ends a wait ---- */

/** xep_group_params_t.interrupted: runs Python's handlers; whether one has raised an exception, which is kept. */
int ext_signals_raised(void *unused);

/** Raises the exception that a handler has left, if there is one. 1: it is set; 0: there was none. */
int ext_signals_set(void);

#endif
