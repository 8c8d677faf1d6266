/* SPDX-License-Identifier: BSD-3-Clause */

/* Which addresses are in heaps, while other threads make buffers and destroy them. */

#include <pthread.h>

#include "heap.h"
#include "unit.h"

static char memory[3][4096]; /* heaps of nobody: only their addresses count */

static const xep_buffer_t *buffer_of(int i)
{
    return (const xep_buffer_t *)(const void *)memory[i];
}

TEST(addresses_of_heaps_alone_are_held)
{
    assert_false(xep_heap_holds(memory[1]));
    assert_int_equal(xep_heap_note(buffer_of(0), memory[0], 4096), XEP_OK);
    assert_int_equal(xep_heap_note(buffer_of(0), memory[2], 4096), XEP_OK);
    assert_int_equal(xep_heap_note(buffer_of(1), memory[1] + 64, 64), XEP_OK);
    assert_true(xep_heap_holds(memory[0]) && xep_heap_holds(memory[2] + 4095));
    assert_true(xep_heap_is_near(memory[1]) && !xep_heap_holds(memory[1]) && !xep_heap_holds(memory[1] + 128));
    assert_true(xep_heap_holds(memory[1] + 64) && xep_heap_holds(memory[1] + 127));
    assert_false(xep_heap_holds(NULL) || xep_heap_is_near(NULL) || xep_heap_is_near(memory[2] + 4096));
    xep_heap_forget(buffer_of(0));
    assert_true(!xep_heap_is_near(memory[0]) && !xep_heap_holds(memory[2]) && xep_heap_holds(memory[1] + 64));
    xep_heap_forget(buffer_of(1));
    assert_false(xep_heap_is_near(memory[1] + 64));
}

/* Entries are used in turn for a heap that ends below the middle and for one that begins above it. */
static void *come_and_go(void *arg)
{
    const int i = *(const int *)arg;
    for (int round = 0; round < 20000; round++) {
        const int low = round % 2 == 0;
        (void)xep_heap_note(buffer_of(i), low ? memory[0] : memory[1] + 128, low ? 4096 : 64);
        xep_heap_forget(buffer_of(i));
    }
    return NULL;
}

TEST(a_heap_is_held_and_other_memory_is_not_while_others_come_and_go)
{
    pthread_t threads[2];
    int numbers[] = {0, 1};
    assert_int_equal(xep_heap_note(buffer_of(2), memory[2], 4096), XEP_OK);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, come_and_go, &numbers[i]), 0);
    for (int round = 0; round < 200000; round++)
        assert_true(!xep_heap_holds(memory[1] + 200) && xep_heap_holds(memory[2] + round % 4096));
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    xep_heap_forget(buffer_of(2));
}
