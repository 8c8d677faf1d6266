/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * By the driver itself: torch makes an event, records it and lets a stream wait for it in three calls of Python, which
 * take longer than a kernel. Streams are addresses, as torch has them; 0 is the default one. The device is named in
 * every call, since another one may be current in this thread, or none yet.
 */
#include "ext_module.h"

#include "ext_python.h"

#include <dlfcn.h>

enum { NO_TIMING = 2, MOST_DEVICES = 64, CAPTURE_IMPLICIT = 906 /* of the default stream, while another captures */ };

/* Each returns 0 where it went well. */
static struct {
    int (*context_of)(void **context_p, int device);
    int (*push)(void *context);
    int (*pop)(void **context_p);
    int (*create)(void **event_p, unsigned flags);
    int (*destroy)(void *event);
    int (*record)(void *event, void *stream);
    int (*wait)(void *stream, void *event, unsigned flags);
    int (*sync)(void *event);
    int (*capturing)(void *stream, int *status_p);
} driver;

static void *contexts[MOST_DEVICES]; /* the primary ones, for good; NULL: not asked for yet */

typedef struct ext_event {
    PyObject_HEAD
    void *event;
    int device;
} ext_event_t;

static int load(void)
{
    static const char *const names[] = {
        "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuEventCreate",
        "cuEventDestroy_v2",        "cuEventRecord",       "cuStreamWaitEvent",  "cuEventSynchronize",
        "cuStreamIsCapturing",
    };
    enum { COUNT = sizeof names / sizeof *names };
    _Static_assert(sizeof driver == COUNT * sizeof(void *), "a name for each function");
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *found[COUNT];
    for (int i = 0; i < COUNT; i++) {
        found[i] = library != NULL ? dlsym(library, names[i]) : NULL;
        if (found[i] != NULL) continue;
        PyErr_Format(PyExc_RuntimeError, "streams: there is no CUDA driver here, or none with %s", names[i]);
        return -1;
    }
    memcpy(&driver, found, sizeof driver);
    return 0;
}

/* Makes the device current in this thread until leave(). -1: an exception is set. */
static int enter(int device)
{
    if (driver.capturing == NULL && load() != 0) return -1;
    int result = device < 0 || device >= MOST_DEVICES;
    if (result == 0 && contexts[device] == NULL) result = driver.context_of(&contexts[device], device);
    if (result == 0) result = driver.push(contexts[device]);
    if (result == 0) return 0;
    PyErr_Format(PyExc_RuntimeError, "device: expected a CUDA device, got %d (error %d of the driver)", device, result);
    return -1;
}

static int leave(int result, const char *call)
{
    void *popped;
    driver.pop(&popped);
    if (result != 0) PyErr_Format(PyExc_RuntimeError, "%s: error %d of the CUDA driver", call, result);
    return result == 0 ? 0 : -1;
}

/* An event that is behind all on a stream. */
static int make_event(void **event_p, void *stream)
{
    int result = driver.create(event_p, NO_TIMING);
    if (result != 0) return result;
    result = driver.record(*event_p, stream);
    if (result != 0) driver.destroy(*event_p);
    return result;
}

/* The event may go at once: what waits is enqueued. */
static PyObject *stream_wait(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long waiter, other;
    void *event;
    int device;
    if (!PyArg_ParseTuple(args, "iKK", &device, &waiter, &other)) return NULL;
    if (waiter == other) Py_RETURN_NONE;
    if (enter(device) != 0) return NULL;
    int result = make_event(&event, (void *)(uintptr_t)other);
    if (result == 0) {
        result = driver.wait((void *)(uintptr_t)waiter, event, 0);
        driver.destroy(event);
    }
    if (leave(result, "stream_wait") != 0) return NULL;
    Py_RETURN_NONE;
}

/* ---- events ---- */

