/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * The file into which one rank writes its trace: FILE.RANK of XEP_TRACE. The library maps it, so what a rank wrote
 * before it was killed is there; xep_trace reads it.
 *
 * [ header | ring 0 | ring 1 | ... ], all of ring_bytes but the header. A ring has one writer at a time, a thread of
 * the rank: it writes event[written % capacity], then "written" with release. A reader that does not know whether the
 * writer was killed in between leaves out the event that would be overwritten next.
 */
#ifndef XEP_UTIL_TRACE_FILE_H
#define XEP_UTIL_TRACE_FILE_H

#include <stdatomic.h>
#include <stdint.h>

#define XEP_TRACE_MAGIC "xeptrac1"

enum {
    XEP_TRACE_UNIT = 65536, /* header and rings are multiples: pages have up to 64 KiB */
    XEP_TRACE_RINGS = 64,   /* most of a rank */
    XEP_TRACE_BUFFERS = 64, /* that are described */
    XEP_TRACE_SYNCS = 8,    /* kept of the first barriers, and of the last ones */
    XEP_TRACE_NAME = 32
};

typedef enum {
    XEP_TRACE_OPERATION, /* from the call until it has ended */
    XEP_TRACE_PHASE,     /* of an operation; named */
    XEP_TRACE_WAIT,      /* of an operation, for one rank */
    XEP_TRACE_WORK,      /* of one thread of a team */
    XEP_TRACE_CALL,      /* of the library, by a thread of the program; named */
    XEP_TRACE_SPAN,      /* of the program itself; named */
    XEP_TRACE_KINDS
} xep_trace_kind_t;

typedef struct xep_trace_event {
    uint64_t begin_ns, end_ns; /* monotonic clock of the rank */
    uint64_t epoch;            /* of the operation; of a barrier: its number; 0: none */
    uint32_t where;            /* number of the buffer; of a call or span: of the thread, as the kernel has it */
    uint16_t lane;             /* request of the operation; of work: thread of the team */
    uint8_t kind;              /* xep_trace_kind_t */
    uint8_t op;                /* xep_op_kind_t: of operations, phases and waits */
    union {
        char name[XEP_TRACE_NAME]; /* ends with 0 */
        struct {
            uint64_t tokens, rows; /* of this rank: sent, received */
            int32_t status;
            uint32_t slot;
        } operation;
        uint32_t rank; /* waited for */
    };
} xep_trace_event_t;
_Static_assert(sizeof(xep_trace_event_t) == 64, "a cache line");

typedef struct xep_trace_ring {
    _Atomic uint64_t written; /* events so far */
    uint64_t reserved[7];
    xep_trace_event_t event[]; /* as many as fit */
} xep_trace_ring_t;
_Static_assert(sizeof(xep_trace_ring_t) == 64, "events begin on a cache line");

/** When this rank was in a barrier, which no rank leaves before all have entered. */
typedef struct xep_trace_sync {
    uint64_t number; /* the same on all ranks; 0: not written */
    uint64_t begin_ns, end_ns;
} xep_trace_sync_t;

typedef struct xep_trace_buffer {
    char mode[16];
    uint32_t experts, topk, hidden, slots;
} xep_trace_buffer_t;

typedef struct xep_trace_header {
    char magic[8]; /* written last */
    uint32_t rank, nranks;
    uint64_t job; /* the same on all its ranks */
    uint64_t ring_bytes;
    uint32_t pid;
    _Atomic uint32_t rings;
    _Atomic uint32_t buffers; /* made so far, described or not */
    uint32_t clock;           /* equal where ranks read the same one; 0: not known */
    _Atomic uint64_t lost;    /* events of threads without a ring */
    _Atomic uint64_t syncs;   /* so far; last[syncs % XEP_TRACE_SYNCS] may be half written */
    char host[64];
    xep_trace_sync_t first[XEP_TRACE_SYNCS], last[XEP_TRACE_SYNCS];
    xep_trace_buffer_t buffer[XEP_TRACE_BUFFERS];
} xep_trace_header_t;
_Static_assert(sizeof(xep_trace_header_t) == 128 + 16 * 24 + 64 * 32, "in a file");
_Static_assert(sizeof(xep_trace_header_t) <= XEP_TRACE_UNIT, "the header's room");

static inline uint64_t xep_trace_capacity(uint64_t ring_bytes)
{
    return (ring_bytes - sizeof(xep_trace_ring_t)) / sizeof(xep_trace_event_t);
}

#endif
