/* SPDX-License-Identifier: BSD-3-Clause */

#include "ext_python.h"

/* Imported in each call, which is a look into sys.modules: what comes here is rare, or slow anyway. */
PyObject *ext_call_helper(const char *function, const char *format, ...)
{
    PyObject *helpers = PyImport_ImportModule("xep.arrays"), *callable = NULL, *args = NULL, *result = NULL;
    va_list list;
    if (helpers != NULL) callable = PyObject_GetAttrString(helpers, function);
    va_start(list, format);
    if (callable != NULL) args = Py_VaBuildValue(format, list);
    va_end(list);
    if (args != NULL) result = PyObject_CallObject(callable, args);
    Py_XDECREF(helpers);
    Py_XDECREF(callable);
    Py_XDECREF(args);
    return result;
}

PyObject *ext_tuple_of(int count, const Py_ssize_t *numbers)
{
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple != NULL && i < count; i++) PyTuple_SET_ITEM(tuple, i, PyLong_FromSsize_t(numbers[i]));
    if (tuple != NULL && PyErr_Occurred() != NULL) Py_CLEAR(tuple);
    return tuple;
}

/*
 * type_p is borrowed from the module, which lives as long as the process. A type without tp_new cannot be made by a
 * user, whose object would have none of the things that methods count on.
 */
int ext_add_type(PyObject *module, PyType_Spec *spec, int instantiable, PyTypeObject **type_p)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    if (type == NULL) return -1;
    if (!instantiable) type->tp_new = NULL;
    const int ret = PyModule_AddType(module, type);
    Py_DECREF(type); /* the module keeps it */
    if (ret == 0 && type_p != NULL) *type_p = type;
    return ret;
}

/* Takes descriptor over; NULL: an exception is set. */
static int add_to_type(PyObject *type, const char *name, PyObject *descriptor)
{
    const int ret = descriptor != NULL ? PyObject_SetAttrString(type, name, descriptor) : -1;
    Py_XDECREF(descriptor);
    return ret;
}

/* So a file adds its methods to types of files below it, and none of these has a table that names what is above. */
int ext_add_methods(PyObject *module, const char *type, PyMethodDef *methods, PyGetSetDef *getset)
{
    PyObject *found = PyObject_GetAttrString(module, type);
    int ret = found != NULL ? 0 : -1;
    for (; ret == 0 && methods->ml_name != NULL; methods++)
        ret = add_to_type(found, methods->ml_name, PyDescr_NewMethod((PyTypeObject *)found, methods));
    for (; ret == 0 && getset != NULL && getset->name != NULL; getset++)
        ret = add_to_type(found, getset->name, PyDescr_NewGetSet((PyTypeObject *)found, getset));
    Py_XDECREF(found);
    return ret;
}

/*
 * The collector must not see an object that is half gone, so it is told first; weak references go before the contents,
 * as their callbacks may look at the object. Objects hold their type, which a spec has made on the heap.
 */
void ext_dealloc(PyObject *self, PyObject *weak, inquiry clear)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (weak != NULL) PyObject_ClearWeakRefs(self);
    clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}
