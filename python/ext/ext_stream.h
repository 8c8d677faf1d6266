/* SPDX-License-Identifier: BSD-3-Clause */

/** Order among streams of a CUDA device. */
#ifndef EXT_STREAM_H
#define EXT_STREAM_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/** -1: an exception is set. */
int ext_stream_ready(PyObject *module);

#endif
