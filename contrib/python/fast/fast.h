/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The calls of every step, compiled: what the module xep._fast is made of.
 *
 * Python checks arguments, fills structs and explains errors; that is the only place where it is done. A call that went well is
 * remembered as a plan: the struct, and what each argument looked like. A later call whose arguments look the same differs from
 * it in addresses and in the number of rows, which are put into a copy of that struct here. Whatever does not fit a plan goes
 * to Python: an argument of another kind, an error, the first call.
 *
 * All of it runs with the GIL held, but for the calls of the library that may wait.
 */
#ifndef XEP_FAST_H
#define XEP_FAST_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <xep/xep.h>

/** The library that the package has loaded. */
typedef struct fast_library {
    xep_status_t (*dispatch)(xep_buffer_t *buffer, const xep_dispatch_args_t *args, xep_handle_t **handle_p, xep_request_t **req_p);
    xep_status_t (*combine)(xep_handle_t *handle, const xep_combine_args_t *args, xep_request_t **req_p);
    const xep_recv_t *(*recv)(const xep_handle_t *handle);
    void *(*combine_input)(xep_handle_t *handle, size_t *stride_p);
    void (*release)(xep_handle_t *handle);
    size_t (*dtype_size)(xep_dtype_t dtype);
} fast_library_t;

/* ---- arrays: fast_arrays.c ------------------------------------------------------------------------- */

typedef enum { FAST_OTHER, FAST_NUMPY, FAST_TORCH, FAST_KINDS } fast_kind_t;

enum { FAST_DIMS = 3, FAST_DTYPES = XEP_FP64 + 1 };

/** An element type: a numpy descriptor, or the bits of a DLDataType. */
typedef uintptr_t fast_type_t;

/** What an array looks like, and where it is. */
typedef struct fast_array {
    fast_kind_t kind;
    fast_type_t type;
    int ndim;
    int writable;
    Py_ssize_t unit; /* what strides count of an element: numpy: its bytes; torch: 1 */
    Py_ssize_t shape[FAST_DIMS], strides[FAST_DIMS];
    void *data;
} fast_array_t;

/** Whether it is a numpy array or a CPU tensor, of no subclass, that has elements and at most FAST_DIMS extents. No exception. */
int fast_array_look(PyObject *object, fast_array_t *array_p);

/** A type outlives the array it was found in where it is kept, and no other is taken for it. */
void fast_type_keep(fast_kind_t kind, fast_type_t type);
void fast_type_drop(fast_kind_t kind, fast_type_t type);

/** An array over memory at address, which holds base as long as it lives. strides in bytes, of elements of size bytes. */
PyObject *fast_array_view(fast_kind_t kind, fast_type_t type, void *address, const fast_array_t *extent, Py_ssize_t size, PyObject *base);

/** A new array, its contents undefined. */
PyObject *fast_array_empty(fast_kind_t kind, PyObject *adapter, PyObject *native, Py_ssize_t rows, Py_ssize_t columns);

/** The type in which received elements are shown; 0: none. */
fast_type_t fast_array_type(fast_kind_t kind, xep_dtype_t dtype);

/** The numpy types of received elements, indexed by xep_dtype_t; -1: an exception is set. */
int fast_arrays_set_numpy(PyObject *types);

/** The type of tensors, and the capsule by which they are exchanged; -1: an exception is set. */
int fast_arrays_set_torch(PyObject *type, PyObject *capsule);

int fast_arrays_import(void);

/* ---- slots: fast_slots.c --------------------------------------------------------------------------- */

struct fast_handle;
struct fast_slots;

/** The buffer's memory, held for one handle: what every array of its rows is based on. */
typedef struct fast_memory {
    PyObject_HEAD
    struct fast_slots *slots;
    xep_handle_t *handle;            /* to be released when this ends; NULL: none */
    struct fast_handle *owner;       /* not counted: the Handle that still uses it; NULL: only arrays do */
    struct fast_memory *next, **previous;
    PyObject *weak;
} fast_memory_t;

/** The slots in use of one buffer. */
typedef struct fast_slots {
    PyObject_HEAD
    char *base; /* of the buffer's shared memory */
    Py_ssize_t bytes;
    fast_memory_t *first;
    Py_ssize_t held;         /* in that list */
    xep_handle_t **ended;    /* handles whose last array is gone; the library is told by the next operation */
    Py_ssize_t nended, room; /* room: at least held + nended */
} fast_slots_t;

/** New, registered; NULL: an exception is set. */
fast_memory_t *fast_slots_hold(fast_slots_t *slots, xep_handle_t *handle);

/** Releases the handles that have ended. */
void fast_slots_drain(fast_slots_t *slots);

/* ---- objects: fast_objects.c ----------------------------------------------------------------------- */

/** The arrays of received rows that are made here. */
enum { FAST_SHOWN_X, FAST_SHOWN_TOPK_IDX, FAST_SHOWN_TOPK_WEIGHTS, FAST_SHOWN_SRC_TOKEN, FAST_SHOWN };

