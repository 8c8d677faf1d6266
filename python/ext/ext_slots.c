/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The list is walked and changed under the GIL alone. Its members are not counted by it: each takes itself out when it
 * ends.
 */
#include "ext_slots.h"

#include "ext_python.h"

#include <stddef.h>
#include <structmember.h>
#include <time.h>

static PyTypeObject *memory_type;

/*
 * previous points to the pointer that points here, so the first one is no special case; NULL: not in the list, or no
 * longer.
 */
static void unlink_memory(ext_memory_t *memory)
{
    if (memory->previous == NULL) return;
    *memory->previous = memory->next;
    if (memory->next != NULL) memory->next->previous = memory->previous;
    memory->previous = NULL;
    memory->slots->held--;
}

/*
 * May run inside a call of the library, where it gave up the GIL and another thread dropped the last array: so the
 * library is not called here, only told later (ext_slots_drain). The array of ended handles has room, since nothing may
 * fail here.
 */
static int memory_clear(PyObject *self)
{
    ext_memory_t *memory = (ext_memory_t *)self;
    ext_slots_t *slots = memory->slots;
    unlink_memory(memory);
    if (memory->handle != NULL) slots->ended[slots->nended++] = memory->handle; /* there is room: make_room */
    if (slots->whole == memory) slots->whole = NULL;
    Py_DECREF(memory->buffer);
    return 0;
}

static void memory_dealloc(PyObject *self)
{
    ext_dealloc(self, ((ext_memory_t *)self)->weak, memory_clear);
}

static int memory_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((ext_memory_t *)self)->buffer);
    return 0;
}

/* The view holds this object, and so the slot, for as long as it lives. */
static int memory_buffer(PyObject *self, Py_buffer *view, int flags)
{
    const ext_slots_t *slots = ((ext_memory_t *)self)->slots;
    return PyBuffer_FillInfo(view, self, slots->base, (Py_ssize_t)slots->bytes, 0, flags);
}

static PyMemberDef memory_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(ext_memory_t, weak), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot memory_slots[] = {
    {Py_tp_dealloc, memory_dealloc},
    {Py_tp_traverse, memory_traverse},
    {Py_tp_members, memory_members},
    {Py_bf_getbuffer, memory_buffer},
    {Py_tp_doc, "The buffer's memory, held for one handle: what every array of its rows is based on."},
    {0, NULL},
};

static PyType_Spec memory_spec = {"xep._ext.SlotMemory", sizeof(ext_memory_t), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, memory_slots};

static ext_memory_t *new_memory(ext_slots_t *slots, PyObject *buffer)
{
    ext_memory_t *memory = (ext_memory_t *)memory_type->tp_alloc(memory_type, 0);
    if (memory == NULL) return NULL;
    Py_INCREF(buffer);
    memory->buffer = buffer;
    memory->slots = slots;
    return memory;
}

/* For every memory that lives, and one more: then the end of any of them needs no allocation. */
static int make_room(ext_slots_t *slots)
{
    const Py_ssize_t need = slots->held + slots->nended + 1;
    if (need <= slots->room) return 0;
    xep_handle_t **ended = PyMem_Realloc(slots->ended, sizeof *ended * (size_t)need * 2);
    if (ended == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    slots->ended = ended;
    slots->room = need * 2;
    return 0;
}

/* The library's handle is put into it by the dispatch that asks for this. */
ext_memory_t *ext_slots_hold(ext_slots_t *slots, PyObject *buffer)
{
    ext_memory_t *memory = make_room(slots) == 0 ? new_memory(slots, buffer) : NULL;
    if (memory == NULL) return NULL;
    memory->next = slots->first;
    memory->previous = &slots->first;
    if (slots->first != NULL) slots->first->previous = &memory->next;
    slots->first = memory;
    slots->held++;
    return memory;
}

/* One object for all who ask, so that it is counted once. */
PyObject *ext_slots_whole(ext_slots_t *slots, PyObject *buffer)
{
    if (slots->whole == NULL) slots->whole = new_memory(slots, buffer);
    else Py_INCREF(slots->whole);
    return (PyObject *)slots->whole;
}

PyThreadState *ext_slots_leave_gil(ext_slots_t *slots)
{
    if (ext_is_alone()) return NULL;
    slots->giving_back++;
    return PyEval_SaveThread();
}

void ext_slots_take_gil(ext_slots_t *slots, PyThreadState *state)
{
    if (state == NULL) return;
    PyEval_RestoreThread(state);
    slots->giving_back--;
}

void ext_slots_drain(ext_slots_t *slots)
{
    while (slots->nended > 0) {
        xep_handle_t *handle = slots->ended[--slots->nended];
        PyThreadState *state = ext_slots_leave_gil(slots);
        lib.handle_release(handle);
        ext_slots_take_gil(slots, state);
    }
}

void ext_slots_settle(const ext_slots_t *slots)
{
    const struct timespec moment = {.tv_nsec = 100 * 1000};
    while (slots->giving_back > 0) {
        PyThreadState *state = PyEval_SaveThread();
        (void)nanosleep(&moment, NULL);
        PyEval_RestoreThread(state);
    }
}

PyObject *ext_slots_owners(const ext_slots_t *slots)
{
    PyObject *owners = PyList_New(0);
    for (ext_memory_t *memory = slots->first; owners != NULL && memory != NULL; memory = memory->next)
        if (memory->owner != NULL && PyList_Append(owners, memory->owner) != 0) Py_CLEAR(owners);
    return owners;
}

Py_ssize_t ext_slots_orphans(const ext_slots_t *slots)
{
    Py_ssize_t count = slots->whole != NULL;
    for (const ext_memory_t *memory = slots->first; memory != NULL; memory = memory->next)
        count += memory->owner == NULL;
    return count;
}

/*
 * References to a memory are those of its Handle, one at most, and of arrays: more than the one means that arrays look
 * at it.
 */
Py_ssize_t ext_slots_viewed(const ext_slots_t *slots)
{
    Py_ssize_t count = 0;
    for (ext_memory_t *memory = slots->first; memory != NULL; memory = memory->next)
        count += Py_REFCNT(memory) > (memory->owner != NULL);
    return count;
}

/*
 * Not a call of the library: it has ended the handles itself, or will. Arrays keep their memory, and when they end
 * there is nothing left to release.
 */
void ext_slots_forget(ext_slots_t *slots)
{
    while (slots->first != NULL) {
        slots->first->handle = NULL;
        unlink_memory(slots->first);
    }
    slots->nended = 0;
}

int ext_slots_ready(PyObject *module)
{
    return ext_add_type(module, &memory_spec, 0, &memory_type);
}
