/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * What a call of every step is given: arguments are found by their interned names, as the time for this is part of
 * every operation. What is wrong with one is told by arrays.py, which then has time for a whole sentence.
 */
#include "ext_args.h"

#include "ext_python.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- which is which ---- */

/*
 * Reads the names out of the signature: $self is skipped, as is what follows a name up to the next comma; parameters
 * behind * are given by name alone. The first call does this, under the GIL; the names live as long as the process.
 */
static int read_names(ext_signature_t *signature)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz_";
    const char *at = strchr(signature->parameters, '(');
    int count = 0, positional = signature->count;
    for (; *at != ')' && count <= signature->count; at += strcspn(at, ",)")) {
        at += 1 + strspn(at + 1, " \n");
        const size_t length = strspn(at, letters);
        if (*at == '*') positional = count;
        if (length == 0) continue;
        PyObject *name = PyUnicode_FromStringAndSize(at, (Py_ssize_t)length);
        if (name == NULL) return -1;
        PyUnicode_InternInPlace(&name);
        signature->names[count++] = name;
    }
    signature->positional = positional;
    if (count == signature->count) return 0;
    PyErr_BadInternalCall();
    return -1;
}

/* Names are mostly the same objects: compared one by one they would take longer than all the rest of a call. */
static int find_name(const ext_signature_t *signature, PyObject *name)
{
    for (int i = 0; i < signature->count; i++)
        if (signature->names[i] == name) return i;
    for (int i = 0; i < signature->count; i++)
        if (PyUnicode_Compare(signature->names[i], name) == 0) return i;
    PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", signature->function, name);
    return -1;
}

static int refuse_twice(const ext_signature_t *signature, int which)
{
    PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%U'", signature->function,
                 signature->names[which]);
    return -1;
}

/*
 * What is left is borrowed from the caller of the vectorcall, who holds it until the call returns. None counts as not
 * given, so defaults need no code here.
 */
int ext_args_read(ext_signature_t *signature, PyObject *const *args, Py_ssize_t nargs, PyObject *names,
                  PyObject **values)
{
    if (signature->names[0] == NULL && read_names(signature) != 0) return -1;
    if (nargs > signature->positional) {
        PyErr_Format(PyExc_TypeError, "%s() takes %d positional arguments at most (%zd given)", signature->function,
                     signature->positional, nargs);
        return -1;
    }
    memset(values, 0, (size_t)signature->count * sizeof *values);
    for (Py_ssize_t i = 0; i < nargs; i++)
        if (args[i] != Py_None) values[i] = args[i];
    for (Py_ssize_t i = 0; names != NULL && i < PyTuple_GET_SIZE(names); i++) {
        const int found = find_name(signature, PyTuple_GET_ITEM(names, i));
        if (found < 0) return -1;
        if (found < nargs) return refuse_twice(signature, found);
        if (args[nargs + i] != Py_None) values[found] = args[nargs + i];
    }
    return 0;
}

/* The arguments as they were given, None where there was none: which of them are arrays is not asked again. */
PyObject *ext_args_keep(PyObject *handle, PyObject *const *values, int count)
{
    PyObject *kept = PyTuple_New(count + 1);
    for (int i = 0; kept != NULL && i <= count; i++) {
        PyObject *value = i < count ? values[i] : handle;
        if (value == NULL) value = Py_None;
        Py_INCREF(value);
        PyTuple_SET_ITEM(kept, i, value);
    }
    return kept;
}

/* ---- arrays ---- */

/* Has Python set the exception that says so; -1. */
static int refuse_look(const char *name, PyObject *object, unsigned dtypes, Py_ssize_t rows, Py_ssize_t columns,
                       int dtype_is_wrong)
{
    Py_XDECREF(ext_call_helper("refuse", "(sOI(nn)i)", name, object, dtypes, rows, columns, dtype_is_wrong));
    return -1;
}

static int refuse_strides(const char *function, const char *name, PyObject *object, const ext_array_t *look,
                          Py_ssize_t width, Py_ssize_t size)
{
    Py_XDECREF(
        ext_call_helper(function, "(sO(nn)(nn))", name, object, look->strides[0], look->strides[1], width, size));
    return -1;
}

/* An address for arrays without elements, for which torch has none: with an address the library takes them as given. */
static char *address_of(const ext_array_t *look)
{
    static double nothing;
    return look->data != NULL ? look->data : (char *)&nothing;
}

