/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Arrays of numpy and of torch as one struct, without a conversion and without torch's headers. The quick ways are
 * here; each has a slow one by arrays.py beside it for what is rare.
 */
#include "ext_arrays.h"

#include "ext_python.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>

/* What elements are in numpy, which has no bfloat16 and no 8-bit floats. */
static const int types[EXT_DTYPES] = {
    [XEP_BF16] = NPY_UINT16,  [XEP_FP16] = NPY_FLOAT16, [XEP_FP32] = NPY_FLOAT32, [XEP_E4M3] = NPY_UINT8,
    [XEP_E5M2] = NPY_UINT8,   [XEP_U8] = NPY_UINT8,     [XEP_INT32] = NPY_INT32,  [XEP_INT64] = NPY_INT64,
    [XEP_FP64] = NPY_FLOAT64, [XEP_INT8] = NPY_INT8,    [XEP_E2M1X2] = NPY_UINT8,
};

/* Of the package ml_dtypes, once there is an array of one; NULL: numpy has its own. */
static PyArray_Descr *ml_types[EXT_DTYPES];

/* What torch has told of itself, once there is a tensor. */
static struct {
    PyTypeObject *tensor;          /* NULL: not imported yet */
    PyObject *empty, *keywords;    /* torch.empty, and the names of its arguments: ("dtype", "device") */
    PyObject *cpu;                 /* torch.device, as a program may have set another default */
    PyObject *natives;             /* tuple of torch.dtype, by xep_dtype_t */
    const dl_exchange_t *exchange; /* NULL: Python is asked */
} torch;

/* ---- looking ---- */

/* numpy has no bf16 and no 8-bit floats: their bits come as unsigned integers of that width, and dtype says more. */
static xep_dtype_t numpy_dtype(char kind, Py_ssize_t size)
{
    switch (kind) {
    case 'u': return size == 1 ? XEP_U8 : size == 2 ? XEP_BF16 : XEP_DTYPE_DEFAULT;
    case 'i': return size == 1 ? XEP_INT8 : size == 4 ? XEP_INT32 : size == 8 ? XEP_INT64 : XEP_DTYPE_DEFAULT;
    case 'f': return size == 2 ? XEP_FP16 : size == 4 ? XEP_FP32 : size == 8 ? XEP_FP64 : XEP_DTYPE_DEFAULT;
    default: return XEP_DTYPE_DEFAULT;
    }
}

/* Types that a package has added: other packages' than ml_dtypes stay unknown. */
static int look_ml(const PyArray_Descr *descr, ext_element_t *element)
{
    if (ml_types[XEP_BF16] == NULL) {
        PyObject *met = ext_call_helper("meet_ml_dtypes", "()"); /* calls use_ml_dtypes() */
        if (met == NULL) return -1;
        Py_DECREF(met);
    }
    element->kind = EXT_ML;
    for (int i = 1; i < EXT_DTYPES; i++)
        if (ml_types[i] != NULL && ml_types[i]->type_num == descr->type_num) element->dtype = (xep_dtype_t)i;
    return 0;
}

/* Bytes in the order of another machine have no type here: the library would read them wrong. */
static int look_numpy(PyArrayObject *array, ext_array_t *look)
{
    PyArray_Descr *descr = PyArray_DESCR(array);
    look->element = (ext_element_t){.kind = EXT_NUMPY};
    if (PyTypeNum_ISUSERDEF(descr->type_num)) {
        if (look_ml(descr, &look->element) != 0) return -1;
    } else if (PyArray_ISNBO(descr->byteorder)) {
        look->element.dtype = numpy_dtype(descr->kind, PyArray_ITEMSIZE(array));
    }
    look->data = PyArray_DATA(array);
    look->writable = PyArray_ISWRITEABLE(array);
    look->ndim = PyArray_NDIM(array);
    for (int i = 0; i < look->ndim && i < EXT_DIMS; i++)
        look->shape[i] = PyArray_DIM(array, i), look->strides[i] = PyArray_STRIDE(array, i);
    return 0;
}

