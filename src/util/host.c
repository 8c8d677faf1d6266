/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Ranks share memory if they share the kernel (boot id), the IPC namespace and the process namespace; host names do not
 * tell, as containers show. A process is identified by its number and its start time. All these are only names. To be
 * sure, a process locks a random byte of its namespace's file, and other processes of the same kernel see the lock.
 */
#define _GNU_SOURCE
#include "host.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hash.h"
#include "text.h"

static uint64_t hash_inode(uint64_t h, const char *path)
{
    struct stat st;
    memset(&st, 0, sizeof st);
    if (stat(path, &st) != 0) return h;
    return xep_hash_bytes(h, &st.st_ino, sizeof st.st_ino);
}

/* of the kernel, since it was started */
static uint64_t hash_kernel(void)
{
    char boot_id[64];
    (void)xep_text_read("/proc/sys/kernel/random/boot_id", boot_id, sizeof boot_id);
    return xep_hash_bytes(XEP_HASH_BEGIN, boot_id, strlen(boot_id));
}

/* without a name it may be any */
uint64_t xep_host_kernel(void)
{
    const uint64_t kernel = hash_kernel();
    return kernel == XEP_HASH_BEGIN ? 0 : kernel;
}

uint64_t xep_host_file(const char *path)
{
    struct stat st;
    const uint64_t kernel = xep_host_kernel();
    memset(&st, 0, sizeof st);
    if (kernel == 0 || stat(path, &st) != 0) return 0;
    return xep_hash_bytes(xep_hash_bytes(kernel, &st.st_dev, sizeof st.st_dev), &st.st_ino, sizeof st.st_ino);
}

uint64_t xep_host_identity(void)
{
    uint64_t h = hash_kernel();
    h = hash_inode(h, "/proc/self/ns/ipc");
    h = hash_inode(h, "/proc/self/ns/pid");
    return h == 0 ? 1 : h;
}

uint64_t xep_host_processes(void)
{
    return hash_inode(hash_inode(hash_kernel(), "/proc/self/ns/pid"), "/proc/self/ns/time");
}

uint64_t xep_host_users(void)
{
    return hash_inode(hash_kernel(), "/proc/self/ns/user");
}

uint64_t xep_host_network(void)
{
    uint64_t kernel = hash_kernel(), network = hash_inode(kernel, "/proc/self/ns/net");
    return network == kernel ? 0 : network; /* no /proc: it is not known */
}

/* Older kernels have no time namespaces: then it is the kernel's clock. */
uint32_t xep_host_clock(void)
{
    const uint64_t kernel = xep_host_kernel(), clock = hash_inode(kernel, "/proc/self/ns/time");
    return kernel == 0 ? 0 : (uint32_t)(clock ^ clock >> 32) | 1;
}

/* ---- the word ---- */

static const char *const shown_files[XEP_HOST_SHOWN] = {"/proc/self/ns/pid", "/proc/self/ns/net"};

static struct flock lock_of(uint64_t word, short type)
{
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)word, .l_len = 1};
}

/* includes the rank: machines resumed from one snapshot may draw the same numbers, but have different ranks */
static uint64_t draw_word(uint32_t rank)
{
    enum { RANK_BITS = 24 };
    uint64_t drawn = 0;
    if (getrandom(&drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn) drawn = (uint64_t)getpid();
    return (drawn << RANK_BITS | (rank + 1)) & INT64_MAX;
}

/*
 * A read lock, so that the file need not be writable, and one of the open file, so that no other close() releases it.
 */
void xep_host_show(uint32_t rank, xep_host_word_t *own)
{
    int shown = 1;
    *own = (xep_host_word_t){.word = draw_word(rank)};
    for (int i = 0; i < XEP_HOST_SHOWN; i++) {
        struct flock lock = lock_of(own->word, F_RDLCK);
        own->files[i] = open(shown_files[i], O_RDONLY | O_CLOEXEC);
        shown &= own->files[i] >= 0 && fcntl(own->files[i], F_OFD_SETLK, &lock) == 0;
    }
    if (!shown) xep_host_hide(own);
}

void xep_host_hide(xep_host_word_t *own)
{
    for (int i = 0; own->word != 0 && i < XEP_HOST_SHOWN; i++)
        if (own->files[i] >= 0) close(own->files[i]);
    own->word = 0;
}

int xep_host_sees(const xep_host_word_t *own, xep_host_shown_t what, uint64_t word)
{
    struct flock lock = lock_of(word, F_WRLCK);
    if (own->word == 0 || word == 0 || word == own->word) return 1;
    return fcntl(own->files[what], F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

/* ---- processes ---- */

int xep_host_is_own_user(int32_t pid)
{
    char path[64], text[8192];
    unsigned effective = (unsigned)geteuid();
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    (void)xep_text_read(path, text, sizeof text);
    const char *users = xep_text_find(text, "Uid:");
    if (users != NULL) (void)sscanf(users, "%*u %u", &effective);
    return effective == (unsigned)geteuid();
}

/* What follows the command in /proc/pid/stat, " S 123 ...", or NULL. The command in parentheses may hold
 * anything, also parentheses: its end is the last one. */
static const char *read_stat(int32_t pid, char *text, size_t bytes)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (!xep_text_read(path, text, bytes)) return NULL;
    const char *end = strrchr(text, ')');
    return end == NULL ? NULL : end + 1;
}

uint64_t xep_host_start(int32_t pid)
{
    char text[1024];
    const char *p = read_stat(pid, text, sizeof text);
    for (int field = 3; p != NULL && field < 22; field++) p = strchr(p + 1, ' '); /* p is the space before it */
    return p == NULL ? 0 : strtoull(p + 1, NULL, 10);
}

static int is_zombie(int32_t pid)
{
    char text[1024];
    const char *p = read_stat(pid, text, sizeof text);
    return p != NULL && (strncmp(p, " Z", 2) == 0 || strncmp(p, " X", 2) == 0);
}

int xep_host_process_gone(int32_t pid, uint64_t start)
{
    if (kill(pid, 0) != 0 && errno == ESRCH) return 1;
    if (is_zombie(pid)) return 1;
    uint64_t now = xep_host_start(pid);
    if (now == 0)
        return kill(pid, 0) != 0 && errno == ESRCH; /* it has gone between these looks, or there is no /proc */
    return start != 0 && now != start;              /* the number belongs to another process by now */
}
