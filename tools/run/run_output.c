/* SPDX-License-Identifier: BSD-3-Clause */

/* A line is written in one piece with its label, so that lines of several ranks do not mix. */
#define _GNU_SOURCE

#include "run_output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <termios.h>
#include <unistd.h>

#include "run.h"

/* a longer line comes out in several, each with the label */
enum { LINE_BYTES = 65536, LABEL_BYTES = 16 };

typedef struct stream {
    int read_fd, write_fd; /* of the pipe; -1: closed */
    int out_fd;            /* 1 or 2 */
    size_t label;          /* bytes of it, at the start of line */
    size_t filled;         /* of line: label and what came since the last newline */
    char *line;            /* [LABEL_BYTES + LINE_BYTES + 1] */
} stream_t;

struct run_output {
    size_t nstreams;
    stream_t *streams; /* [rank * 2 + (0: stdout, 1: stderr)] */
    struct pollfd *polls;
    struct rlimit files; /* as ranks are to have it */
    int done_fd;
};

/* 0, or -1 when nobody reads any more */
static int write_all(int fd, const char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t written = write(fd, bytes, count);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0 && errno == EAGAIN) { /* our stdout was made non-blocking, by whoever shares it */
            struct pollfd poll_fd = {.fd = fd, .events = POLLOUT};
            poll(&poll_fd, 1, -1);
            continue;
        }
        if (written < 0) return -1;
        bytes += written;
        count -= (size_t)written;
    }
    return 0;
}

/* the label and the line in one write, so that lines of several writers to a pipe or a file stay whole */
static int write_line(stream_t *stream)
{
    int ret = write_all(stream->out_fd, stream->line, stream->filled);
    stream->filled = stream->label;
    return ret;
}

/* The line is kept until its newline comes; one that is too long is cut, so that a rank cannot fill our memory. */
static int add_bytes(stream_t *stream, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (stream->filled == LABEL_BYTES + LINE_BYTES) {
            stream->line[stream->filled++] = '\n';
            if (write_line(stream) != 0) return -1;
        }
        stream->line[stream->filled++] = bytes[i];
        if (bytes[i] == '\n' && write_line(stream) != 0) return -1;
    }
    return 0;
}

/* the rank then gets SIGPIPE, as it would without us */
static void stream_close(stream_t *stream)
{
    close(stream->read_fd);
    stream->read_fd = -1;
}

/*
 * At its end a last line without a newline gets one, or the next label would stand in the middle of a line. A stream is
 * also closed when it cannot be read, or when nobody takes our output any more.
 */
static void stream_read(stream_t *stream)
{
    char bytes[16384];
    ssize_t count = read(stream->read_fd, bytes, sizeof bytes);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (count > 0 && add_bytes(stream, bytes, (size_t)count) == 0) return;
    if (count <= 0 && stream->filled > stream->label) { /* a terminal's end is an error */
        stream->line[stream->filled++] = '\n';
        write_line(stream);
    }
    stream_close(stream);
}

/*
 * The one thread that touches streams once it runs. It ends when every rank, and all that ranks have started, has
 * closed its output; nobody joins it, done_fd tells.
 */
static void *pump(void *arg)
{
    run_output_t *output = arg;
    uint64_t one = 1;
    for (;;) {
        size_t open = 0;
        for (size_t i = 0; i < output->nstreams; i++) {
            output->polls[i] = (struct pollfd){.fd = output->streams[i].read_fd, .events = POLLIN};
            open += output->streams[i].read_fd >= 0;
        }
        if (open == 0) break;
        if (poll(output->polls, output->nstreams, -1) <= 0) continue;
        for (size_t i = 0; i < output->nstreams; i++)
            if (output->polls[i].revents != 0) stream_read(&output->streams[i]);
    }
    return write(output->done_fd, &one, sizeof one) < 0 ? output : NULL;
}

/* Opens a terminal if ours is one: else ranks would buffer their lines, and lose them when they are killed. */
static int open_terminal(int out_fd, int ends[2])
{
    struct termios raw;
    struct winsize size;
    char path[64];
    ends[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (ends[0] < 0 || unlockpt(ends[0]) != 0 || ptsname_r(ends[0], path, sizeof path) != 0) return -1;
    ends[1] = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (ends[1] < 0 || tcgetattr(ends[1], &raw) != 0) return -1;
    cfmakeraw(&raw); /* our own terminal converts ends of lines */
    if (ioctl(out_fd, TIOCGWINSZ, &size) == 0) (void)ioctl(ends[1], TIOCSWINSZ, &size);
    return tcsetattr(ends[1], TCSANOW, &raw);
}

/* The label is put in front of the line once, and stays there. */
static int stream_open(stream_t *stream, uint32_t rank, int out_fd)
{
    int ends[2];
    if ((isatty(out_fd) ? open_terminal(out_fd, ends) : pipe2(ends, O_CLOEXEC)) != 0) return -1;
    stream->read_fd = ends[0];
    stream->write_fd = ends[1];
    stream->out_fd = out_fd;
    stream->line = malloc(LABEL_BYTES + LINE_BYTES + 1);
    if (stream->line == NULL) return -1;
    stream->label = stream->filled = (size_t)snprintf(stream->line, LABEL_BYTES, "[%u] ", rank);
    return 0;
}

/*
 * Raises the limit to two ends for each of two streams, and other open files. Ranks get the old limit: some use
 * select().
 */
static void raise_limit(run_output_t *output)
{
    enum { OTHERS = 64 };
    getrlimit(RLIMIT_NOFILE, &output->files);
    struct rlimit files = output->files;
    rlim_t wanted = 2 * (rlim_t)output->nstreams + OTHERS;
    if (files.rlim_cur >= wanted) return;
    files.rlim_cur = wanted < files.rlim_max ? wanted : files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
}

/* After a failure the process ends soon, and with it what was opened. */
int run_output_open(uint32_t nranks, run_output_t **output_p)
{
    run_output_t *output = calloc(1, sizeof *output);
    if (output == NULL) goto fail;
    output->nstreams = 2 * (size_t)nranks;
    raise_limit(output);
    output->streams = calloc(output->nstreams, sizeof *output->streams);
    output->polls = calloc(output->nstreams, sizeof *output->polls);
    output->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (output->streams == NULL || output->polls == NULL || output->done_fd < 0) goto fail;
    for (size_t i = 0; i < output->nstreams; i++)
        if (stream_open(&output->streams[i], (uint32_t)(i / 2), (int)(i % 2) + 1) != 0) goto fail;
    *output_p = output;
    return 0;
fail:
    run_say("cannot read the output of %u ranks: %s", nranks, strerror(errno));
    return -1;
}

/* In the child, between fork and exec: dup2() takes O_CLOEXEC away from the copy, and the exec closes the rest. */
void run_output_attach(run_output_t *output, uint32_t rank)
{
    (void)setrlimit(RLIMIT_NOFILE, &output->files);
    dup2(output->streams[2 * (size_t)rank].write_fd, 1);
    dup2(output->streams[2 * (size_t)rank + 1].write_fd, 2);
}

/* Our own writing ends are closed first: with one of them open no stream would ever end. */
int run_output_start(run_output_t *output)
{
    pthread_t thread;
    for (size_t i = 0; i < output->nstreams; i++) close(output->streams[i].write_fd);
    int ret = pthread_create(&thread, NULL, pump, output);
    if (ret == 0) ret = pthread_detach(thread);
    if (ret == 0) return 0;
    run_say("cannot start a thread: %s", strerror(ret));
    return -1;
}

int run_output_done_fd(const run_output_t *output)
{
    return output->done_fd;
}
