/* SPDX-License-Identifier: BSD-3-Clause */

/** Status codes: one list makes the enum, the name and the text. */
#ifndef XEP_STATUS_H
#define XEP_STATUS_H

#if defined(__GNUC__)
#define XEP_API __attribute__((visibility("default")))
#else
#define XEP_API
#endif

/**
 * X(name, value, text). XEP_OK is 0, XEP_INPROGRESS is positive, errors are
 * negative. Values never change and are never used again.
 */
#define XEP_STATUS_LIST(X)                                                   \
    X(XEP_OK, 0, "success")                                                  \
    X(XEP_INPROGRESS, 1, "operation in progress")                            \
    X(XEP_ERR_INVALID, -1, "invalid argument")                               \
    X(XEP_ERR_NO_MEMORY, -2, "out of memory")                                \
    X(XEP_ERR_UNSUPPORTED, -3, "not supported")                              \
    X(XEP_ERR_MISMATCH, -4, "ranks disagree on a collective parameter")      \
    X(XEP_ERR_BUSY, -5, "no free slot")                                      \
    X(XEP_ERR_OVERFLOW, -6, "more rows than the receiver has room for")      \
    X(XEP_ERR_TIMEOUT, -7, "deadline passed")                                \
    X(XEP_ERR_PEER, -8, "a peer failed")                                     \
    X(XEP_ERR_BOOT, -9, "bootstrap failed")                                  \
    X(XEP_ERR_TRANSPORT, -10, "transport failed")                            \
    X(XEP_ERR_PLUGIN, -11, "mode cannot be loaded")                          \
    X(XEP_ERR_PROTOCOL, -12, "a peer sent what the protocol does not allow") \
    X(XEP_ERR_ABORTED, -13, "group was aborted")                             \
    X(XEP_ERR_BROKEN, -14, "buffer needs a reset after an earlier error")    \
    X(XEP_ERR_FUNCTION, -15, "the expert function of a rank failed")

#define XEP_STATUS_ENUM_(_name, _value, _text) _name = _value,

/** The last member of each enum that is a field: no status, type or kind; the enum has the size of an int with it. */
#define XEP_ENUM_IS_INT(_prefix) _prefix##_INT_SIZED_ = 0x7fffffff

typedef enum {
    /* clang-format off */
    XEP_STATUS_LIST(XEP_STATUS_ENUM_)
    XEP_ENUM_IS_INT(XEP_STATUS)
    /* clang-format on */
} xep_status_t;

#undef XEP_STATUS_ENUM_

#endif
