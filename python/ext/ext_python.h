/* SPDX-License-Identifier: BSD-3-Clause */

/** What every file needs of Python: types and their methods, tuples of numbers, calls of arrays.py. */
#ifndef EXT_PYTHON_H
#define EXT_PYTHON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/** Of a method that takes arguments by position and by name. */
#define EXT_KEYWORDS(_function) (PyCFunction)(void (*)(void))(_function), METH_FASTCALL | METH_KEYWORDS

/** Adds a type to the module. instantiable: by Python. type_p may be NULL. -1: an exception is set. */
int ext_add_type(PyObject *module, PyType_Spec *spec, int instantiable, PyTypeObject **type_p);

/** Adds to a type of the module, by its name there, what could be in its spec. getset may be NULL. -1: an exception. */
int ext_add_methods(PyObject *module, const char *type, PyMethodDef *methods, PyGetSetDef *getset);

/** Frees an object that the garbage collector knows. weak: its weak references; NULL: none. */
void ext_dealloc(PyObject *self, PyObject *weak, inquiry clear);

/** A tuple of these numbers. */
PyObject *ext_tuple_of(int count, const Py_ssize_t *numbers);

/** Calls a function of arrays.py. */
PyObject *ext_call_helper(const char *function, const char *format, ...);

#endif
