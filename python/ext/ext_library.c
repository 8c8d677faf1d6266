/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The package says which libxep to load, so this module is not linked with one, and its wheel and an installed library
 * can come from different builds. From here on everybody calls it by the table lib.
 */
#include "ext_library.h"

#include "ext_args.h"

#include <dlfcn.h>
#include <pthread.h>

ext_library_t lib;

/* ---- loading ---- */

static int check_version(const char *path)
{
    int major = 0, minor = 0;
    const char *found = lib.version_string();
    if (sscanf(found, "%d.%d", &major, &minor) == 2 && major == XEP_VERSION_MAJOR && minor == XEP_VERSION_MINOR)
        return 0;
    PyErr_Format(PyExc_ImportError, "%s is version %s, and xep._ext was built for version %d.%d: build it again", path,
                 found, XEP_VERSION_MAJOR, XEP_VERSION_MINOR);
    return -1;
}

/* A function of the wrong type cannot be found out: so the table is made from the header's own declarations. */
static int find_functions(void *file, const char *path)
{
#define EXT_NAME_(_name) {"xep_" #_name, &lib._name},
    const struct {
        const char *name;
        void *field;
    } functions[] = {EXT_FUNCTIONS(EXT_NAME_)};
#undef EXT_NAME_
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = dlsym(file, functions[i].name);
        if (function == NULL) {
            PyErr_Format(PyExc_ImportError, "%s has no %s: it is not libxep, or an older one", path, functions[i].name);
            return -1;
        }
        memcpy(functions[i].field, &function, sizeof function);
    }
    return 0;
}

static PyObject *load(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *path;
    if (!PyArg_ParseTuple(args, "s", &path)) return NULL;
    void *file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (file == NULL) return PyErr_Format(PyExc_ImportError, "%s cannot be loaded: %s", path, dlerror());
    if (find_functions(file, path) != 0 || check_version(path) != 0) return NULL;
    Py_RETURN_NONE;
}

/* ---- errors ---- */

/*
 * A signal's exception goes first: KeyboardInterrupt is why the call failed. xep_last_error() is of this thread and
 * holds until its next call, so it must be asked before anything else is. The sentence may have a path in it that is
 * not UTF-8.
 */
PyObject *ext_error_new(xep_status_t status, const char *reason)
{
    if (ext_signals_set()) return NULL;
    if (reason == NULL) reason = lib.last_error();
    PyObject *text = PyUnicode_DecodeUTF8(reason, (Py_ssize_t)strlen(reason), "replace"), *error = NULL;
    PyObject *errors = PyImport_ImportModule("xep.errors");
    if (text != NULL && errors != NULL) error = PyObject_CallMethod(errors, "error_of", "iO", (int)status, text);
    Py_XDECREF(text);
    Py_XDECREF(errors);
    return error;
}

/* NULL came with an exception set already. */
PyObject *ext_raise_error(PyObject *error)
{
    if (error != NULL) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    return NULL;
}

PyObject *ext_raise(xep_status_t status)
{
    return ext_raise_error(ext_error_new(status, NULL));
}

PyObject *ext_none_or_raise(xep_status_t status)
{
    if (status < 0) return ext_raise(status);
    Py_RETURN_NONE;
}

/* ---- processes: a counter, as asking the system for the process in every call takes as long as all the rest ---- */

static unsigned forks;

/* In the child, before fork() returns there; it must not do more than this. */
static void count_fork(void)
{
    forks++;
}

unsigned ext_forks(void)
{
    return forks;
}

/* ---- what it says of itself ---- */

static PyObject *version(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyUnicode_FromString(lib.version_string());
}

static PyObject *library_info(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    xep_library_info_t info = XEP_LIBRARY_INFO_INIT;
    xep_status_t status = lib.library_query(&info);
    if (status < 0) return ext_raise(status);
    return Py_BuildValue("(ssssssss)", info.version, info.build, info.library_path, info.ucx_version, info.ucx_path,
                         info.pmix_version, info.pmix_path, info.simd);
}

/* Of config_each and mode_each: four texts, appended to a list; non-zero stops. */
static int append_texts(void *list, const char *a, const char *b, const char *c, const char *d)
{
    PyObject *texts = Py_BuildValue("(ssss)", a, b, c, d);
    int ret = texts != NULL ? PyList_Append(list, texts) : -1;
    Py_XDECREF(texts);
    return ret;
}

