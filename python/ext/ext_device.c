/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Only a description: nothing here touches the memory, and nothing waits for a stream. What is read through it must be
 * there in the order of the reader's stream, as xep.h says.
 */
#include "ext_arrays.h"

#include "ext_python.h"

#include <stddef.h>
#include <structmember.h>

typedef struct ext_device {
    PyObject_HEAD
    PyObject *base; /* keeps the memory; NULL: there is none */
    ext_array_t look;
} ext_device_t;

static PyTypeObject *device_type;

/* base is whatever keeps the memory from being used again; for as long as the array lives, it does. */
PyObject *ext_device_new(const ext_array_t *look, PyObject *base)
{
    ext_device_t *array = (ext_device_t *)device_type->tp_alloc(device_type, 0);
    if (array == NULL) return NULL;
    Py_XINCREF(base);
    array->base = base;
    array->look = *look;
    array->look.element.kind = EXT_DEVICE;
    array->look.writable = 1;
    return (PyObject *)array;
}

/* The exact type: nobody derives from it. */
int ext_device_check(PyObject *object)
{
    return Py_TYPE(object) == device_type;
}

const ext_array_t *ext_device_look(PyObject *object)
{
    return &((ext_device_t *)object)->look;
}

/* ---- what it says ---- */

static PyObject *get_shape(PyObject *self, void *Py_UNUSED(unused))
{
    const ext_array_t *look = ext_device_look(self);
    return ext_tuple_of(look->ndim, look->shape);
}

static PyObject *get_strides(PyObject *self, void *Py_UNUSED(unused))
{
    const ext_array_t *look = ext_device_look(self);
    return ext_tuple_of(look->ndim, look->strides);
}

static PyObject *get_dtype(PyObject *self, void *Py_UNUSED(unused))
{
    return ext_call_helper("Dtype", "(i)", (int)((ext_device_t *)self)->look.element.dtype);
}

/* where is 0 in host memory, and so one more than the number that the driver has for the device. */
static PyObject *get_device(PyObject *self, void *Py_UNUSED(unused))
{
    return PyLong_FromLong(((ext_device_t *)self)->look.element.where - 1);
}

static PyObject *get_nbytes(PyObject *self, void *Py_UNUSED(unused))
{
    const ext_array_t *look = &((ext_device_t *)self)->look;
    Py_ssize_t bytes = ext_dtype_size(look->element.dtype);
    for (int i = 0; i < look->ndim; i++) bytes *= look->shape[i];
    return PyLong_FromSsize_t(bytes);
}

/*
 * As numpy arrays are: bfloat16 as uint16, 8-bit floats as uint8. stream None: nobody is to wait here. "N" gives the
 * tuples away.
 */
static PyObject *get_interface(PyObject *self, void *Py_UNUSED(unused))
{
    static const char *const types[EXT_DTYPES] = {
        [XEP_BF16] = "<u2", [XEP_FP16] = "<f2", [XEP_FP32] = "<f4",   [XEP_E4M3] = "|u1",
        [XEP_E5M2] = "|u1", [XEP_U8] = "|u1",   [XEP_INT32] = "<i4",  [XEP_INT64] = "<i8",
        [XEP_FP64] = "<f8", [XEP_INT8] = "|i1", [XEP_E2M1X2] = "|u1",
    };
    const ext_array_t *look = &((ext_device_t *)self)->look;
    return Py_BuildValue("{s:N,s:N,s:s,s:(KO),s:O,s:i}", "shape", get_shape(self, NULL), "strides",
                         get_strides(self, NULL), "typestr", types[look->element.dtype], "data",
                         (unsigned long long)(uintptr_t)look->data, Py_False, "stream", Py_None, "version", 3);
}

static Py_ssize_t length(PyObject *self)
{
    return ((ext_device_t *)self)->look.shape[0];
}