/*
 * By a function of arrays.py: a tensor that DLPack cannot describe (not strided, a subclass, or torch lacks the table),
 * or an array of another package. Which device such an array is on its interface does not say: so it is taken to be
 * where it has to be, and the library asks the driver.
 */
static int look_by_helper(const char *function, ext_kind_t kind, const char *name, PyObject *object, ext_where_t where,
                          ext_array_t *look)
{
    unsigned long long address;
    PyObject *shape, *strides, *found = ext_call_helper(function, "(sOi)", name, object, where);
    int code;
    if (found == NULL) return -1;
    int ok = PyArg_ParseTuple(found, "KO!O!ii", &address, &PyTuple_Type, &shape, &PyTuple_Type, &strides, &code,
                              &look->writable);
    look->element = (ext_element_t){.kind = kind, .dtype = (xep_dtype_t)code, .where = where};
    look->data = (char *)(uintptr_t)address;
    look->ndim = ok ? (int)PyTuple_GET_SIZE(shape) : 0;
    for (int i = 0; i < look->ndim && i < EXT_DIMS; i++) {
        look->shape[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, i));
        look->strides[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(strides, i));
    }
    Py_DECREF(found);
    return PyErr_Occurred() != NULL ? -1 : 0;
}

/* -1: neither host memory nor a CUDA device. */
static ext_where_t where_is(const dl_tensor_t *tensor)
{
    return tensor->device_type == DL_CPU ? EXT_HOST : tensor->device_type == DL_CUDA ? tensor->device_id + 1 : -1;
}

/*
 * The exchange table fills a struct without a call of Python and takes no reference, so there is nothing to give back.
 * It refuses what it cannot describe by an exception, which is dropped: the slow way finds better words, or a way.
 */
static int look_torch(const char *name, PyObject *object, ext_where_t where, ext_array_t *look)
{
    dl_tensor_t tensor;
    int is_found = torch.exchange != NULL && Py_TYPE(object) == torch.tensor;
    if (is_found && torch.exchange->look(object, &tensor) != 0) {
        PyErr_Clear();
        is_found = 0;
    }
    if (is_found && where == EXT_ANYWHERE) where = where_is(&tensor);
    if (!is_found || (tensor.strides == NULL && tensor.ndim > 0) || where < 0 || where_is(&tensor) != where)
        return look_by_helper("look", EXT_TORCH, name, object, where, look); /* which has the words */
    look->element = (ext_element_t){.kind = EXT_TORCH, .dtype = ext_dtype_of_dl(tensor.type), .where = where};
    look->data = (char *)tensor.data + tensor.byte_offset;
    look->writable = 1;
    look->ndim = tensor.ndim;
    for (int i = 0; i < look->ndim && i < EXT_DIMS; i++)
        look->shape[i] = tensor.shape[i], look->strides[i] = tensor.strides[i] * (tensor.type.bits / 8);
    return 0;
}

/*
 * torch is met when the first object comes that is no array of numpy: until then nothing here has imported it, and a
 * program without torch never does. 1: it is a tensor.
 */
static int is_tensor(const char *name, PyObject *object)
{
    if (torch.tensor != NULL && PyObject_TypeCheck(object, torch.tensor)) return 1;
    PyObject *found = ext_call_helper("meet", "(sO)", name, object); /* calls use_torch(), or raises */
    const int is_true = found != NULL ? PyObject_IsTrue(found) : -1;
    Py_XDECREF(found);
    return is_true;
}

/* A numpy array, or a DeviceArray, in the wrong memory. Python has the words. */
static int refuse_elsewhere(const char *name, PyObject *object, ext_where_t where)
{
    Py_XDECREF(ext_call_helper("refuse_elsewhere", "(sOi)", name, object, where));
    return -1;
}

