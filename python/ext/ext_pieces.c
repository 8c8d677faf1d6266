/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The piece that a handle shows ends with a call of next(): arrays of its rows look at the next one's then, so what was
 * Received for it gives no arrays any more.
 */
#include "ext_module.h"

#include "ext_args.h"
#include "ext_combine.h"
#include "ext_failed.h"
#include "ext_python.h"
#include "ext_request.h"

/* What was shown goes on saying what it was, without arrays. What give() was told was of that piece. */
static void end_piece(ext_handle_t *handle)
{
    for (int kind = 0; kind < EXT_KINDS; kind++) {
        ext_shown_t *shown = handle->shown[kind];
        handle->shown[kind] = NULL;
        if (shown != NULL) ext_handle_forget_arrays(shown);
    }
    Py_CLEAR(handle->given);
}

/* ---- outputs ---- */

static const char give_doc[] =
    "give($self, x, topk_weights=None, dtype=None)\n--\n\n"
    "Expert outputs of the rows that are shown, as combine() takes them: the next iteration of pieces(), next() or\n"
    "combine() without x reads them, and until then they must not change. Nothing is copied or sent here.";

enum { GIVEN_X, GIVEN_WEIGHTS, GIVEN_DTYPE, GIVEN_COUNT };

/*
 * Outputs are read here only to be checked: a wrong array is an error of give(), and the call that uses it reads it
 * again. Nothing is sent, so such an error is not counted as a call that this rank refused.
 */
static PyObject *give(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *keywords)
{
    static ext_signature_t signature = {"give", give_doc, GIVEN_COUNT, 0, {NULL}};
    ext_handle_t *handle = (ext_handle_t *)self;
    xep_combine_args_t outputs = XEP_COMBINE_ARGS_INIT;
    PyObject *values[GIVEN_COUNT];
    ext_element_t made;
    if (ext_args_read(&signature, args, nargs, keywords, values) != 0) return NULL;
    if (values[GIVEN_X] == NULL) values[GIVEN_X] = Py_None; /* no array, and refused as such */
    if (ext_combine_read(handle, values[GIVEN_X], values[GIVEN_WEIGHTS], values[GIVEN_DTYPE], &outputs, &made) != 0)
        return NULL;
    PyObject *given = ext_args_keep(NULL, values, GIVEN_COUNT);
    if (given == NULL) return NULL;
    Py_XSETREF(handle->given, given);
    Py_RETURN_NONE;
}

/* ---- the next piece ---- */

#define EXT_PARAMETERS \
    "($self, x=None, *, topk_weights=None, dtype=None, outputs=True, wait_ns=None, timeout=None)\n--\n\n"

static const char next_doc[] =
    "next" EXT_PARAMETERS
    "Takes the expert outputs of the piece that is shown back to its tokens' ranks, where they are kept for\n"
    "combine(), and brings the next piece: recv is that one then. Collective, blocking; every rank calls it\n"
    "recv.pieces - 1 times, also one that gets no rows any more. pieces() does this.\n\n"
    "x, topk_weights, dtype: as in combine(); x None: what give() was told, else what was written to combine_input().\n"
    "outputs: False: the piece has none, and there will be no combine().\n"
    "wait_ns, timeout: as in combine().\n\n"
    "Arrays of the piece before keep their memory, which has rows of this one then, or nothing of use. InvalidError:\n"
    "the last piece is shown already, or outputs are of another kind than before; nothing has changed.";

static const char next_async_doc[] =
    "next_async" EXT_PARAMETERS
    "As next(), but returns once it is begun; wait() has the handle. Outputs must not be touched before.";

#undef EXT_PARAMETERS

/* SENT is no argument: behind the arguments that are kept stands what the dispatch was given. */
enum { X, TOPK_WEIGHTS, DTYPE, OUTPUTS, WAIT_NS, TIMEOUT, SENT, COUNT = SENT };

_Static_assert(COUNT <= EXT_MOST_PARAMETERS, "no room for a name");
static ext_signature_t signature = {"next", next_doc, COUNT, 0, {NULL}};

/*
 * *args_p: NULL where there are no outputs, which is how the library is told so. It then has no struct that could hold
 * anything else, so every other argument is refused, the timeout too. -1: an exception is set.
 */
static int fill_args(const ext_handle_t *handle, PyObject *const *values, int has_outputs, xep_next_args_t *args,
                     xep_next_args_t **args_p)
{
    xep_combine_args_t outputs = XEP_COMBINE_ARGS_INIT;
    ext_element_t made;
    if (!has_outputs) {
        PyObject *const *extra = values;
        while (extra < values + COUNT && (*extra == NULL || extra == values + OUTPUTS)) extra++;
        if (extra == values + COUNT) return 0;
        PyErr_Format(PyExc_ValueError, "%U: expected None with outputs=False", signature.names[extra - values]);
        return -1;
    }
    if (ext_combine_read(handle, values[X], values[TOPK_WEIGHTS], values[DTYPE], &outputs, &made) != 0 ||
        ext_args_vector("wait_ns", values[WAIT_NS], EXT_HOST, handle->nranks, XEP_INT64, &args->wait_ns) != 0)
        return -1;
    args->x = outputs.x, args->x_stride = outputs.x_stride;
    args->dtype = outputs.dtype, args->hidden = outputs.hidden;
    args->topk_weights = outputs.topk_weights, args->topk_weights_stride = outputs.topk_weights_stride;
    *args_p = args;
    return ext_args_timeout(values[TIMEOUT], &args->timeout_ms);
}

