/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A group, and the rules of its process: a child that was forked off has a copy of this object, but it is no rank.
 * Connections and shared memory belong to the parent, so whatever would touch them refuses to.
 */
#include "ext_group.h"

#include "ext_args.h"
#include "ext_python.h"

#include <stddef.h>
#include <structmember.h>

static PyTypeObject *group_type;

/*
 * The caller's allgather, called by the library inside create(), where the GIL was given up. boot.py has wrapped it:
 * what it returns has exactly the bytes of all ranks, or it is None, and boot.py keeps the error to raise it when the
 * create has failed.
 */
static int run_allgather(void *callable, const void *send, void *recv, size_t bytes)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *all = PyObject_CallFunction(callable, "y#", (const char *)send, (Py_ssize_t)bytes);
    const int done = all != NULL && PyBytes_Check(all);
    if (done) memcpy(recv, PyBytes_AS_STRING(all), (size_t)PyBytes_GET_SIZE(all));
    if (all == NULL) PyErr_WriteUnraisable(callable);
    Py_XDECREF(all);
    PyGILState_Release(state);
    return done ? 0 : -1;
}

int ext_group_learn(ext_group_t *group)
{
    xep_group_info_t info = XEP_GROUP_INFO_INIT;
    group->forks = ext_forks();
    xep_status_t status = lib.group_query(group->group, &info);
    if (status < 0) {
        ext_raise(status);
        return -1;
    }
    group->rank = info.rank, group->nranks = info.nranks;
    group->node = info.node, group->nnodes = info.nnodes;
    group->boot = PyUnicode_FromString(info.boot);
    return group->boot != NULL ? 0 : -1;
}

/*
 * _create() of a Group that Python has made: an error leaves an object that is closed. allgather is borrowed, and
 * called inside this call alone.
 */
static PyObject *create(PyObject *self, PyObject *args)
{
    ext_group_t *group = (ext_group_t *)self;
    xep_group_params_t params = XEP_GROUP_PARAMS_INIT;
    PyObject *allgather, *timeout;
    xep_status_t status;
    if (!PyArg_ParseTuple(args, "OIIO", &allgather, &params.rank, &params.nranks, &timeout)) return NULL;
    if (ext_args_timeout(timeout, &params.timeout_ms) != 0) return NULL;
    params.interrupted = ext_signals_raised;
    if (allgather != Py_None) params.allgather = run_allgather, params.allgather_ctx = allgather;
    Py_BEGIN_ALLOW_THREADS
    status = lib.group_create(&params, &group->group);
    Py_END_ALLOW_THREADS
    if (status < 0) return ext_raise(status);
    if (ext_group_learn(group) != 0) return NULL;
    Py_RETURN_NONE;
}

int ext_group_is_own(const ext_group_t *group)
{
    if (group->forks == ext_forks()) return 0;
    PyErr_SetString(PyExc_RuntimeError,
                    "the group belongs to the process that this one was forked off: make a Group of your own here");
    return -1;
}

xep_group_t *ext_group_get(PyObject *object)
{
    const ext_group_t *group = (ext_group_t *)object;
    if (object == NULL || !PyObject_TypeCheck(object, group_type))
        PyErr_SetString(PyExc_TypeError, "group: expected a Group");
    else if (group->group == NULL) PyErr_SetString(PyExc_ValueError, "the group is closed");
    else if (ext_group_is_own(group) == 0) return group->group;
    return NULL;
}

/* Every call that waits gives up the GIL, or the allgather, signals and progress of other threads would wait for it. */
static PyObject *barrier(PyObject *self, PyObject *Py_UNUSED(unused))
{
    xep_group_t *group = ext_group_get(self);
    xep_status_t status;
    if (group == NULL) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = lib.group_barrier(group);
    Py_END_ALLOW_THREADS
    return ext_none_or_raise(status);
}

static PyObject *event_fd(PyObject *self, PyObject *Py_UNUSED(unused))
{
    xep_group_t *group = ext_group_get(self);
    xep_status_t status;
    int fd;
    if (group == NULL) return NULL;
    status = lib.group_event_fd(group, &fd);
    return status == XEP_OK ? PyLong_FromLong(fd) : ext_none_or_raise(status);
}

static PyObject *list_parts(const char *all, Py_ssize_t bytes, Py_ssize_t count)
{
    PyObject *parts = PyList_New(count);
    for (Py_ssize_t i = 0; parts != NULL && i < count; i++) {
        PyObject *part = PyBytes_FromStringAndSize(all + i * bytes, bytes);
        if (part == NULL) Py_CLEAR(parts);
        else PyList_SET_ITEM(parts, i, part);
    }
    return parts;
}

/* One that came to its deadline goes on in the same memory when it is called again: the library knows it by that. */
static char *take_memory(ext_group_t *group, size_t bytes)
{
    char *memory = group->gathered;
    group->gathered = NULL;
    if (memory != NULL && group->gathered_bytes == bytes) return memory;
    PyMem_Free(memory);
    memory = PyMem_Malloc(bytes + 1);
    if (memory == NULL) PyErr_NoMemory();
    return memory;
}

