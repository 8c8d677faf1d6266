/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * To be preloaded: the program itself gets no thread, as at a limit of memory; the libraries that it uses get theirs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>

static ElfW(Addr) program_base(void)
{
    const struct link_map *program = dlopen(NULL, RTLD_NOW); /* the first of the list is the program */
    return program->l_addr;
}

__attribute__((visibility("default"))) int pthread_create(pthread_t *thread, const pthread_attr_t *attr,
                                                          void *(*fn)(void *), void *arg);

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
    Dl_info of;
    if (dladdr((void *)(uintptr_t)fn, &of) != 0 && (ElfW(Addr))(uintptr_t)of.dli_fbase == program_base()) return EAGAIN;
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
        (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))(uintptr_t)dlsym(RTLD_NEXT,
                                                                                                  "pthread_create");
    return real(thread, attr, fn, arg);
}
