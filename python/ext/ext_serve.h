/* SPDX-License-Identifier: BSD-3-Clause */

/** serve(), step_end() and Buffer.serve_stop(). */
#ifndef EXT_SERVE_H
#define EXT_SERVE_H

#include <Python.h>

/** Functions of the module, and methods of Buffer. -1: an exception is set. */
int ext_serve_ready(PyObject *module);

#endif
