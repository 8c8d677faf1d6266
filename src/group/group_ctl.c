/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Control messages wait until they are taken: a rank may call xep_group_shrink() long before this one does. If a faulty
 * rank sends too much, its control messages are dropped.
 */
#include "group_ctl.h"

#include <stdlib.h>
#include <string.h>

#include "backoff.h"
#include "error.h"
#include "log.h"

enum { MOST_HELD = 1 << 20 /* bytes of one rank: a step of a group's creation has two blobs of 64 KB */ };

/** In front of each message; written by the sender, checked by the receiver. */
typedef struct head {
    uint64_t about;
    uint32_t kind;  /* xep_ctl_kind_t */
    uint32_t bytes; /* that follow */
} head_t;
_Static_assert(sizeof(head_t) == 16, "wire format");

struct xep_inbox {
    pthread_mutex_t lock; /* of all below */
    xep_msg_t *first, **last;
    size_t *held;     /* [nranks] bytes of each rank */
    atomic_uint msgs; /* that wait: whoever looks often takes no lock for none */
};

/*
 * On the transport's thread, while another one may take control messages. A full box drops the newest control message:
 * the reader needs the oldest next.
 */
static void keep(xep_inbox_t *inbox, uint32_t from, const head_t *head, const void *data)
{
    size_t bytes = head->bytes;
    pthread_mutex_lock(&inbox->lock);
    xep_msg_t *msg = inbox->held[from] + bytes > MOST_HELD ? NULL : malloc(sizeof *msg + bytes);
    if (msg == NULL) {
        xep_log(XEP_LOG_WARN, "control message from rank %u was dropped: %zu bytes of it wait to be read (at most %d)",
                from, inbox->held[from], MOST_HELD);
    } else {
        *msg = (xep_msg_t){.about = head->about, .from = from, .kind = head->kind, .bytes = bytes};
        memcpy(msg->data, data, bytes);
        *inbox->last = msg;
        inbox->last = &msg->next;
        inbox->held[from] += bytes;
        atomic_fetch_add_explicit(&inbox->msgs, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&inbox->lock);
}

/* In the thread that makes progress, inside the transport: calls nothing of it. from is a rank. */
static void arrived(void *arg, uint32_t from, const void *message, size_t bytes)
{
    xep_group_t *group = arg;
    head_t head = {0};
    uint64_t word;
    if (bytes >= sizeof head) memcpy(&head, message, sizeof head);
    const char *data = (const char *)message + sizeof head;
    if (bytes < sizeof head || bytes - sizeof head != head.bytes || head.bytes > XEP_CTL_BYTES) head.kind = 0;
    if (head.kind == XEP_CTL_END && head.bytes == sizeof word) {
        memcpy(&word, data, sizeof word);
        atomic_store_explicit(&group->ctl_by, from, memory_order_relaxed);
        atomic_store_explicit(&group->ctl_end, word, memory_order_release);
    } else if (head.kind == XEP_CTL_STATE || head.kind == XEP_CTL_SHARE || head.kind == XEP_CTL_BALLOT) {
        keep(group->inbox, from, &head, data);
    } else if (head.kind != XEP_CTL_FIRST) {
        xep_log(XEP_LOG_WARN, "invalid control message from rank %u was dropped: kind %u, %zu bytes", from, head.kind,
                bytes);
    }
}

/* Before anything can arrive: the transport calls arrived() from its first round on. */
xep_status_t xep_ctl_open(xep_group_t *group)
{
    xep_inbox_t *inbox = calloc(1, sizeof *inbox);
    size_t *held = calloc(group->nranks, sizeof *held);
    if (inbox == NULL || held == NULL) {
        free(held);
        free(inbox);
        return xep_fail(XEP_ERR_NO_MEMORY, "no memory for the control messages of %u ranks", group->nranks);
    }
    pthread_mutex_init(&inbox->lock, NULL);
    inbox->held = held;
    inbox->last = &inbox->first;
    group->inbox = inbox;
    group->transport->on_ctl = arrived;
    group->transport->on_ctl_arg = group;
    return XEP_OK;
}

void xep_ctl_close(xep_group_t *group)
{
    if (group->inbox == NULL) return;
    xep_ctl_free(group->inbox->first);
    pthread_mutex_destroy(&group->inbox->lock);
    free(group->inbox->held);
    free(group->inbox);
}

/* The transport has copied the message when this returns. */
xep_status_t xep_ctl_send(xep_group_t *group, uint32_t rank, xep_ctl_kind_t kind, uint64_t about, const void *data,
                          size_t bytes)
{
    const head_t head = {.about = about, .kind = kind, .bytes = (uint32_t)bytes};
    if (bytes > XEP_CTL_BYTES)
        return xep_fail(XEP_ERR_INVALID, "control message too long: %zu bytes (at most %d)", bytes, XEP_CTL_BYTES);
    char *message = malloc(sizeof head + bytes);
    if (message == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory for a control message of %zu bytes", bytes);
    memcpy(message, &head, sizeof head);
    memcpy(message + sizeof head, data, bytes);
    xep_status_t status = group->transport->ops->ctl(group->transport, rank, message, sizeof head + bytes);
    free(message);
    return status;
}

void xep_ctl_leave(xep_group_t *group, int32_t most_ms)
{
    xep_transport_t *transport = group->transport;
    xep_backoff_t backoff;
    xep_backoff_begin(&backoff, XEP_BACKOFF_RARE, xep_deadline(most_ms));
    while (!transport->ops->ctl_has_left(transport) && xep_backoff_wait(&backoff, atomic_load(&transport->moves)))
        (void)transport->ops->progress(transport);
}

/*
 * Sends an empty control message, so that connections exist before they are needed quickly: after a death, or for an
 * abort.
 */
void xep_ctl_begin(xep_group_t *group)
{
    for (uint32_t r = 0; r < group->nranks; r++)
        if (!group->peers[r].mapped) (void)xep_ctl_send(group, r, XEP_CTL_FIRST, 0, "", 0);
}

/* Other control messages stay, in their order. Takes the list, so that the lock is held only for a moment. */
xep_msg_t *xep_ctl_take(xep_group_t *group, xep_ctl_kind_t kind, uint64_t first, uint64_t last)
{
    xep_inbox_t *inbox = group->inbox;
    xep_msg_t *taken = NULL, **end = &taken, *msg;
    if (atomic_load_explicit(&inbox->msgs, memory_order_relaxed) == 0) return NULL;
    pthread_mutex_lock(&inbox->lock);
    inbox->last = &inbox->first;
    while ((msg = *inbox->last) != NULL) {
        if (msg->kind != (uint32_t)kind || msg->about < first || msg->about > last) {
            inbox->last = &msg->next;
            continue;
        }
        *inbox->last = msg->next;
        msg->next = NULL;
        *end = msg;
        end = &msg->next;
        inbox->held[msg->from] -= msg->bytes;
        atomic_fetch_sub_explicit(&inbox->msgs, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&inbox->lock);
    return taken;
}

void xep_ctl_free(xep_msg_t *first)
{
    for (xep_msg_t *msg = first, *next; msg != NULL; msg = next) {
        next = msg->next;
        free(msg);
    }
}

static uint64_t sequence_of(const xep_msg_t *msg)
{
    uint64_t sequence = 0;
    if (msg != NULL) memcpy(&sequence, msg->data, sizeof sequence);
    return sequence;
}

int xep_ctl_keep_last(xep_msg_t **last, xep_msg_t *msg)
{
    int is_later = sequence_of(msg) > sequence_of(*last);
    free(is_later ? *last : msg);
    if (is_later) *last = msg;
    return is_later;
}