/*
 * config_fn and mode_fn are the same type to C: four texts and a place to put them. mode_each() tells a mode that can
 * be loaded with reason NULL, which "s" makes None.
 */
static PyObject *list_of(void (*each)(xep_config_fn fn, void *arg))
{
    PyObject *list = PyList_New(0);
    if (list == NULL) return NULL;
    each(append_texts, list);
    if (PyErr_Occurred() != NULL) Py_CLEAR(list);
    return list;
}

static PyObject *config(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return list_of(lib.config_each);
}

static PyObject *modes(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return list_of(lib.mode_each);
}

/* In the order of ModeInfo. Keeps the GIL: nothing waits here. */
static PyObject *mode_query(PyObject *Py_UNUSED(module), PyObject *args)
{
    xep_mode_info_t info = XEP_MODE_INFO_INIT;
    const char *mode;
    PyObject *place;
    xep_memory_t memory = XEP_MEMORY_HOST;
    if (!PyArg_ParseTuple(args, "zO", &mode, &place) || ext_args_word(EXT_MEMORY, place, &memory) != 0) return NULL;
    xep_status_t status = lib.mode_query(mode, memory, &info);
    if (status < 0) return ext_raise(status);
    return Py_BuildValue("(IIIIIII)", info.features, info.casts, info.combine_casts, info.arrangements, info.dtypes,
                         info.cast_dtypes, info.combine_dtypes);
}

static int logs; /* messages have gone to a function of Python's: the library's own threads may want the GIL */

int ext_is_alone(void)
{
    PyThreadState *first = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
    return !logs && PyThreadState_Next(first) == NULL;
}

/* On any thread of the library, with or without the GIL. arg: the callable, which lives as long as the process. */
static void write_log(void *callable, xep_log_level_t level, const char *message)
{
    if (!Py_IsInitialized()) return;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *text = PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "replace");
    PyObject *done = text != NULL ? PyObject_CallFunction(callable, "iO", (int)level, text) : NULL;
    if (done == NULL) PyErr_WriteUnraisable(callable);
    Py_XDECREF(text);
    Py_XDECREF(done);
    PyGILState_Release(state);
}

static PyObject *set_log(PyObject *Py_UNUSED(module), PyObject *callable)
{
    if (callable != Py_None && !PyCallable_Check(callable))
        return PyErr_Format(PyExc_TypeError, "set_log: expected a function of level and text, or None, got %R",
                            callable);
    Py_INCREF(callable); /* for good: another thread may be about to call it */
    logs = 1;
    Py_BEGIN_ALLOW_THREADS
    lib.log_set(callable == Py_None ? NULL : write_log, callable);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* ---- trace ---- */

static PyObject *trace_begin(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return PyLong_FromUnsignedLongLong(lib.trace_begin());
}

static PyObject *trace_end(PyObject *module, PyObject *args)
{
    const char *name;
    unsigned long long begin;
    (void)module;
    if (!PyArg_ParseTuple(args, "sK", &name, &begin)) return NULL;
    Py_BEGIN_ALLOW_THREADS /* the first span of a thread takes a lock */
    lib.trace_end(name, begin);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"load", load, METH_VARARGS, "Loads the library from a path; ImportError where it does not fit."},
    {"version", version, METH_NOARGS, "version()\n--\n\nOf the library at run time."},
    {"library_info", library_info, METH_NOARGS, "The texts of xep_library_info_t."},
    {"config", config, METH_NOARGS, "(name, value, default, help) of every variable."},
    {"modes", modes, METH_NOARGS, "(name, path, brief, reason) of every plugin file."},
    {"mode_query", mode_query, METH_VARARGS, NULL},
    {"set_log", set_log, METH_O, "Sends messages to a function of level and text, or (None) to stderr again."},
    {"trace_begin", trace_begin, METH_NOARGS, "When a span begins; 0: there is no trace."},
    {"trace_end", trace_end, METH_VARARGS, "Writes a span of this name that began then."},
    {NULL, NULL, 0, NULL},
};

int ext_library_ready(PyObject *module)
{
    if (pthread_atfork(NULL, NULL, count_fork) != 0) {
        PyErr_NoMemory();
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
