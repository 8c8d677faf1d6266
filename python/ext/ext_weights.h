/* SPDX-License-Identifier: BSD-3-Clause */

/** Weights: those of all experts, each in the memory of its owner. Arrays over them are counted. */
#ifndef EXT_WEIGHTS_H
#define EXT_WEIGHTS_H

#include "ext_elements.h"
#include "ext_group.h"

typedef struct ext_weights {
    PyObject_HEAD
    ext_group_t *group;
    xep_weights_t *weights; /* NULL: closed, or not made yet */
    ext_element_t element;
    Py_ssize_t count; /* elements of an expert */
    Py_ssize_t alive; /* arrays */
} ext_weights_t;

/** -1: an exception is set. */
int ext_weights_ready(PyObject *module);

#endif