int ext_array_look(const char *name, PyObject *object, ext_where_t where, ext_array_t *array_p)
{
    if (PyArray_Check(object))
        return where == EXT_HOST ? look_numpy((PyArrayObject *)object, array_p) : refuse_elsewhere(name, object, where);
    if (ext_device_check(object)) {
        *array_p = *ext_device_look(object);
        return array_p->element.where == where ? 0 : refuse_elsewhere(name, object, where);
    }
    const int is_torch = is_tensor(name, object);
    if (is_torch < 0) return -1;
    if (!is_torch) return look_by_helper("look_interface", EXT_DEVICE, name, object, where, array_p);
    if (look_torch(name, object, where, array_p) != 0) return -1;
    return ext_tensor_check(name, object, array_p->element.dtype);
}

/* ---- asking, without an error ---- */

/* As torch has it: the stride of an extent of 1 says nothing, and without elements there is none. */
static int is_dense(const ext_array_t *look)
{
    Py_ssize_t stride = ext_dtype_size(look->element.dtype);
    for (int i = look->ndim; i-- > 0; stride *= look->shape[i]) {
        if (look->shape[i] == 0) return 1;
        if (look->shape[i] != 1 && look->strides[i] != stride) return 0;
    }
    return 1;
}

/* extents: -1: any. -1: an exception is set. */
static int fits(const ext_array_t *look, unsigned long dtypes, PyObject *const *extents, Py_ssize_t count)
{
    if (look->ndim != count || count > EXT_DIMS || (dtypes >> look->element.dtype & 1) == 0) return 0;
    for (int i = 0; i < look->ndim; i++) {
        const Py_ssize_t extent = PyLong_AsSsize_t(extents[i]);
        if (extent == -1 && PyErr_Occurred()) return -1;
        if (extent >= 0 && look->shape[i] != extent) return 0;
    }
    return is_dense(look);
}

/* A tensor that does not fit at first sight goes to refuse, which knows more types, and writes the error. */
static PyObject *check_tensor(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    ext_array_t look = {.ndim = 0};
    if (nargs <= 5) PyErr_SetString(PyExc_TypeError, "check_tensor: expected refuse, name, tensor, where, dtypes, ...");
    const ext_where_t where = nargs > 5 ? (ext_where_t)PyLong_AsLong(args[3]) : EXT_HOST;
    const unsigned long dtypes = nargs > 5 ? PyLong_AsUnsignedLong(args[4]) : 0;
    if (PyErr_Occurred()) return NULL;
    int is_so = Py_TYPE(args[2]) == torch.tensor;
    if (is_so && look_torch("", args[2], where, &look) != 0) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL; /* an interrupt */
        PyErr_Clear();
        is_so = 0;
    }
    is_so = is_so && look.element.where >= 0;
    if (is_so && (is_so = fits(&look, dtypes, args + 5, nargs - 5)) < 0) return NULL;
    if (!is_so) return PyObject_Vectorcall(args[0], args + 1, (size_t)nargs - 1, NULL);
    const Py_ssize_t found[1 + EXT_DIMS] = {look.element.where, look.shape[0], look.shape[1], look.shape[2]};
    return ext_tuple_of(1 + look.ndim, found);
}

/* ---- making ---- */

static PyArray_Descr *descr_of(const ext_element_t *element)
{
    PyArray_Descr *own = element->kind == EXT_ML ? ml_types[element->dtype] : NULL;
    if (own == NULL) return PyArray_DescrFromType(types[element->dtype]);
    Py_INCREF(own);
    return own;
}

/* The type is borrowed from natives, which stays. Looking at a tensor that was made just now tells its address. */
static PyObject *new_torch(const ext_element_t *element, int ndim, const Py_ssize_t *shape, char **data_p)
{
    PyObject *args[3] = {ext_tuple_of(ndim, shape), PyTuple_GET_ITEM(torch.natives, element->dtype), torch.cpu};
    PyObject *tensor = NULL;
    ext_array_t look;
    if (args[0] != NULL)
        tensor = element->where == EXT_HOST ? PyObject_Vectorcall(torch.empty, args, 1, torch.keywords)
                                            : ext_call_helper("empty", "(OOi)", args[0], args[1], element->where - 1);
    if (tensor != NULL && data_p != NULL) {
        if (look_torch("out", tensor, element->where, &look) != 0) Py_CLEAR(tensor);
        else *data_p = look.data;
    }
    Py_XDECREF(args[0]);
    return tensor;
}

