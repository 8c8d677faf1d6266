/* SPDX-License-Identifier: BSD-3-Clause */

/** The library loaded, used over PMIx and closed, again and again: PMIx goes on where it was. ranks: 2 */
#include <dlfcn.h>
#include <stdio.h>

#include <xep/xep.h>

static int use(void *library)
{
    __typeof__(&xep_group_create) create = (__typeof__(create))dlsym(library, "xep_group_create");
    __typeof__(&xep_group_barrier) barrier = (__typeof__(barrier))dlsym(library, "xep_group_barrier");
    __typeof__(&xep_group_destroy) destroy = (__typeof__(destroy))dlsym(library, "xep_group_destroy");
    __typeof__(&xep_last_error) last_error = (__typeof__(last_error))dlsym(library, "xep_last_error");
    xep_group_t *group;
    if (create(NULL, &group) != XEP_OK || barrier(group) != XEP_OK) {
        fprintf(stderr, "boot_reload: %s\n", last_error());
        return 1;
    }
    destroy(group);
    return 0;
}

int main(void)
{
    for (int i = 0; i < 3; i++) {
        void *library = dlopen("libxep.so.1", RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) {
            fprintf(stderr, "boot_reload: %s\n", dlerror());
            return 1;
        }
        if (use(library) != 0) return 1;
        dlclose(library);
    }
    return 0;
}
