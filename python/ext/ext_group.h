/* SPDX-License-Identifier: BSD-3-Clause */

/** What Group is made of. */
#ifndef EXT_GROUP_H
#define EXT_GROUP_H

#include "ext_library.h"

typedef struct ext_group {
    PyObject_HEAD
    xep_group_t *group; /* NULL: closed, or not made yet */
    PyObject *boot;
    PyObject *left; /* list: what its buffers have kept for the transport; NULL: nothing */
    char *gathered; /* what an allgather that has failed has gathered; NULL: none has, or another one came since */
    size_t gathered_bytes;
    unsigned forks; /* ext_forks() of the process that made it */
    uint32_t rank, nranks, node, nnodes;
} ext_group_t;

/** Of one that the library has just made: its ranks, and the process that it belongs to. -1: an exception is set. */
int ext_group_learn(ext_group_t *group);

/** Whether this process made it: what a fork has is the memory of ranks that do not know it. -1: RuntimeError. */
int ext_group_is_own(const ext_group_t *group);

/** NULL: TypeError, ValueError (it is closed), RuntimeError (as above). */
xep_group_t *ext_group_get(PyObject *object);

/** Appends object, which it takes over, to a list that is made if it is NULL. */
void ext_group_keep(PyObject **list, PyObject *object);

/** -1: an exception is set. */
int ext_group_ready(PyObject *module);

#endif