static void keep_memory(ext_group_t *group, char *memory, size_t bytes)
{
    PyMem_Free(group->gathered); /* of another thread: both were wrong to call */
    group->gathered = memory;
    group->gathered_bytes = bytes;
}

/*
 * The buffer of data is exported for the length of the call, so that no other thread can resize it. Without bytes the
 * library refuses the call, and the one before may still be called again.
 */
static PyObject *allgather(PyObject *self, PyObject *data)
{
    ext_group_t *own = (ext_group_t *)self;
    xep_group_t *group = ext_group_get(self);
    PyObject *parts = NULL;
    xep_status_t status;
    Py_buffer send;
    if (group == NULL || PyObject_GetBuffer(data, &send, PyBUF_SIMPLE) != 0) return NULL;
    const size_t bytes = (size_t)send.len * own->nranks;
    char none, *recv = bytes != 0 ? take_memory(own, bytes) : &none;
    if (recv == NULL) {
        PyBuffer_Release(&send);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = lib.group_allgather(group, send.buf, recv, (size_t)send.len);
    Py_END_ALLOW_THREADS
    parts = status < 0 ? ext_raise(status) : list_parts(recv, send.len, own->nranks);
    PyBuffer_Release(&send);
    if (status == XEP_ERR_TIMEOUT) keep_memory(own, recv, bytes);
    else if (bytes != 0) PyMem_Free(recv);
    return parts;
}

/* A new tuple, in the order of Peer. The GIL is given up, as the library may have to connect to the rank first. */
static PyObject *peer(PyObject *self, PyObject *arg)
{
    xep_group_t *group = ext_group_get(self);
    xep_peer_info_t info = XEP_PEER_INFO_INIT;
    uint64_t rank = 0;
    xep_status_t status;
    if (group == NULL || ext_args_number("rank", arg, ((ext_group_t *)self)->nranks - 1, &rank) != 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = lib.group_peer(group, (uint32_t)rank, &info);
    Py_END_ALLOW_THREADS
    if (status < 0) return ext_raise(status);
    return Py_BuildValue("(INs)", info.node, PyBool_FromLong(info.mapped), info.transport);
}

/* ---- masks ---- */

static PyObject *mask_set(PyObject *self, PyObject *arg)
{
    xep_group_t *group = ext_group_get(self);
    uint64_t rank = 0;
    if (group == NULL || ext_args_number("rank", arg, ((ext_group_t *)self)->nranks - 1, &rank) != 0) return NULL;
    return ext_none_or_raise(lib.group_mask_set(group, (uint32_t)rank));
}

/*
 * A new list of (rank, reason, since_ns). There is room for as many ranks as there are, since more may be out by the
 * time of a second call.
 */
static PyObject *mask_query(PyObject *self, PyObject *Py_UNUSED(unused))
{
    xep_group_t *group = ext_group_get(self);
    const uint32_t nranks = ((ext_group_t *)self)->nranks;
    uint32_t count = 0;
    if (group == NULL) return NULL;
    xep_mask_t *masks = PyMem_Calloc(nranks, sizeof *masks);
    if (masks == NULL) return PyErr_NoMemory();
    const xep_status_t status = lib.group_mask_query(group, masks, sizeof *masks, nranks, &count);
    PyObject *list = status < 0 ? ext_raise(status) : PyList_New(count);
    for (uint32_t i = 0; list != NULL && i < count; i++) {
        PyObject *mask = Py_BuildValue("(IiK)", masks[i].rank, (int)masks[i].reason, masks[i].since_ns);
        if (mask == NULL) Py_CLEAR(list);
        else PyList_SET_ITEM(list, i, mask);
    }
    PyMem_Free(masks);
    return list;
}

/* ---- its end ---- */

/* A new list, in the order of the new ranks: which rank each of them was in the other group. */
static PyObject *list_origins(const uint32_t *origins, uint32_t nranks)
{
    PyObject *list = PyList_New(nranks);
    for (uint32_t r = 0; list != NULL && r < nranks; r++) {
        PyObject *origin = PyLong_FromUnsignedLong(origins[r]);
        if (origin == NULL) Py_CLEAR(list);
        else PyList_SET_ITEM(list, r, origin);
    }
    return list;
}

/* _shrink(group, timeout, least): makes group, which Python has made and which is not open, of the ranks that are left;
 * returns which these are. The other group's forks are those of this process, or get() would have refused it. */
static PyObject *shrink(PyObject *self, PyObject *args)
{
    xep_group_t *old = ext_group_get(self);
    xep_shrink_args_t how = XEP_SHRINK_ARGS_INIT;
    ext_group_t *group;
    PyObject *timeout, *least, *origins = NULL;
    uint64_t number = 0;
    xep_status_t status;
    if (old == NULL || !PyArg_ParseTuple(args, "O!OO", group_type, &group, &timeout, &least)) return NULL;
    if (ext_args_timeout(timeout, &how.timeout_ms) != 0) return NULL;
    if (ext_args_number("least", least, ((ext_group_t *)self)->nranks, &number) != 0) return NULL;
    how.least = (uint32_t)number;
    how.origins = PyMem_Calloc(((ext_group_t *)self)->nranks, sizeof *how.origins);
    if (how.origins == NULL) return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    status = lib.group_shrink(old, &how, &group->group);
    Py_END_ALLOW_THREADS
    if (status < 0) ext_raise(status);
    else {
        if (ext_group_learn(group) == 0) origins = list_origins(how.origins, group->nranks);
    }
    PyMem_Free(how.origins);
    return origins;
}

/*
 * Where the other calls raise this one does nothing: it is called on the way out of a failure. It waits for nobody, so
 * the GIL is kept.
 */
static PyObject *abort_group(PyObject *self, PyObject *Py_UNUSED(unused))
{
    ext_group_t *group = (ext_group_t *)self;
    if (group->group != NULL && group->forks == ext_forks()) lib.group_abort(group->group);
    Py_RETURN_NONE;
}

/* What a fork does in place of destroy(), and an aborted group of whose rows arrays are alive. */
static PyObject *leave(PyObject *self, PyObject *Py_UNUSED(unused))
{
    ((ext_group_t *)self)->group = NULL;
    Py_RETURN_NONE;
}

/* Without memory for it the object is leaked: that is better than an array that ends while it is read. */
void ext_group_keep(PyObject **list, PyObject *object)
{
    if (*list == NULL) *list = PyList_New(0);
    if (*list != NULL && PyList_Append(*list, object) == 0) Py_DECREF(object);
    else PyErr_Clear();
}

/*
 * Forgotten first: whatever becomes of the call, there is no second one. left goes last: until the group has ended the
 * transport may read it.
 */
static PyObject *destroy(PyObject *self, PyObject *Py_UNUSED(unused))
{
    xep_group_t *group = ext_group_get(self);
    if (group == NULL) return NULL;
    ((ext_group_t *)self)->group = NULL;
    Py_BEGIN_ALLOW_THREADS
    lib.group_destroy(group);
    Py_END_ALLOW_THREADS
    Py_CLEAR(((ext_group_t *)self)->left);
    Py_RETURN_NONE;
}

/*
 * Does not destroy: that is a collective call, and when the last reference goes is nothing that ranks agree on. Types
 * made from a spec are counted by their objects.
 */
static void dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(((ext_group_t *)self)->boot);
    Py_XDECREF(((ext_group_t *)self)->left);
    PyMem_Free(((ext_group_t *)self)->gathered);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *is_open(PyObject *self, void *Py_UNUSED(unused))
{
    return PyBool_FromLong(((ext_group_t *)self)->group != NULL);
}

static PyObject *is_inherited(PyObject *self, void *Py_UNUSED(unused))
{
    return PyBool_FromLong(((ext_group_t *)self)->forks != ext_forks());
}

static PyMethodDef methods[] = {
    {"_create", create, METH_VARARGS, NULL},
    {"_peer", peer, METH_O, NULL},
    {"_mask_query", mask_query, METH_NOARGS, NULL},
    {"_shrink", shrink, METH_VARARGS, NULL},
    {"_abort", abort_group, METH_NOARGS, NULL},
    {"_leave", leave, METH_NOARGS, NULL},
    {"_destroy", destroy, METH_NOARGS, NULL},
    {"barrier", barrier, METH_NOARGS,
     "barrier($self)\n--\n\nReturns when every rank has called it. Collective, blocking."},
    {"event_fd", event_fd, METH_NOARGS,
     "event_fd($self)\n--\n\n"
     "A descriptor for event loops (asyncio's add_reader): readable when the progress thread (XEP_PROGRESS=thread)\n"
     "has finished an operation. Read 8 bytes, then test the requests. It closes with the group."},
    {"allgather", allgather, METH_O,
     "allgather($self, data)\n--\n\n"
     "The bytes of every rank, the same number from each, over the group's connections. Collective, blocking."},
    {"mask_set", mask_set, METH_O,
     "mask_set($self, rank)\n--\n\n"
     "Leaves a rank out from now on, as if it had died: one rank calls it, and all agree on it in their next calls.\n"
     "It cannot come back into this group. UnsupportedError where no buffer of the group has on_failure=\"mask\".\n"
     "Local."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"_open", is_open, NULL, NULL, NULL},
    {"_inherited", is_inherited, NULL, "Whether another process made it, of which this one is a fork.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"rank", T_UINT, offsetof(ext_group_t, rank), READONLY, "This rank."},
    {"nranks", T_UINT, offsetof(ext_group_t, nranks), READONLY, "R."},
    {"node", T_UINT, offsetof(ext_group_t, node), READONLY, "Of this rank."},
    {"nnodes", T_UINT, offsetof(ext_group_t, nnodes), READONLY, "Sets of ranks that map one another's memory."},
    {"boot", T_OBJECT, offsetof(ext_group_t, boot), READONLY, "callback, pmix, single, shrink or grow."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, dealloc}, {Py_tp_methods, methods}, {Py_tp_getset, getset}, {Py_tp_members, members}, {0, NULL},
};

static PyType_Spec spec = {"xep._ext.Group", sizeof(ext_group_t), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};

int ext_group_ready(PyObject *module)
{
    return ext_add_type(module, &spec, 1, &group_type);
}