static PyObject *new_event(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    unsigned long long stream;
    int device;
    if (keywords != NULL && PyDict_GET_SIZE(keywords) > 0)
        return PyErr_Format(PyExc_TypeError, "Event: expected a device and a stream by position");
    if (!PyArg_ParseTuple(args, "iK", &device, &stream)) return NULL;
    ext_event_t *event = (ext_event_t *)type->tp_alloc(type, 0);
    if (event == NULL) return NULL;
    event->device = device;
    int ret = enter(device);
    if (ret == 0) ret = leave(make_event(&event->event, (void *)(uintptr_t)stream), "Event");
    if (ret != 0) {
        event->event = NULL;
        Py_CLEAR(event);
    }
    return (PyObject *)event;
}

/* Once more, by a later call than the one that made it. What is captured is run by whoever launches the graph. */
static PyObject *record(PyObject *self, PyObject *stream)
{
    const ext_event_t *event = (ext_event_t *)self;
    void *recorded = PyLong_AsVoidPtr(stream);
    int status = 0;
    if (PyErr_Occurred() || enter(event->device) != 0) return NULL;
    int result = driver.capturing(recorded, &status);
    const int is_captured = result == CAPTURE_IMPLICIT || (result == 0 && status != 0);
    if (is_captured) result = 0;
    else if (result == 0) result = driver.record(event->event, recorded);
    if (leave(result, "record") != 0) return NULL;
    return PyBool_FromLong(!is_captured);
}

static PyObject *wait(PyObject *self, PyObject *stream)
{
    const ext_event_t *event = (ext_event_t *)self;
    void *waiter = PyLong_AsVoidPtr(stream);
    if (PyErr_Occurred() || enter(event->device) != 0) return NULL;
    if (leave(driver.wait(waiter, event->event, 0), "wait") != 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *synchronize(PyObject *self, PyObject *Py_UNUSED(unused))
{
    const ext_event_t *event = (ext_event_t *)self;
    int result;
    if (enter(event->device) != 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
    result = driver.sync(event->event);
    Py_END_ALLOW_THREADS
    if (leave(result, "synchronize") != 0) return NULL;
    Py_RETURN_NONE;
}

static void dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (((ext_event_t *)self)->event != NULL) driver.destroy(((ext_event_t *)self)->event);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"record", record, METH_O,
     "record($self, stream)\n--\n\n"
     "From now on behind all that is on this stream by now. False: that is captured into a CUDA graph, and nothing is\n"
     "done."},
    {"wait", wait, METH_O, "wait($self, stream)\n--\n\nThe stream waits for it, and nobody else."},
    {"synchronize", synchronize, METH_NOARGS, "synchronize($self)\n--\n\nBlocks until it is reached."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, new_event},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {Py_tp_doc, "Event(device, stream)\n--\n\nBehind all that is on a stream of a CUDA device by now."},
    {0, NULL},
};

static PyType_Spec spec = {"xep._ext.Event", sizeof(ext_event_t), 0, Py_TPFLAGS_DEFAULT, slots};

/* ---- a context that does nothing, without a call of Python ---- */

static PyObject *give_self(PyObject *self, PyObject *Py_UNUSED(unused))
{
    Py_INCREF(self);
    return self;
}

static PyObject *do_nothing(PyObject *Py_UNUSED(self), PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(nargs))
{
    Py_RETURN_NONE;
}

static PyMethodDef context_methods[] = {
    {"__enter__", give_self, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))do_nothing, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot context_slots[] = {
    {Py_tp_methods, context_methods},
    {Py_tp_doc, "Context()\n--\n\nOf ``with``; its end does nothing."},
    {0, NULL},
};

static PyType_Spec context_spec = {"xep._ext.Context", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                                   context_slots};

PyMethodDef ext_stream_functions[] = {
    {"stream_wait", stream_wait, METH_VARARGS,
     "stream_wait($module, device, waiter, other)\n--\n\nA stream comes after all that is on another by now."},
    {NULL, NULL, 0, NULL},
};

int ext_stream_ready(PyObject *module)
{
    return ext_add_type(module, &spec, 1, NULL) == 0 ? ext_add_type(module, &context_spec, 1, NULL) : -1;
}