struct fast_received;

/** The part of a Handle that is used in every step. Python sees the fields that are objects and numbers. */
typedef struct fast_handle {
    PyObject_HEAD
    PyObject *buffer;
    fast_memory_t *memory; /* NULL: released */
    Py_ssize_t tokens, topk, hidden, nranks;
    PyObject *adapter, *native; /* of the array that was dispatched: the module that knows its kind, its element type */
    PyObject *others;           /* dict: Received of other kinds */
    PyObject *counted;          /* xep_recv_t for Python; NULL: not asked for yet */
    fast_kind_t kind;           /* FAST_OTHER: made by Python, and so are its arrays */
    fast_type_t type;           /* of the array that was dispatched */
    const xep_recv_t *recv;     /* NULL: not counted yet */
    struct fast_received *shown; /* not counted: the rows as arrays of this kind, while somebody looks at them */
    uint64_t rows;               /* recv_rows_p of an asynchronous dispatch */
    PyObject *weak;
} fast_handle_t;

typedef struct fast_received {
    PyObject_HEAD
    fast_handle_t *handle;
    xep_recv_t recv; /* a copy: the library's own is of the next dispatch in this slot once the handle has ended */
    PyObject *struct_view; /* recv for Python; NULL: not asked for yet */
    PyObject *adapter, *native;
    PyObject *arrays[FAST_SHOWN]; /* made here; NULL: not asked for yet */
    PyObject *cache;              /* dict of those that Python makes; NULL: empty */
    PyObject *weak;
} fast_received_t;

typedef enum { FAST_DISPATCH, FAST_COMBINE, FAST_OPERATIONS } fast_operation_t;

enum { FAST_PLANS = 4 };

/** The part of a Buffer that is used in every step. */
typedef struct fast_buffer {
    PyObject_HEAD
    xep_buffer_t *buffer; /* NULL: closed */
    fast_slots_t *slots;
    PyObject *pending;                /* set of requests */
    const void *structs[FAST_OPERATIONS]; /* what Python fills */
    struct fast_plan *plans[FAST_OPERATIONS][FAST_PLANS];
    unsigned next_plan[FAST_OPERATIONS]; /* that is replaced */
    xep_dtype_t combine_dtype;
    Py_ssize_t nranks;
} fast_buffer_t;

/** Whether the rows are counted; asks the library where that is not known. No exception. */
int fast_handle_is_counted(fast_handle_t *handle);

/** Ends this handle's use of the slot. */
void fast_handle_let_go(fast_handle_t *handle);

/** Drops the arrays that it keeps. */
void fast_received_forget(fast_received_t *received);

/* ---- plans: fast_plan.c ---------------------------------------------------------------------------- */

/** The arguments of a call, as the interpreter passes them, without self. */
typedef struct fast_call {
    PyObject *const *values;
    Py_ssize_t positional;
    Py_ssize_t count; /* with those that have names */
    PyObject *names;  /* tuple, of the last values; NULL: none */
} fast_call_t;

typedef union fast_args {
    xep_dispatch_args_t dispatch;
    xep_combine_args_t combine;
} fast_args_t;

typedef struct fast_plan fast_plan_t;

/** The plan of a buffer that the call fits, and the struct that it makes; NULL: none. handle: of a combine. No exception. */
const fast_plan_t *fast_plan_find(const fast_buffer_t *buffer, fast_operation_t operation, const fast_call_t *call,
                                  fast_handle_t *handle, fast_args_t *args_p);

/**
 * Remembers a call that Python has just carried out; not one that cannot be repeated. handle: what a dispatch made and a
 * combine used. result: of a combine, else NULL. No exception.
 */
void fast_plan_learn(fast_buffer_t *buffer, fast_operation_t operation, const fast_call_t *call, fast_handle_t *handle,
                     PyObject *result);

/** The Handle of a dispatch that has begun; takes memory over, also on error. */
PyObject *fast_plan_handle(const fast_plan_t *plan, fast_buffer_t *buffer, fast_memory_t *memory, Py_ssize_t tokens);

/** What combine returns; makes the arrays that the call did not give, and puts them into the struct. */
PyObject *fast_plan_result(const fast_plan_t *plan, const fast_call_t *call, const fast_handle_t *handle, xep_combine_args_t *args);

void fast_plan_free(fast_plan_t *plan);

/* ---- the module ------------------------------------------------------------------------------------ */

/** What the package has told the module. One of each in a process, as the library is. */
typedef struct fast_module {
    fast_library_t library;
    PyTypeObject *buffer, *handle, *received; /* the classes Buffer, Handle and Received */
    PyTypeObject *memory;
    PyObject *recv_view; /* from an address, the xep_recv_t that Python reads */
    PyObject *adapters[FAST_KINDS];
} fast_module_t;

extern fast_module_t fast_module;

int fast_slots_ready(PyObject *module);
int fast_objects_ready(PyObject *module);
int fast_calls_ready(PyObject *module);

#endif
