/* SPDX-License-Identifier: BSD-3-Clause */

/** The module xep._ext: all calls of the library, and the objects of every step. */
#ifndef EXT_MODULE_H
#define EXT_MODULE_H

#include "ext_library.h"

/** Of a method that takes arguments by position and by name. */
#define EXT_KEYWORDS(_function) (PyCFunction)(void (*)(void))(_function), METH_FASTCALL | METH_KEYWORDS

/** Adds a type to the module. instantiable: by Python. type_p may be NULL. -1: an exception is set. */
int ext_add_type(PyObject *module, PyType_Spec *spec, int instantiable, PyTypeObject **type_p);

/** Frees an object that the garbage collector knows. weak: its weak references; NULL: none. */
void ext_dealloc(PyObject *self, PyObject *weak, inquiry clear);

#endif
