/* SPDX-License-Identifier: BSD-3-Clause */

/* Sizes and names of the element types, names of the casts, from the lists in xep.h. */

#include <xep/xep.h>

#define DTYPE_ROW(_name, _value, _bytes, _text) [_value] = {_bytes, _text},

/* value 0 is no type: callers have replaced a struct's zero by the default */
static const struct {
    size_t bytes;
    const char *text;
} types[] = {[XEP_DTYPE_DEFAULT] = {0, "unknown"}, XEP_DTYPE_LIST(DTYPE_ROW)};

/* Callers may pass any number: one that is not a type has the row of "unknown". */
static unsigned row_of(xep_dtype_t dtype)
{
    return (unsigned)dtype < sizeof types / sizeof types[0] ? (unsigned)dtype : 0;
}

size_t xep_dtype_size(xep_dtype_t dtype)
{
    return types[row_of(dtype)].bytes;
}

const char *xep_dtype_name(xep_dtype_t dtype)
{
    return types[row_of(dtype)].text;
}

#define QUANT_ROW(_name, _value, _text) [_value] = _text,

const char *xep_quant_name(xep_quant_t quant)
{
    static const char *const names[] = {XEP_QUANT_LIST(QUANT_ROW)};
    return (unsigned)quant < sizeof names / sizeof names[0] ? names[quant] : "unknown";
}