/* Device memory is the program's to allocate, by what it allocates its own with. */
static PyObject *new_device(const ext_element_t *element, int ndim, const Py_ssize_t *shape)
{
    ext_array_t look = {.element = *element, .ndim = ndim, .writable = 1};
    Py_ssize_t count = 1, bytes = ext_dtype_size(element->dtype);
    for (int i = ndim; i-- > 0;) {
        look.shape[i] = shape[i], look.strides[i] = bytes;
        bytes *= shape[i];
        count *= shape[i];
    }
    if (count == 0) return ext_device_new(&look, NULL);
    PyErr_SetString(PyExc_TypeError, "out: expected an array to write to (xep allocates no device memory)");
    return NULL;
}

/* PyArray_Empty() takes over the reference to the descr. */
PyObject *ext_array_new(const ext_element_t *element, int ndim, const Py_ssize_t *shape, char **data_p)
{
    if (element->kind == EXT_TORCH) return new_torch(element, ndim, shape, data_p);
    if (element->kind == EXT_DEVICE) return new_device(element, ndim, shape);
    PyObject *array = PyArray_Empty(ndim, (npy_intp *)(uintptr_t)shape, descr_of(element), 0);
    if (array != NULL && data_p != NULL) *data_p = PyArray_DATA((PyArrayObject *)array);
    return array;
}

/*
 * PyArray_SetBaseObject() takes over the reference to base, also when it fails. From then on the array keeps the slot.
 */
static PyObject *view_numpy(const ext_array_t *look, PyObject *base, PyTypeObject *type)
{
    npy_intp shape[EXT_DIMS], strides[EXT_DIMS];
    for (int i = 0; i < look->ndim; i++) shape[i] = look->shape[i], strides[i] = look->strides[i];
    PyObject *array = PyArray_NewFromDescr(type, descr_of(&look->element), look->ndim, shape, strides, look->data,
                                           NPY_ARRAY_WRITEABLE, NULL);
    if (array == NULL) return NULL;
    Py_INCREF(base);
    if (PyArray_SetBaseObject((PyArrayObject *)array, base) != 0) Py_CLEAR(array);
    return array;
}

static PyObject *view_torch(const ext_array_t *look, PyObject *base)
{
    ext_view_t *view = ext_view_new(look, base);
    void *tensor = NULL;
    if (view == NULL) return NULL;
    if (torch.exchange->import_managed(&view->managed, &tensor) == 0) return tensor;
    view->managed.deleter(&view->managed);
    return NULL;
}

/*
 * torch.frombuffer() makes a tensor over base itself, so base is kept by it; of the address only the offset is needed.
 */
static PyObject *view_torch_slowly(const ext_array_t *look, PyObject *base)
{
    Py_buffer memory;
    if (look->element.where != EXT_HOST) {
        PyObject *array = ext_device_new(look, base);
        return array != NULL ? ext_call_helper("view_device", "(N)", array) : NULL;
    }
    if (PyObject_GetBuffer(base, &memory, PyBUF_SIMPLE) != 0) return NULL;
    const Py_ssize_t offset = look->data - (char *)memory.buf;
    PyBuffer_Release(&memory);
    return ext_call_helper("view", "(OnNNO)", base, offset, ext_tuple_of(look->ndim, look->shape),
                           ext_tuple_of(look->ndim, look->strides),
                           PyTuple_GET_ITEM(torch.natives, look->element.dtype));
}

/* An array without elements holds no memory and need not keep a slot from being used again. */
PyObject *ext_array_view(const ext_array_t *look, PyObject *base)
{
    for (int i = 0; i < look->ndim; i++)
        if (look->shape[i] == 0) return ext_array_new(&look->element, look->ndim, look->shape, NULL);
    switch (look->element.kind) {
    case EXT_NUMPY:
    case EXT_ML: return view_numpy(look, base, &PyArray_Type);
    case EXT_DEVICE: return ext_device_new(look, base);
    default: return torch.exchange != NULL ? view_torch(look, base) : view_torch_slowly(look, base);
    }
}