/*
 * Element type first: of an array of the wrong one the shape is often wrong, too, and the type is what the user wants
 * to hear of.
 */
static int check_matrix(const char *name, PyObject *object, const ext_array_t *look, Py_ssize_t rows,
                        Py_ssize_t columns, unsigned dtypes, xep_dtype_t dtype)
{
    if ((dtypes & EXT_BIT(dtype)) == 0) return refuse_look(name, object, dtypes, rows, columns, 1);
    if (look->ndim != 2 || (rows != EXT_ANY && look->shape[0] != rows) ||
        (columns != EXT_ANY && look->shape[1] != columns))
        return refuse_look(name, object, dtypes, rows, columns, 0);
    return 0;
}

/* numpy has no bfloat16 and no 8-bit floats: those come as uint16 and uint8, which so may be anything of that width. */
static int may_be(const ext_element_t *element, xep_dtype_t as)
{
    const int is_open = element->dtype == XEP_U8 || ext_element_is_bits(element);
    return is_open && as != 0 && ext_dtype_size(as) == ext_dtype_size(element->dtype);
}

/* A matrix of one row has any stride: numpy and torch leave what they like there. */
int ext_args_rows(const char *name, PyObject *object, const ext_array_t *look, Py_ssize_t rows, Py_ssize_t columns,
                  unsigned dtypes, xep_dtype_t as, ext_matrix_t *matrix_p)
{
    xep_dtype_t dtype = look->element.dtype;
    if (may_be(&look->element, as)) dtype = as;
    if (check_matrix(name, object, look, rows, columns, dtypes, dtype) != 0) return -1;
    const Py_ssize_t size = ext_dtype_size(dtype), width = look->shape[1] * size;
    Py_ssize_t stride = look->strides[0];
    if (look->shape[0] <= 1 || width == 0) stride = width;
    if (look->shape[0] > 0 && ((look->shape[1] > 1 && look->strides[1] != size) || stride < width))
        return refuse_strides("refuse_rows", name, object, look, width, size);
    *matrix_p = (ext_matrix_t){look->element, dtype, address_of(look), look->shape[0], look->shape[1], stride, size};
    return 0;
}

int ext_args_matrix(const char *name, PyObject *object, ext_where_t where, Py_ssize_t rows, Py_ssize_t columns,
                    unsigned dtypes, xep_dtype_t as, ext_matrix_t *matrix_p)
{
    ext_array_t look;
    if (ext_array_look(name, object, where, &look) != 0) return -1;
    return ext_args_rows(name, object, &look, rows, columns, dtypes, as, matrix_p);
}

static int refuse_read_only(const char *name)
{
    PyErr_Format(PyExc_ValueError, "%s: expected an array that may be written, it is read-only", name);
    return -1;
}

/* A tensor may be written; an array of numpy may be read-only, and stays so. */
int ext_args_output(const char *name, PyObject *object, ext_where_t where, Py_ssize_t rows, Py_ssize_t columns,
                    xep_dtype_t dtype, ext_matrix_t *matrix_p)
{
    ext_array_t look;
    if (ext_array_look(name, object, where, &look) != 0 ||
        ext_args_rows(name, object, &look, rows, columns, EXT_BIT(dtype), dtype, matrix_p) != 0)
        return -1;
    return look.writable ? 0 : refuse_read_only(name);
}

/*
 * Any strides will do, negative ones too, but 0: to the library that is the default, so an array that was broadcast
 * would be read as if it were dense.
 */
int ext_args_strided(const char *name, PyObject *object, ext_where_t where, Py_ssize_t rows, unsigned dtypes,
                     ext_matrix_t *matrix_p)
{
    ext_array_t look;
    if (ext_array_look(name, object, where, &look) != 0 ||
        check_matrix(name, object, &look, rows, EXT_ANY, dtypes, look.element.dtype) != 0)
        return -1;
    const Py_ssize_t columns = look.shape[1], size = ext_dtype_size(look.element.dtype);
    rows = look.shape[0];
    const int is_empty = rows == 0 || columns == 0;
    const Py_ssize_t stride = rows > 1 && !is_empty ? look.strides[0] : columns * size;
    const Py_ssize_t step = columns > 1 && !is_empty ? look.strides[1] : size;
    if (!is_empty && (stride == 0 || step == 0))
        return refuse_strides("refuse_overlap", name, object, &look, columns * size, size);
    *matrix_p = (ext_matrix_t){look.element, look.element.dtype, address_of(&look), rows, columns, stride, step};
    return 0;
}

