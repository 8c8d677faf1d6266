/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * numpy arrays by numpy's C interface; tensors by DLPack's C exchange interface, a table of functions that torch.Tensor carries
 * (2.13 does, releases before 2026 do not): nothing of torch is needed to build this.
 */
#include "fast.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>

/* ---- DLPack, as its specification has it (dmlc.github.io/dlpack, version 1) ---- */

enum { DL_CPU = 1, DL_MAJOR = 1 };
enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_FLOAT8_E4M3FN = 10, DL_FLOAT8_E5M2 = 12 };

typedef struct dl_version {
    uint32_t major, minor;
} dl_version_t;

typedef struct dl_type {
    uint8_t code, bits;
    uint16_t lanes;
} dl_type_t;

typedef struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    dl_type_t type;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: dense */
    uint64_t byte_offset;
} dl_tensor_t;

typedef struct dl_managed {
    dl_version_t version;
    void *context;
    void (*deleter)(struct dl_managed *self);
    uint64_t flags;
    dl_tensor_t tensor;
} dl_managed_t;

typedef struct dl_exchange {
    dl_version_t version;
    struct dl_exchange *previous;
    int (*allocate)(void);
    int (*export_managed)(void);
    int (*import_managed)(dl_managed_t *tensor, void **object_p);
    int (*look)(void *object, dl_tensor_t *tensor_p);
} dl_exchange_t;

static const dl_type_t dl_types[FAST_DTYPES] = {
    [XEP_BF16] = {DL_BFLOAT, 16, 1},         [XEP_FP16] = {DL_FLOAT, 16, 1},
    [XEP_FP32] = {DL_FLOAT, 32, 1},          [XEP_E4M3] = {DL_FLOAT8_E4M3FN, 8, 1},
    [XEP_E5M2] = {DL_FLOAT8_E5M2, 8, 1},     [XEP_U8] = {DL_UINT, 8, 1},
    [XEP_INT32] = {DL_INT, 32, 1},           [XEP_INT64] = {DL_INT, 64, 1},
    [XEP_FP64] = {DL_FLOAT, 64, 1},
};

static struct {
    PyArray_Descr *numpy[FAST_DTYPES];
    PyTypeObject *tensor; /* NULL: tensors are left to Python */
    const dl_exchange_t *exchange;
} known;

static fast_type_t type_of_dl(dl_type_t type)
{
    return (fast_type_t)type.code << 24 | (fast_type_t)type.bits << 16 | type.lanes;
}

static dl_type_t dl_of_type(fast_type_t type)
{
    return (dl_type_t){.code = (uint8_t)(type >> 24), .bits = (uint8_t)(type >> 16), .lanes = (uint16_t)type};
}

/* ---- looking ---- */

static int look_numpy(PyArrayObject *array, fast_array_t *found)
{
    found->kind = FAST_NUMPY;
    found->type = (fast_type_t)PyArray_DESCR(array);
    found->ndim = PyArray_NDIM(array);
    found->unit = PyArray_ITEMSIZE(array);
    found->writable = PyArray_ISWRITEABLE(array);
    found->data = PyArray_DATA(array);
    if (found->ndim < 1 || found->ndim > FAST_DIMS) return 0;
    for (int i = 0; i < found->ndim; i++) {
        found->shape[i] = PyArray_DIM(array, i);
        found->strides[i] = PyArray_STRIDE(array, i);
        if (found->shape[i] == 0) return 0;
    }
    return 1;
}

static int look_torch(PyObject *object, fast_array_t *found)
{
    dl_tensor_t tensor;
    if (known.exchange->look(object, &tensor) != 0) { /* not on a CPU, sparse, ... */
        PyErr_Clear();
        return 0;
    }
    if (tensor.device_type != DL_CPU || tensor.ndim < 1 || tensor.ndim > FAST_DIMS || tensor.strides == NULL) return 0;
    found->kind = FAST_TORCH;
    found->type = type_of_dl(tensor.type);
    found->ndim = tensor.ndim;
    found->unit = 1;
    found->writable = 1;
    found->data = (char *)tensor.data + tensor.byte_offset;
    for (int i = 0; i < found->ndim; i++) {
        found->shape[i] = tensor.shape[i];
        found->strides[i] = tensor.strides[i];
        if (found->shape[i] == 0) return 0;
    }
    return 1;
}

int fast_array_look(PyObject *object, fast_array_t *array_p)
{
    if (PyArray_CheckExact(object)) return look_numpy((PyArrayObject *)object, array_p);
    return known.tensor != NULL && Py_TYPE(object) == known.tensor && look_torch(object, array_p);
}

void fast_type_keep(fast_kind_t kind, fast_type_t type)
{
    if (kind == FAST_NUMPY) Py_INCREF((PyObject *)type);
}

void fast_type_drop(fast_kind_t kind, fast_type_t type)
{
    if (kind == FAST_NUMPY) Py_DECREF((PyObject *)type);
}

/* ---- making ---- */