/* The class is had once, for good. */
PyObject *ext_array_view_to_write(const ext_array_t *look, PyObject *base)
{
    static PyTypeObject *bits;
    if (look->element.kind != EXT_NUMPY || !ext_element_is_bits(&look->element)) return ext_array_view(look, base);
    if (bits == NULL) {
        PyObject *module = PyImport_ImportModule("xep.dtypes");
        if (module != NULL) bits = (PyTypeObject *)PyObject_GetAttrString(module, "Bits");
        Py_XDECREF(module);
        if (bits == NULL) return NULL;
    }
    return view_numpy(look, base, bits);
}

/* ---- what the package says ---- */

/*
 * A newer torch may have a newer table: it is asked for one of our version, along the chain of older ones that tables
 * carry for this. All is read first and set last, so a failure leaves what was there.
 */
static PyObject *use_torch(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tensor, *empty, *cpu, *natives, *capsule;
    if (!PyArg_ParseTuple(args, "O!OOO!O", &PyType_Type, &tensor, &empty, &cpu, &PyTuple_Type, &natives, &capsule))
        return NULL;
    const dl_exchange_t *exchange = NULL;
    if (capsule != Py_None) {
        exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        if (exchange == NULL) return NULL;
    }
    while (exchange != NULL && exchange->version.major > DL_MAJOR) exchange = exchange->previous;
    if (exchange != NULL && exchange->version.major != DL_MAJOR) exchange = NULL;
    PyObject *keywords = Py_BuildValue("(ss)", "dtype", "device");
    if (keywords == NULL) return NULL;
    Py_INCREF(tensor); /* all of these for good */
    Py_INCREF(empty);
    Py_INCREF(cpu);
    Py_INCREF(natives);
    torch.tensor = (PyTypeObject *)tensor;
    torch.empty = empty;
    torch.cpu = cpu;
    torch.keywords = keywords;
    torch.natives = natives;
    torch.exchange = exchange;
    Py_RETURN_NONE;
}

static PyObject *use_ml_dtypes(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *found[3];
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyArrayDescr_Type, &found[0], &PyArrayDescr_Type, &found[1],
                          &PyArrayDescr_Type, &found[2]))
        return NULL;
    for (int i = 0; i < 3; i++) Py_INCREF(found[i]); /* for good */
    ml_types[XEP_BF16] = (PyArray_Descr *)found[0];
    ml_types[XEP_E4M3] = (PyArray_Descr *)found[1];
    ml_types[XEP_E5M2] = (PyArray_Descr *)found[2];
    Py_RETURN_NONE;
}

int ext_array_stream(int device, void **stream_p)
{
    const int is_found = torch.exchange != NULL && torch.exchange->current_stream(DL_CUDA, device, stream_p) == 0;
    if (!is_found) PyErr_Clear();
    return is_found;
}

static PyMethodDef functions[] = {
    {"check_tensor", (PyCFunction)(void (*)(void))check_tensor, METH_FASTCALL,
     "check_tensor($module, refuse, name, tensor, where, dtypes, *extents)\n--\n\n"
     "(where, *extents) of a contiguous tensor in host memory (where: 0) or that of a CUDA device (its number and one\n"
     "more; -1: in either), of these element types (a bit for each Dtype) and extents (-1: any); else what refuse\n"
     "says."},
    {"use_ml_dtypes", use_ml_dtypes, METH_VARARGS, "The numpy.dtype of bfloat16, float8_e4m3fn and float8_e5m2."},
    {"use_torch", use_torch, METH_VARARGS,
     "torch.Tensor, torch.empty, the device of host memory, the torch.dtype of each Dtype, the capsule of DLPack's\n"
     "exchange interface or None."},
    {NULL, NULL, 0, NULL},
};

int ext_arrays_ready(PyObject *module)
{
    import_array1(-1);
    return PyModule_AddFunctions(module, functions);
}