static PyObject *represent(PyObject *self)
{
    const ext_array_t *look = &((ext_device_t *)self)->look;
    PyObject *shape = get_shape(self, NULL);
    PyObject *text = shape != NULL
                         ? PyUnicode_FromFormat("<xep.DeviceArray of shape %R, %zd bytes an element, on device %d>",
                                                shape, ext_dtype_size(look->element.dtype), look->element.where - 1)
                         : NULL;
    Py_XDECREF(shape);
    return text;
}

/* ---- DLPack ---- */

/* Whoever takes the tensor gives the capsule another name, and deletes the tensor himself. */
static void delete_capsule(PyObject *capsule)
{
    if (!PyCapsule_IsValid(capsule, "dltensor")) return;
    dl_unversioned_t *managed = PyCapsule_GetPointer(capsule, "dltensor");
    managed->deleter(managed);
}

/*
 * A new capsule. The view has a reference to the array, and with it the memory; without a capsule nobody would give it
 * back, so the view is ended here.
 */
static PyObject *wrap(ext_device_t *array)
{
    ext_view_t *view = ext_view_new(&array->look, (PyObject *)array);
    if (view == NULL) return NULL;
    PyObject *capsule = PyCapsule_New(&view->unversioned, "dltensor", delete_capsule);
    if (capsule == NULL) view->unversioned.deleter(&view->unversioned);
    return capsule;
}

/*
 * A copy, or memory elsewhere, is not to be had here: BufferError. Versions are for the consumer: it takes what it is
 * given. stream is accepted, since consumers pass it, and not looked at: nothing is enqueued here.
 */
static PyObject *export_dlpack(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
    int type, id;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$OOOO", names, &stream, &version, &device, &copy)) return NULL;
    if (copy == Py_True) {
        PyErr_SetString(PyExc_BufferError, "copy: expected None or False (a DeviceArray is not copied)");
        return NULL;
    }
    if (device != Py_None) {
        if (!PyArg_ParseTuple(device, "ii", &type, &id)) return NULL;
        if (type != DL_CUDA || id != ((ext_device_t *)self)->look.element.where - 1) {
            PyErr_Format(PyExc_BufferError, "dl_device: expected (%d, %d), where the rows are, got (%d, %d)", DL_CUDA,
                         ((ext_device_t *)self)->look.element.where - 1, type, id);
            return NULL;
        }
    }
    return wrap((ext_device_t *)self);
}

static PyObject *tell_device(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return Py_BuildValue("(ii)", DL_CUDA, ((ext_device_t *)self)->look.element.where - 1);
}

/* ---- its type ---- */

/* Not a type of the collector, so ext_dealloc() is not for it. The last reference to base lets go of the slot. */
static void dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_CLEAR(((ext_device_t *)self)->base);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))export_dlpack, METH_VARARGS | METH_KEYWORDS, NULL},
    {"__dlpack_device__", tell_device, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"shape", get_shape, NULL, "Extents.", NULL},
    {"strides", get_strides, NULL, "Bytes from one element to the next, in each direction.", NULL},
    {"dtype", get_dtype, NULL, "Dtype: element type.", NULL},
    {"device", get_device, NULL, "Number of the CUDA device.", NULL},
    {"nbytes", get_nbytes, NULL, "Bytes of all elements.", NULL},
    {"__cuda_array_interface__", get_interface, NULL, "For cupy, numba, torch and others.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {Py_tp_repr, represent},
    {Py_sq_length, length},
    {Py_tp_doc,
     "Rows in device memory, without a copy, for what takes __cuda_array_interface__ (cupy.asarray, numba, torch) or\n"
     "DLPack (from_dlpack). It keeps its memory from being used again for as long as it lives, and says nothing of\n"
     "streams: read it on the stream of the operation, or on one that waits for that."},
    {0, NULL},
};

/* Not known to the garbage collector: nothing that it refers to can refer to it. */
static PyType_Spec spec = {"xep.DeviceArray", sizeof(ext_device_t), 0, Py_TPFLAGS_DEFAULT, slots};

int ext_device_ready(PyObject *module)
{
    return ext_add_type(module, &spec, 0, &device_type);
}