static PyObject *view_numpy(fast_type_t type, void *address, const fast_array_t *extent, PyObject *base)
{
    PyArray_Descr *descr = (PyArray_Descr *)type;
    npy_intp shape[FAST_DIMS], strides[FAST_DIMS];
    for (int i = 0; i < extent->ndim; i++) shape[i] = extent->shape[i], strides[i] = extent->strides[i];
    Py_INCREF(descr); /* the new array takes one */
    PyObject *array = PyArray_NewFromDescr(&PyArray_Type, descr, extent->ndim, shape, strides, address, NPY_ARRAY_WRITEABLE, NULL);
    if (array == NULL) return NULL;
    Py_INCREF(base);
    if (PyArray_SetBaseObject((PyArrayObject *)array, base) != 0) {
        Py_DECREF(array);
        return NULL;
    }
    return array;
}

/** A view that torch looks at: what it is, and what it holds. */
typedef struct dl_view {
    dl_managed_t managed;
    int64_t shape[FAST_DIMS], strides[FAST_DIMS];
} dl_view_t;

/* Called by the last owner of the storage, on any thread, and also while the interpreter goes down. */
static void delete_view(dl_managed_t *managed)
{
    if (Py_IsInitialized()) {
        PyGILState_STATE state = PyGILState_Ensure();
        Py_DECREF((PyObject *)managed->context);
        PyGILState_Release(state);
    }
    free(managed);
}

static PyObject *view_torch(fast_type_t type, void *address, const fast_array_t *extent, Py_ssize_t size, PyObject *base)
{
    dl_view_t *view = calloc(1, sizeof *view);
    if (view == NULL) return PyErr_NoMemory();
    for (int i = 0; i < extent->ndim; i++) view->shape[i] = extent->shape[i], view->strides[i] = extent->strides[i] / size;
    view->managed = (dl_managed_t){
        .version = {DL_MAJOR, 0},
        .context = base,
        .deleter = delete_view,
        .tensor = {.data = address,
                   .device_type = DL_CPU,
                   .ndim = extent->ndim,
                   .type = dl_of_type(type),
                   .shape = view->shape,
                   .strides = view->strides},
    };
    void *tensor = NULL;
    Py_INCREF(base);
    if (known.exchange->import_managed(&view->managed, &tensor) != 0) {
        delete_view(&view->managed);
        return NULL;
    }
    return tensor;
}

PyObject *fast_array_view(fast_kind_t kind, fast_type_t type, void *address, const fast_array_t *extent, Py_ssize_t size, PyObject *base)
{
    return kind == FAST_NUMPY ? view_numpy(type, address, extent, base) : view_torch(type, address, extent, size, base);
}

PyObject *fast_array_empty(fast_kind_t kind, PyObject *adapter, PyObject *native, Py_ssize_t rows, Py_ssize_t columns)
{
    if (kind == FAST_NUMPY && PyArray_DescrCheck(native)) {
        npy_intp shape[2] = {rows, columns};
        Py_INCREF(native);
        return PyArray_Empty(2, shape, (PyArray_Descr *)native, 0);
    }
    PyObject *name = PyUnicode_InternFromString("empty"), *shape = Py_BuildValue("(nn)", rows, columns), *array = NULL;
    if (name != NULL && shape != NULL) array = PyObject_CallMethodObjArgs(adapter, name, shape, native, NULL);
    Py_XDECREF(name);
    Py_XDECREF(shape);
    return array;
}

fast_type_t fast_array_type(fast_kind_t kind, xep_dtype_t dtype)
{
    if ((unsigned)dtype == 0 || (unsigned)dtype >= FAST_DTYPES) return 0;
    return kind == FAST_NUMPY ? (fast_type_t)known.numpy[dtype] : type_of_dl(dl_types[dtype]);
}

/* ---- what the package says at import ---- */

int fast_arrays_set_numpy(PyObject *types)
{
    for (Py_ssize_t i = 0; i < FAST_DTYPES; i++) {
        PyObject *type = PySequence_GetItem(types, i); /* for good */
        if (type == NULL) return -1;
        if (!PyArray_DescrCheck(type)) {
            PyErr_SetString(PyExc_TypeError, "numpy_types: expected numpy.dtype");
            return -1;
        }
        known.numpy[i] = (PyArray_Descr *)type;
    }
    return 0;
}

int fast_arrays_set_torch(PyObject *type, PyObject *capsule)
{
    const dl_exchange_t *exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    while (exchange != NULL && exchange->version.major > DL_MAJOR) exchange = exchange->previous;
    if (PyErr_Occurred()) return -1;
    if (exchange == NULL || exchange->version.major != DL_MAJOR || !PyType_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "torch: expected the type of tensors, and DLPack's exchange interface of version 1");
        return -1;
    }
    Py_INCREF(type);
    known.tensor = (PyTypeObject *)type;
    known.exchange = exchange;
    return 0;
}

int fast_arrays_import(void)
{
    import_array1(-1);
    return 0;
}