/*
 * What the dispatch was given is read again, so it is kept with the outputs, as long as the transport may read them.
 * The handle is the result, and kept by a request as such. Returns a new reference to it, or to the Request.
 *
 * values are borrowed from the caller, who also holds what give() was told: end_piece() lets go of that. sent gets a
 * reference for the call, as whoever releases the handle meanwhile clears the handle's own.
 */
static PyObject *bring(ext_handle_t *handle, PyObject *const *values, int has_outputs, int begin_only)
{
    xep_next_args_t args = XEP_NEXT_ARGS_INIT, *outputs = NULL;
    xep_request_t *request = NULL;
    PyObject *kept[COUNT + 1];
    xep_status_t status;
    if (ext_handle_get(handle) == NULL) return ext_failed_refuse(handle->buffer);
    if (ext_request_begin(handle->buffer) == NULL) return NULL;
    /* again: what was settled may have been its dispatch, which failed; and what arrays are asked may release it */
    if (ext_handle_get(handle) == NULL || fill_args(handle, values, has_outputs, &args, &outputs) != 0)
        return ext_failed_refuse(handle->buffer);
    xep_handle_t *own = ext_handle_get(handle);
    if (own == NULL) return ext_failed_refuse(handle->buffer);
    memcpy(kept, values, COUNT * sizeof *kept);
    kept[SENT] = handle->sent;
    Py_XINCREF(kept[SENT]);
    PyObject *memory = (PyObject *)handle->memory, *result = NULL;
    Py_INCREF(memory); /* another thread may release the handle */
    Py_BEGIN_ALLOW_THREADS
    status = lib.handle_next(own, outputs, begin_only ? &request : NULL);
    Py_END_ALLOW_THREADS
    Py_INCREF(handle);
    if (status < 0) {
        ext_failed_raise(handle->buffer, status, EXT_UNKNOWN_ROWS);
        ext_failed_keep_values(handle->buffer, status, kept, COUNT + 1);
        Py_DECREF(handle);
    } else {
        end_piece(handle);
        if (!begin_only) ext_handle_came(handle);
        result = begin_only ? ext_request_new(handle->buffer, request, (PyObject *)handle, NULL, kept, COUNT + 1)
                            : (PyObject *)handle;
    }
    if (begin_only && result != NULL) ((ext_request_t *)result)->keeps_rows = 1;
    Py_XDECREF(kept[SENT]);
    Py_DECREF(memory);
    return result;
}

static PyObject *next_by(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *keywords, int begin_only)
{
    static const int at[3] = {X, TOPK_WEIGHTS, DTYPE};
    ext_handle_t *handle = (ext_handle_t *)self;
    PyObject *values[COUNT];
    if (ext_args_read(&signature, args, nargs, keywords, values) != 0) return ext_failed_refuse(handle->buffer);
    const int has_outputs = values[OUTPUTS] == NULL ? 1 : PyObject_IsTrue(values[OUTPUTS]);
    if (has_outputs < 0) return ext_failed_refuse(handle->buffer);
    PyObject *given = has_outputs ? ext_combine_given(handle, values, at) : NULL;
    PyObject *result = bring(handle, values, has_outputs, begin_only);
    Py_XDECREF(given);
    return result;
}

static PyObject *next(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *keywords)
{
    return next_by(self, args, nargs, keywords, 0);
}

static PyObject *next_async(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *keywords)
{
    return next_by(self, args, nargs, keywords, 1);
}

/* ---- all of them ---- */

static const char pieces_doc[] =
    "pieces($self, *, outputs=True, timeout=None)\n--\n\n"
    "Received rows, piece after piece: of a dispatch whose rows came at once, that one. Each iteration but the first\n"
    "is next(outputs=outputs, timeout=timeout), so all ranks go through all of them::\n\n"
    "    for piece in handle.pieces():      # piece is handle.recv\n"
    "        handle.give(experts(piece))    # or write to handle.combine_input()\n"
    "    out = handle.combine()\n\n"
    "What an iteration gives is there until the next one.";

/* Options are checked here, before there is a call that could be counted as refused. */
static PyObject *loop(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *keywords)
{
    static ext_signature_t options = {"pieces", pieces_doc, 2, 0, {NULL}};
    PyObject *values[2];
    int32_t timeout_ms;
    if (ext_args_read(&options, args, nargs, keywords, values) != 0) return NULL;
    const int has = values[0] != NULL ? PyObject_IsTrue(values[0]) : 1;
    if (has < 0 || ext_args_timeout(values[1], &timeout_ms) != 0) return NULL;
    if (!has && values[1] != NULL) {
        PyErr_SetString(PyExc_ValueError, "timeout: expected None with outputs=False");
        return NULL;
    }
    return ext_call_helper("Pieces", "(OOO)", self, has ? Py_None : Py_False, values[1] != NULL ? values[1] : Py_None);
}

PyMethodDef ext_pieces_methods[] = {
    {"next", EXT_KEYWORDS(next), next_doc},
    {"next_async", EXT_KEYWORDS(next_async), next_async_doc},
    {"give", EXT_KEYWORDS(give), give_doc},
    {"pieces", EXT_KEYWORDS(loop), pieces_doc},
    {NULL, NULL, 0, NULL},
};
