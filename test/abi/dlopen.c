/* SPDX-License-Identifier: BSD-3-Clause */

/** libxep.so loaded and unloaded at run time, as a language binding does it: nothing leaks out, all comes back. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <xep/xep.h>

#include "unit.h"

static const char library_name[] = "libxep.so.1";

static void *load(void)
{
    void *library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) fail_msg("%s", dlerror());
    return library;
}

/* ISO C has no conversion between the two kinds of pointer */
static void find(void *library, const char *name, void *function_p)
{
    void *symbol = dlsym(library, name);
    if (symbol == NULL) fail_msg("%s", dlerror());
    memcpy(function_p, &symbol, sizeof symbol);
}

void unit_before_each(void)
{
    setenv("XEP_BOOT", "single", 1);
}

TEST(version_is_that_of_the_headers)
{
    const char *(*version)(void);
    void *library = load();
    find(library, "xep_version_string", &version);
    assert_string_equal(version(), XEP_VERSION);
    assert_int_equal(dlclose(library), 0);
}

TEST(names_stay_inside)
{
    void *library = load();
    assert_null(dlsym(RTLD_DEFAULT, "xep_version_string"));
    assert_null(dlsym(library, "xep_fail"));
    assert_int_equal(dlclose(library), 0);
}

TEST(null_is_a_no_op)
{
    static const char *const names[] = {"xep_group_abort", "xep_buffer_abort", "xep_handle_release",
                                        "xep_request_free"};
    void *library = load();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void (*call)(void *);
        find(library, names[i], &call);
        call(NULL);
    }
    for (size_t i = 0; i < 2; i++) {
        xep_status_t (*destroy)(void *);
        find(library, i == 0 ? "xep_group_destroy" : "xep_buffer_destroy", &destroy);
        assert_int_equal(destroy(NULL), XEP_OK);
    }
    assert_int_equal(dlclose(library), 0);
}

TEST(null_is_an_error_elsewhere)
{
    xep_status_t (*buffer_create)(xep_group_t *, const xep_buffer_params_t *, xep_buffer_t **);
    xep_status_t (*barrier)(xep_group_t *);
    xep_status_t (*test)(xep_request_t *), (*wait_counts)(xep_request_t *);
    xep_status_t (*recv)(const xep_handle_t *, const xep_recv_t **);
    void *library = load();
    find(library, "xep_buffer_create", &buffer_create);
    find(library, "xep_group_barrier", &barrier);
    find(library, "xep_request_test", &test);
    find(library, "xep_request_wait_counts", &wait_counts);
    find(library, "xep_handle_recv", &recv);
    assert_int_equal(buffer_create(NULL, NULL, NULL), XEP_ERR_INVALID);
    assert_int_equal(barrier(NULL), XEP_ERR_INVALID);
    assert_int_equal(test(NULL), XEP_ERR_INVALID);
    assert_int_equal(wait_counts(NULL), XEP_ERR_INVALID);
    assert_int_equal(recv(NULL, NULL), XEP_ERR_INVALID);
    assert_int_equal(dlclose(library), 0);
}

static void use(void *library)
{
    xep_status_t (*group_create)(const xep_group_params_t *, xep_group_t **);
    xep_status_t (*buffer_create)(xep_group_t *, const xep_buffer_params_t *, xep_buffer_t **);
    xep_status_t (*group_destroy)(xep_group_t *);
    xep_status_t (*buffer_destroy)(xep_buffer_t *);
    xep_buffer_params_t params = XEP_BUFFER_PARAMS_INIT;
    xep_group_t *group;
    xep_buffer_t *buffer;
    find(library, "xep_group_create", &group_create);
    find(library, "xep_group_destroy", &group_destroy);
    find(library, "xep_buffer_create", &buffer_create);
    find(library, "xep_buffer_destroy", &buffer_destroy);
    params.experts = 4, params.topk = 2, params.hidden = 16, params.tokens = 8;
    assert_int_equal(group_create(NULL, &group), XEP_OK);
    assert_int_equal(buffer_create(group, &params, &buffer), XEP_OK);
    assert_int_equal(buffer_destroy(buffer), XEP_OK);
    assert_int_equal(group_destroy(group), XEP_OK);
}

TEST(loads_again_after_use)
{
    for (int i = 0; i < 3; i++) {
        void *library = load();
        use(library);
        assert_int_equal(dlclose(library), 0);
    }
}

static void *close_there(void *library)
{
    return (void *)(intptr_t)dlclose(library);
}

TEST(unloads_from_another_thread)
{
    pthread_t thread;
    void *ret, *library = load();
    use(library);
    assert_int_equal(pthread_create(&thread, NULL, close_there, library), 0);
    assert_int_equal(pthread_join(thread, &ret), 0);
    assert_null(ret);
}
