/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Python only notes that a signal has come, and runs its handlers between calls. So they are run here, now and then,
 * while a call waits. What they raise, KeyboardInterrupt as a rule, goes to the caller in place of the error with which
 * the call then ends; where it ends well, or has no error to tell, Python raises it right behind the call.
 */
#include "ext_library.h"

static PyObject *kept[3]; /* type, value, traceback; under the GIL */

int ext_signals_set(void)
{
    if (kept[0] == NULL) return 0;
    PyErr_Restore(kept[0], kept[1], kept[2]);
    kept[0] = kept[1] = kept[2] = NULL;
    return 1;
}

static int set_later(void *unused)
{
    (void)unused;
    return ext_signals_set() ? -1 : 0;
}

int ext_signals_raised(void *unused)
{
    (void)unused;
    if (!Py_IsInitialized()) return 0;
    const PyGILState_STATE state = PyGILState_Ensure();
    const int raised = PyErr_CheckSignals() != 0;
    if (raised && kept[0] == NULL) {
        PyErr_Fetch(&kept[0], &kept[1], &kept[2]);
        (void)Py_AddPendingCall(set_later, NULL);
    } else if (raised) {
        PyErr_Clear(); /* a second Ctrl-C */
    }
    PyGILState_Release(state);
    return raised;
}
