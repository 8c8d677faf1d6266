/* SPDX-License-Identifier: BSD-3-Clause */

/** DeviceArray: rows in device memory, for whoever takes __cuda_array_interface__ or DLPack. */
#ifndef EXT_DEVICE_H
#define EXT_DEVICE_H

#include "ext_elements.h"

/** An array of this look, which base keeps; base may be NULL where there are no elements. */
PyObject *ext_device_new(const ext_array_t *look, PyObject *base);

int ext_device_check(PyObject *object);

/** Of a DeviceArray. */
const ext_array_t *ext_device_look(PyObject *object);

/** -1: an exception is set. */
int ext_device_ready(PyObject *module);

#endif
