/* SPDX-License-Identifier: BSD-3-Clause */

/* Devices and contexts, and which function fails when. */
#include <stdlib.h>
#include <string.h>

#include "standin.h"

enum { DEVICES = 8 };

/* ---- what fails, and what is left ---- */

static struct {
    const char *function; /* NULL: none */
    int call, passed;
} failing;
static _Atomic int alive, lost;

/* By the thread that calls the library, between two of its calls. */
int standin_fail(const char *function, int call)
{
    const int passed = failing.passed;
    failing.function = call == 0 ? NULL : function;
    failing.call = call;
    failing.passed = 0;
    return passed;
}

/* Queued work is dropped, too. */
void standin_lose(void)
{
    lost = 1;
}

int standin_is_lost(void)
{
    return lost;
}

result_t standin_error(result_t usual)
{
    return lost ? LOST : usual;
}

int standin_fails(const char *function)
{
    if (lost) return 1;
    const char *named = getenv("STANDIN_FAILS");
    if (named != NULL && strcmp(named, function) == 0) return 1;
    return failing.function != NULL && strcmp(failing.function, function) == 0 && ++failing.passed == failing.call;
}

int standin_alive(void)
{
    return alive;
}

void standin_count(int made)
{
    alive += made;
}

/* ---- contexts: one for each device, others that programs make, and a stack of one or two in every thread ---- */

static int contexts[DEVICES];
static _Thread_local void *stack[16];
static _Thread_local int depth;

void *standin_context(void)
{
    return depth == 0 ? NULL : stack[depth - 1];
}

API cuInit(unsigned flags)
{
    if (standin_fails("cuInit")) return standin_error(NO_DEVICE);
    return flags == 0 ? DONE : INVALID;
}

API cuDeviceGetCount(int *count_p)
{
    *count_p = DEVICES;
    return DONE;
}

API cuDevicePrimaryCtxRetain(void **context_p, int device)
{
    if (device < 0 || device >= DEVICES) return INVALID;
    contexts[device] = device;
    *context_p = &contexts[device];
    return DONE;
}

API cuCtxGetCurrent(void **context_p)
{
    *context_p = standin_context();
    return DONE;
}

API cuCtxSetCurrent(void *context)
{
    depth = context == NULL ? 0 : 1;
    stack[0] = context;
    return DONE;
}

API cuCtxPushCurrent_v2(void *context)
{
    if (context == NULL || depth == 16) return INVALID;
    stack[depth++] = context;
    return DONE;
}

API cuCtxPopCurrent_v2(void **context_p)
{
    if (depth == 0) return NO_CONTEXT;
    *context_p = stack[--depth];
    return DONE;
}

API cuCtxCreate_v2(void **context_p, unsigned flags, int device)
{
    int *context = device < 0 || device >= DEVICES || flags != 0 ? NULL : malloc(sizeof *context);
    if (context == NULL) return INVALID;
    *context = device;
    standin_count(1);
    *context_p = context;
    return cuCtxPushCurrent_v2(context);
}

API cuCtxDestroy_v2(void *context)
{
    void *popped;
    if (context == standin_context()) cuCtxPopCurrent_v2(&popped);
    standin_streams_wait_all();
    standin_count(-1);
    free(context);
    return DONE;
}

API cuCtxGetDevice(int *device_p)
{
    if (standin_fails("cuCtxGetDevice")) return standin_error(NO_CONTEXT);
    if (standin_context() == NULL) return NO_CONTEXT;
    *device_p = *(const int *)standin_context();
    return DONE;
}

API cuDeviceGetAttribute(int *value_p, int attribute, int device)
{
    if (standin_fails("cuDeviceGetAttribute")) return standin_error(INVALID);
    if (device < 0 || device >= DEVICES || (attribute != 16 && attribute != 97)) return INVALID;
    *value_p = attribute == 16 ? 24 : 232448; /* multiprocessors; shared memory of a block */
    return DONE;
}

API cuGetErrorString(result_t result, const char **text_p)
{
    *text_p = result == INVALID     ? "invalid argument"
              : result == NO_MEMORY ? "out of memory"
              : result == NO_WAY    ? "peer access is not supported between these two devices"
              : result == TOO_NEW   ? "the provided PTX was compiled with an unsupported toolchain."
              : result == NOT_FOUND ? "named symbol not found"
              : result == LOST      ? "unspecified launch failure"
                                    : "no error, or one that is not known";
    return DONE;
}