/* The pointer at address_p may be of any type, so it is copied as bytes. */
int ext_args_vector(const char *name, PyObject *object, ext_where_t where, Py_ssize_t length, xep_dtype_t dtype,
                    void *address_p)
{
    ext_array_t look;
    if (object == NULL) return 0;
    if (ext_array_look(name, object, where, &look) != 0) return -1;
    const int is_of_type = look.element.dtype == dtype;
    if (!is_of_type || look.ndim != 1 || look.shape[0] != length)
        return refuse_look(name, object, EXT_BIT(dtype), length, EXT_NONE, !is_of_type);
    if (!look.writable) return refuse_read_only(name);
    if (length > 1 && look.strides[0] != ext_dtype_size(dtype))
        return refuse_strides("refuse_vector", name, object, &look, 0, ext_dtype_size(dtype));
    memcpy(address_p, &look.data, sizeof look.data);
    return 0;
}

/* ---- numbers ---- */

/*
 * __index__ and not int(): 1.5 and "3" are mistakes. What PyLong_As... raises for a negative number or one too large is
 * replaced by a sentence with the name.
 */
int ext_args_number(const char *name, PyObject *object, uint64_t most, uint64_t *value_p)
{
    if (object == NULL) return 0;
    PyObject *number = PyNumber_Index(object);
    const uint64_t value = number != NULL ? PyLong_AsUnsignedLongLong(number) : 0;
    Py_XDECREF(number);
    if (PyErr_Occurred() != NULL || value > most) {
        PyErr_Format(PyExc_ValueError, "%s: expected an integer from 0 to %llu, got %R", name, (unsigned long long)most,
                     object);
        return -1;
    }
    *value_p = value;
    return 0;
}

/* Enumerations of the library have 32 bits as well, but another type: so the value is copied. */
int ext_args_number32(const char *name, PyObject *object, void *value_p)
{
    uint64_t value;
    if (object == NULL) return 0;
    if (ext_args_number(name, object, UINT32_MAX, &value) != 0) return -1;
    const uint32_t narrow = (uint32_t)value;
    memcpy(value_p, &narrow, sizeof narrow);
    return 0;
}

int ext_args_ranks(const char *name, PyObject *object, uint32_t count, PyObject **bytes_p)
{
    *bytes_p = object != NULL ? ext_call_helper("bytes_of_ranks", "(sOI)", name, object, count) : NULL;
    return object == NULL || *bytes_p != NULL ? 0 : -1;
}

int ext_args_replicas(const char *name, PyObject *object, PyObject **bytes_p)
{
    *bytes_p = object != NULL ? ext_call_helper("bytes_of_replicas", "(sO)", name, object) : NULL;
    return object == NULL || *bytes_p != NULL ? 0 : -1;
}

int ext_args_dtype(const char *name, PyObject *object, xep_dtype_t *dtype_p)
{
    if (object == NULL) return 0;
    PyObject *found = ext_call_helper("need_dtype", "(sO)", name, object);
    if (found == NULL) return -1;
    *dtype_p = (xep_dtype_t)PyLong_AsLong(found);
    Py_DECREF(found);
    return 0;
}

int ext_args_element(const char *name, PyObject *object, ext_element_t *element_p)
{
    if (ext_args_dtype(name, object, &element_p->dtype) != 0) return -1;
    if (object == NULL || (element_p->kind != EXT_NUMPY && element_p->kind != EXT_ML)) return 0;
    PyObject *is_ml = ext_call_helper("is_ml", "(O)", object);
    if (is_ml == Py_True) element_p->kind = EXT_ML;
    if (is_ml == Py_False) element_p->kind = EXT_NUMPY;
    Py_XDECREF(is_ml);
    return is_ml != NULL ? 0 : -1;
}

int ext_args_said(PyObject *object, const ext_matrix_t *rows, xep_dtype_t as)
{
    if (as == 0 || as == rows->dtype) return 0;
    Py_XDECREF(ext_call_helper("refuse_cast", "(Oii)", object, rows->dtype, as));
    return -1;
}

int ext_args_fits(PyObject *object, const ext_matrix_t *rows, Py_ssize_t hidden, const char *argument,
                  xep_dtype_t widest)
{
    const Py_ssize_t size = ext_dtype_size(rows->dtype);
    if (size <= ext_dtype_size(widest) || rows->columns * size <= hidden * ext_dtype_size(widest)) return 0;
    if (rows->columns > hidden) return 0; /* too long in any type: the library has the sentence for it */
    Py_XDECREF(ext_call_helper("refuse_wide", "(Onsii)", object, hidden, argument, rows->dtype, widest));
    return -1;
}

