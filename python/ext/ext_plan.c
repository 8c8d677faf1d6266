/* SPDX-License-Identifier: BSD-3-Clause */

#include "ext_params.h"

#include "ext_args.h"
#include "ext_python.h"

static PyObject *view(const void *array, size_t bytes, int flags)
{
    if (array == NULL) Py_RETURN_NONE;
    return PyMemoryView_FromMemory((char *)(uintptr_t)array, (Py_ssize_t)bytes, flags);
}

/* xep_plan_fn: in dispatch(), which has given up the GIL. The views end with the call: Plan copies what it shows. */
static int run(void *ctx, const xep_plan_t *plan)
{
    const PyGILState_STATE state = PyGILState_Ensure();
    const size_t experts = plan->experts, instances = plan->begin[experts], each = sizeof(uint32_t);
    PyObject *result = PyObject_CallMethod(ctx, "make", "IINNNNN", plan->experts, plan->nranks,
                                           view(plan->counts, plan->nranks * experts * each, PyBUF_READ),
                                           view(plan->begin, (experts + 1) * each, PyBUF_READ),
                                           view(plan->rank, instances * each, PyBUF_READ),
                                           view(plan->rows, instances * sizeof *plan->rows, PyBUF_WRITE),
                                           view(plan->out, plan->nranks, PyBUF_READ));
    const int ret = result == Py_True ? 0 : -1;
    if (result == NULL) PyErr_WriteUnraisable(ctx);
    Py_XDECREF(result);
    PyGILState_Release(state);
    return ret;
}

int ext_plan_read(PyObject *balance, PyObject **plan_p, xep_buffer_params_t *params)
{
    if (balance == NULL || !PyCallable_Check(balance)) return ext_args_word(EXT_BALANCE, balance, &params->balance);
    *plan_p = ext_call_helper("Plan", "(O)", balance);
    if (*plan_p == NULL) return -1;
    params->balance = XEP_BALANCE_PLAN;
    params->plan = run;
    params->plan_ctx = *plan_p;
    return 0;
}

int ext_plan_raise(PyObject *plan)
{
    PyObject *raised = plan != NULL ? PyObject_CallMethod(plan, "take_raised", NULL) : NULL;
    if (raised != NULL && raised != Py_None) PyErr_SetObject((PyObject *)Py_TYPE(raised), raised);
    Py_XDECREF(raised);
    return PyErr_Occurred() != NULL;
}
