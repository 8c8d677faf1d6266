/* SPDX-License-Identifier: BSD-3-Clause */

#include "ext_arrays.h"
#include "ext_module.h"

#include <stddef.h>

/*
 * Called by the last owner of the memory, on any thread, and also while the interpreter goes down: then keeper is not
 * touched any more.
 */
static void delete_view(void *view, void *keeper)
{
    if (Py_IsInitialized()) {
        PyGILState_STATE state = PyGILState_Ensure();
        Py_DECREF((PyObject *)keeper);
        PyGILState_Release(state);
    }
    free(view);
}

static void delete_managed(dl_managed_t *managed)
{
    delete_view((char *)managed - offsetof(ext_view_t, managed), managed->context);
}

static void delete_unversioned(dl_unversioned_t *unversioned)
{
    delete_view((char *)unversioned - offsetof(ext_view_t, unversioned), unversioned->context);
}

/*
 * The shapes are in the same piece of memory, so they are there until the deleter is called. That frees it without the
 * GIL, so it is not of Python's allocator. DLPack's strides count elements.
 */
ext_view_t *ext_view_new(const ext_array_t *look, PyObject *keeper)
{
    ext_view_t *view = calloc(1, sizeof *view);
    const int is_host = look->element.where == EXT_HOST;
    if (view == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (int i = 0; i < look->ndim; i++)
        view->shape[i] = look->shape[i], view->strides[i] = look->strides[i] / ext_dtype_size(look->element.dtype);
    const dl_tensor_t tensor = {
        .data = look->data,
        .device_type = is_host ? DL_CPU : DL_CUDA,
        .device_id = is_host ? 0 : look->element.where - 1,
        .ndim = look->ndim,
        .type = ext_dtype_dl(look->element.dtype),
        .shape = view->shape,
        .strides = view->strides,
    };
    Py_INCREF(keeper);
    view->managed =
        (dl_managed_t){.version = {DL_MAJOR, 0}, .context = keeper, .deleter = delete_managed, .tensor = tensor};
    view->unversioned = (dl_unversioned_t){.context = keeper, .deleter = delete_unversioned, .tensor = tensor};
    return view;
}

/* ---- what others show ---- */

/* As arrays.look() has it. The memory is the array's, with or without the capsule. */
static PyObject *look_capsule(PyObject *Py_UNUSED(module), PyObject *capsule)
{
    const dl_unversioned_t *managed = PyCapsule_GetPointer(capsule, "dltensor");
    if (managed == NULL) return NULL;
    const dl_tensor_t *tensor = &managed->tensor;
    const int64_t size = tensor->type.bits * tensor->type.lanes / 8;
    PyObject *shape = PyTuple_New(tensor->ndim), *strides = PyTuple_New(tensor->ndim);
    int64_t dense = 1;
    for (int i = tensor->ndim; shape != NULL && strides != NULL && i-- > 0; dense *= tensor->shape[i]) {
        const int64_t step = tensor->strides != NULL ? tensor->strides[i] : dense;
        PyTuple_SET_ITEM(shape, i, PyLong_FromLongLong(tensor->shape[i]));
        PyTuple_SET_ITEM(strides, i, PyLong_FromLongLong(step * size));
    }
    const unsigned long long address = (uintptr_t)tensor->data + tensor->byte_offset;
    return Py_BuildValue("(KNNii)", address, shape, strides, (int)ext_dtype_of_dl(tensor->type), 1);
}

PyMethodDef ext_view_functions[] = {
    {"look_capsule", look_capsule, METH_O,
     "look_capsule($module, capsule)\n--\n\nAddress, shape, strides in bytes, element type or 0, and 1: of DLPack's."},
    {NULL, NULL, 0, NULL},
};