int ext_args_flag(PyObject *object, uint32_t flag, uint32_t *flags_p)
{
    const int is_true = object != NULL ? PyObject_IsTrue(object) : 0;
    if (is_true > 0) *flags_p |= flag;
    return is_true < 0 ? -1 : 0;
}

/* With a cast that has no use for it the library says so. */
int ext_args_quant_scale(PyObject *object, float *scale_p)
{
    if (object == NULL) return 0;
    double scale = PyFloat_AsDouble(object);
    if (scale == -1 && PyErr_Occurred()) return -1;
    *scale_p = (float)scale;
    return 0;
}

/* ---- words ---- */

#define QUANT_WORD_(_name, _value, _text) [_name] = _text,

/* By ext_word_t. */
static const struct {
    const char *name; /* of the argument */
    int may_be_number;
    const char *words[XEP_QUANT_LOGFMT + 2]; /* by their numbers; behind the last one NULL */
} enumerations[] = {
    [EXT_QUANT] = {"quant", 1, {XEP_QUANT_LIST(QUANT_WORD_)}},
    [EXT_ARRANGEMENT] = {"arrangement", 1, {"default", "rank", "compact", "padded"}},
    [EXT_MEMORY] = {"memory", 0, {"host", "cuda"}},
    [EXT_ON_FAILURE] = {"on_failure", 0, {"fail", "mask"}},
    [EXT_PATH] = {"path", 0, {"auto", "flat", "nodes"}},
    [EXT_BALANCE] = {"balance", 0, {"none", "least-loaded", "even"}},
};

/* Words that are not known are an error that lists those that are. */
static int find_word(const char *name, PyObject *word, const char *const *words, void *value_p)
{
    char known[192] = "";
    for (uint32_t i = 0; words[i] != NULL; i++) {
        if (PyUnicode_Check(word) && PyUnicode_CompareWithASCIIString(word, words[i]) == 0) {
            memcpy(value_p, &i, sizeof i);
            return 0;
        }
        const size_t used = strlen(known);
        const char *before = i == 0 ? "" : words[i + 1] != NULL ? ", " : " or ";
        snprintf(known + used, sizeof known - used, "%s\"%s\"", before, words[i]);
    }
    PyErr_Format(PyExc_ValueError, "%s: expected %s, got %R", name, known, word);
    return -1;
}

int ext_args_word(ext_word_t which, PyObject *object, void *value_p)
{
    const char *name = enumerations[which].name;
    if (object == NULL) return 0;
    if (enumerations[which].may_be_number && !PyUnicode_Check(object)) return ext_args_number32(name, object, value_p);
    return find_word(name, object, enumerations[which].words, value_p);
}

/* ---- streams and times ---- */

/* A stream where there is no device goes on to the library, which has the sentence for it. */
int ext_args_stream(PyObject *object, const ext_element_t *element, void **stream_p)
{
    if (object == NULL && (element->where == EXT_HOST || element->kind != EXT_TORCH)) return 0;
    if (object == NULL && ext_array_stream(element->where - 1, stream_p)) return 0;
    PyObject *found = ext_call_helper("stream_of", "(Oi)", object != NULL ? object : Py_None, element->where - 1);
    if (found == NULL) return -1;
    *stream_p = PyLong_AsVoidPtr(found);
    Py_DECREF(found);
    return PyErr_Occurred() != NULL ? -1 : 0;
}

/*
 * !(seconds > 0) refuses NaN as well. Below a millisecond is one, since 0 would mean the default; what does not fit 32
 * bits is 24 days and as good.
 */
int ext_args_timeout(PyObject *object, int32_t *value_p)
{
    if (object == NULL || object == Py_None) return 0;
    const double seconds = PyFloat_AsDouble(object), ms = seconds * 1000;
    if (PyErr_Occurred() != NULL) return -1;
    if (!(seconds > 0)) {
        PyErr_Format(PyExc_ValueError, "timeout: expected seconds above 0, math.inf or None, got %R", object);
        return -1;
    }
    *value_p = isinf(seconds) ? -1 : ms >= INT32_MAX ? INT32_MAX : ms < 1 ? 1 : (int32_t)lrint(ms);
    return 0;
}
