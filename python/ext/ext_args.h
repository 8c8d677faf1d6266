/* SPDX-License-Identifier: BSD-3-Clause */

/** Arguments of calls: which is which, and whether it is what it has to be. Errors name the argument. */
#ifndef EXT_ARGS_H
#define EXT_ARGS_H

#include "ext_arrays.h"

#define EXT_MOST_PARAMETERS 26 /* a number, as an enumerator of another enum is none to compare with */

/** The parameters of a function; the first ones may come without their names. */
typedef struct ext_signature {
    const char *function, *parameters; /* its docstring, or "(a, b=0, *, c)" */
    int count;
    /* made by the first call: */
    int positional;
    PyObject *names[EXT_MOST_PARAMETERS + 1];
} ext_signature_t;

/** The arguments of a call, by number; NULL: not given, or None. -1: TypeError. */
int ext_args_read(ext_signature_t *signature, PyObject *const *args, Py_ssize_t nargs, PyObject *names,
                  PyObject **values);

/** What an operation needs, as a tuple: its arguments and its handle, which may be NULL. NULL: an exception is set. */
PyObject *ext_args_keep(PyObject *handle, PyObject *const *values, int count);

/** A matrix. Strides in bytes. */
typedef struct ext_matrix {
    ext_element_t element; /* of the array */
    xep_dtype_t dtype;     /* what its bits are */
    char *data;
    Py_ssize_t rows, columns, stride, step;
} ext_matrix_t;

enum { EXT_ANY = -1, EXT_NONE = -2 }; /* extents */

/** Sets of element types: one bit each. */
#define EXT_BIT(_dtype)  (1u << (_dtype))
#define EXT_ALL_DTYPES   ((1u << EXT_DTYPES) - 2)
#define EXT_INDEX_DTYPES (EXT_BIT(XEP_INT64) | EXT_BIT(XEP_INT32))

/* Those below return -1 with an exception set; an object that is NULL was not given. where: where arrays have to be. */

/** Of dense rows. as: what bits without a type of their own are said to be; 0: nothing was said. */
int ext_args_matrix(const char *name, PyObject *object, ext_where_t where, Py_ssize_t rows, Py_ssize_t columns,
                    unsigned dtypes, xep_dtype_t as, ext_matrix_t *matrix_p);

/** The same of an array that was looked at. */
int ext_args_rows(const char *name, PyObject *object, const ext_array_t *look, Py_ssize_t rows, Py_ssize_t columns,
                  unsigned dtypes, xep_dtype_t as, ext_matrix_t *matrix_p);

/** Rows that are written. */
int ext_args_output(const char *name, PyObject *object, ext_where_t where, Py_ssize_t rows, Py_ssize_t columns,
                    xep_dtype_t dtype, ext_matrix_t *matrix_p);

/** As many ranks as count, of any sequence of integers, as uint32 in the bytes of a new reference. */
int ext_args_ranks(const char *name, PyObject *object, uint32_t count, PyObject **bytes_p);

/** The same of any number of pairs: [n] xep_replica_t. */
int ext_args_replicas(const char *name, PyObject *object, PyObject **bytes_p);

/** A matrix of any strides. */
int ext_args_strided(const char *name, PyObject *object, ext_where_t where, Py_ssize_t rows, unsigned dtypes,
                     ext_matrix_t *matrix_p);

/** A dense vector that is written; object NULL: the pointer at address_p stays. */
int ext_args_vector(const char *name, PyObject *object, ext_where_t where, Py_ssize_t length, xep_dtype_t dtype,
                    void *address_p);

/** An integer from 0 to most; object NULL: value_p stays. */
int ext_args_number(const char *name, PyObject *object, uint64_t most, uint64_t *value_p);

/** The same of 32 bits: value_p is that of a uint32_t, or of an enumeration of the library. */
int ext_args_number32(const char *name, PyObject *object, void *value_p);

/** An element type by any of its names; object NULL: dtype_p stays. */
int ext_args_dtype(const char *name, PyObject *object, xep_dtype_t *dtype_p);

/** The same, for an array that is shown: a dtype of package ml_dtypes, or one of bits, also says which of the two. */
int ext_args_element(const char *name, PyObject *object, ext_element_t *element_p);

/** Refuses a dtype that was given for rows, other than what they are: nothing is cast. as 0: none was given. */
int ext_args_said(PyObject *object, const ext_matrix_t *rows, xep_dtype_t as);

/** Refuses rows that a buffer has no room for since its type, the argument of this name, is narrower than theirs. */
int ext_args_fits(PyObject *object, const ext_matrix_t *rows, Py_ssize_t hidden, const char *argument,
                  xep_dtype_t widest);

int ext_args_quant_scale(PyObject *object, float *scale_p);

/** Bits of flags where the object is true. */
int ext_args_flag(PyObject *object, uint32_t flag, uint32_t *flags_p);

/** Enumerations of the library whose values have words; those of the first two may be given as numbers, too. */
typedef enum {
    EXT_QUANT,
    EXT_ARRANGEMENT,
    EXT_MEMORY,
    EXT_ON_FAILURE,
    EXT_PATH,
    EXT_BALANCE,
} ext_word_t;

/** value_p: of the enumeration; object NULL: it stays. */
int ext_args_word(ext_word_t which, PyObject *object, void *value_p);

/** A stream of whatever package; object NULL: the one that is current for arrays of this element. */
int ext_args_stream(PyObject *object, const ext_element_t *element, void **stream_p);

/** Milliseconds of seconds, as the library wants them; object NULL: value_p stays. */
int ext_args_timeout(PyObject *object, int32_t *value_p);

#endif
