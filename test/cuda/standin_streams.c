/* SPDX-License-Identifier: BSD-3-Clause */

/* Streams: what is given to one is done in order, in a thread of its own, some time later. */
#include "standin.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { QUEUE = 1024, STREAMS = 64, LONGEST_DELAY_US = 300, GRAPH = 64 };

struct standin_graph {
    uint64_t number;
    standin_work_t work[GRAPH];
    int count;
};

struct standin_stream {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    standin_work_t *queue; /* [QUEUE] */
    uint64_t given, done;
    void *context;
    unsigned seed;
    standin_graph_t *capture; /* NULL: none */
    int unused;               /* destroyed: it has done all, and its thread waits for more */
};

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static standin_stream_t *all[STREAMS];
static int count;

/* Mostly at once, at times late: a kernel begins when the device gets to it. */
static void delay(standin_stream_t *stream)
{
    unsigned r = (unsigned)rand_r(&stream->seed);
    if (r % 4 == 0) usleep(r / 4 % LONGEST_DELAY_US);
}

static void *work_off(void *arg)
{
    standin_stream_t *stream = arg;
    for (;;) {
        pthread_mutex_lock(&stream->lock);
        while (stream->done == stream->given) pthread_cond_wait(&stream->changed, &stream->lock);
        const standin_work_t *work = &stream->queue[stream->done % QUEUE];
        pthread_mutex_unlock(&stream->lock);
        delay(stream);
        if (!standin_is_lost()) work->run(work->args);
        pthread_mutex_lock(&stream->lock);
        stream->done++;
        pthread_cond_broadcast(&stream->changed);
        pthread_mutex_unlock(&stream->lock);
    }
    return NULL;
}

static standin_stream_t *take_unused(void *context)
{
    standin_stream_t *stream = NULL;
    pthread_mutex_lock(&all_lock);
    for (int i = 0; i < count && stream == NULL; i++)
        if (all[i]->unused) stream = all[i];
    if (stream != NULL) {
        stream->unused = 0;
        stream->context = context;
    }
    pthread_mutex_unlock(&all_lock);
    return stream;
}

void standin_stream_destroy(standin_stream_t *stream)
{
    standin_stream_wait(stream, standin_stream_given(stream));
    pthread_mutex_lock(&all_lock);
    stream->unused = 1;
    pthread_mutex_unlock(&all_lock);
}

standin_stream_t *standin_stream_create(void *context)
{
    standin_stream_t *again = take_unused(context);
    if (again != NULL) return again;
    const char *seed = getenv("STANDIN_SEED");
    standin_stream_t *stream = calloc(1, sizeof *stream);
    if (stream == NULL) return NULL;
    stream->context = context;
    stream->queue = calloc(QUEUE, sizeof *stream->queue);
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    stream->seed = (seed == NULL ? 1 : (unsigned)atoi(seed)) * 1000003u + (unsigned)getpid();
    pthread_mutex_lock(&all_lock);
    if (stream->queue == NULL || count == STREAMS || pthread_create(&stream->thread, NULL, work_off, stream) != 0) {
        pthread_mutex_unlock(&all_lock);
        free(stream->queue);
        free(stream);
        return NULL;
    }
    all[count++] = stream;
    pthread_mutex_unlock(&all_lock);
    return stream;
}

standin_stream_t *standin_stream(void *handle)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    static standin_stream_t *by_default;
    if (handle != NULL) return handle;
    pthread_mutex_lock(&once);
    if (by_default == NULL) by_default = standin_stream_create(NULL);
    pthread_mutex_unlock(&once);
    return by_default;
}

void *standin_stream_context(const standin_stream_t *stream)
{
    return stream->context;
}

void standin_stream_add(standin_stream_t *stream, void (*run)(const void *args), const void *args, size_t bytes)
{
    if (stream->capture != NULL) {
        if (stream->capture->count == GRAPH) abort();
        standin_work_t *kept = &stream->capture->work[stream->capture->count++];
        kept->run = run;
        kept->bytes = bytes;
        memcpy(kept->args, args, bytes);
        return;
    }
    pthread_mutex_lock(&stream->lock);
    while (stream->given - stream->done == QUEUE) pthread_cond_wait(&stream->changed, &stream->lock);
    standin_work_t *work = &stream->queue[stream->given % QUEUE];
    work->run = run;
    memcpy(work->args, args, bytes);
    stream->given++;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

uint64_t standin_stream_given(standin_stream_t *stream)
{
    pthread_mutex_lock(&stream->lock);
    uint64_t given = stream->given;
    pthread_mutex_unlock(&stream->lock);
    return given;
}

int standin_stream_is_past(standin_stream_t *stream, uint64_t given)
{
    pthread_mutex_lock(&stream->lock);
    int past = stream->done >= given;
    pthread_mutex_unlock(&stream->lock);
    return past;
}

void standin_stream_wait(standin_stream_t *stream, uint64_t given)
{
    pthread_mutex_lock(&stream->lock);
    while (stream->done < given) pthread_cond_wait(&stream->changed, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
}

void standin_streams_wait_all(void)
{
    for (int i = 0;; i++) {
        pthread_mutex_lock(&all_lock);
        standin_stream_t *stream = i < count ? all[i] : NULL;
        pthread_mutex_unlock(&all_lock);
        if (stream == NULL) return;
        standin_stream_wait(stream, standin_stream_given(stream));
    }
}

/* ---- graphs ---- */

void standin_capture_begin(standin_stream_t *stream)
{
    static atomic_uint_least64_t captures;
    stream->capture = calloc(1, sizeof *stream->capture);
    stream->capture->number = ++captures;
}

standin_graph_t *standin_capture_end(standin_stream_t *stream)
{
    standin_graph_t *graph = stream->capture;
    pthread_mutex_lock(&all_lock);
    for (int i = 0; i < count; i++)
        if (all[i]->capture == graph) all[i]->capture = NULL;
    pthread_mutex_unlock(&all_lock);
    return graph;
}

uint64_t standin_capture_number(const standin_stream_t *stream)
{
    return stream->capture == NULL ? 0 : stream->capture->number;
}

int standin_capture_join(standin_stream_t *stream, uint64_t number)
{
    standin_graph_t *graph = NULL;
    pthread_mutex_lock(&all_lock);
    for (int i = 0; i < count; i++)
        if (standin_capture_number(all[i]) == number) graph = all[i]->capture;
    pthread_mutex_unlock(&all_lock);
    if (graph != NULL) stream->capture = graph;
    return graph != NULL;
}

int standin_capturing(const standin_stream_t *stream)
{
    return stream->capture != NULL;
}

void standin_graph_replay(const standin_graph_t *graph, standin_stream_t *stream)
{
    for (int i = 0; i < graph->count; i++)
        standin_stream_add(stream, graph->work[i].run, graph->work[i].args, graph->work[i].bytes);
}

void standin_graph_destroy(standin_graph_t *graph)
{
    free(graph);
}
