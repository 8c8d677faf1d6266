/* SPDX-License-Identifier: BSD-3-Clause */

#define _GNU_SOURCE

/*
 * The folder in which PMIx keeps its files. No other user may be able to write there, and it must go with the job, even
 * if xep_run is killed. It lies in a folder that others can write to, so nothing is removed that is not proven to be
 * ours.
 */
#include "run_keeper.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER_PREFIX "xep_run."
#define MARKER        ".made_by_xep_run"

/* PMIx makes one level; a deeper folder is not ours */
enum { DEPTH_MOST = 16, MARK_BYTES = 64 };

/* ---- removing: by descriptors, so that no link and no folder moved meanwhile leads elsewhere ---- */

static void empty_folder(int fd, unsigned depth);

/*
 * Opens the name without following a link, and checks it before removing anything below: a file system mounted there is
 * left alone. What cannot be removed stays; there is no one to tell.
 */
static void remove_entry(int fd, const char *name, unsigned depth)
{
    struct stat outer, inner;
    int sub;
    if (unlinkat(fd, name, 0) == 0 || depth == DEPTH_MOST) return;
    sub = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (sub < 0) return;
    if (fstat(fd, &outer) == 0 && fstat(sub, &inner) == 0 && outer.st_dev == inner.st_dev) empty_folder(sub, depth + 1);
    close(sub);
    unlinkat(fd, name, AT_REMOVEDIR);
}

/* By a descriptor of its own: fdopendir() takes it over, and reading moves its position. */
static void empty_folder(int fd, unsigned depth)
{
    struct dirent *entry;
    int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = again < 0 ? NULL : fdopendir(again);
    if (dir == NULL) {
        if (again >= 0) close(again);
        return;
    }
    while ((entry = readdir(dir)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) remove_entry(fd, entry->d_name, depth);
    closedir(dir);
}

/* ---- the mark: which folder it was written for, so that a copy or a name alone proves nothing ---- */

/* A folder is named by device and inode, which a copy of the folder does not have. */
static int format_mark(int fd, char *text)
{
    struct stat info;
    if (fstat(fd, &info) != 0) return -1;
    return snprintf(text, MARK_BYTES, "%" PRIu64 " %" PRIu64 "\n", (uint64_t)info.st_dev, (uint64_t)info.st_ino);
}

static int mark(int fd)
{
    char text[MARK_BYTES];
    int length = format_mark(fd, text), file, failed;
    if (length < 0) return -1;
    file = openat(fd, MARKER, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) return -1;
    failed = write(file, text, (size_t)length) != length;
    return close(file) != 0 || failed ? -1 : 0;
}

/* Of this kind, owned by this user and closed to all others: what others may write to proves nothing. */
static int is_private(const struct stat *info, mode_t kind)
{
    return (info->st_mode & S_IFMT) == kind && info->st_uid == geteuid() && (info->st_mode & 077) == 0;
}

/* O_NONBLOCK, or a fifo of this name would hang us; O_NOFOLLOW, or a link would lead to the mark of another folder. */
static int is_marked(int fd)
{
    char wanted[MARK_BYTES], text[MARK_BYTES];
    struct stat info;
    int length = format_mark(fd, wanted), good;
    int file = openat(fd, MARKER, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) return 0;
    good = length > 0 && fstat(file, &info) == 0 && is_private(&info, S_IFREG) &&
           read(file, text, sizeof text) == length && memcmp(text, wanted, (size_t)length) == 0;
    close(file);
    return good;
}

/* ---- folders of predecessors that were killed together with their keeper ---- */

/* The lock tells whether it is in use; a process id would mean nothing in another container that shares TMPDIR. */
static void remove_if_left(const char *path)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return;
    if (fstat(fd, &info) == 0 && is_private(&info, S_IFDIR) && is_marked(fd) && flock(fd, LOCK_EX | LOCK_NB) == 0) {
        empty_folder(fd, 0);
        rmdir(path);
    }
    close(fd);
}

/* At the start of a later job, since no process is left to do it for a killed one. */
static void remove_left(const char *root)
{
    DIR *dir = opendir(root);
    struct dirent *entry;
    if (dir == NULL) return;
    while ((entry = readdir(dir)) != NULL) {
        char path[sizeof((run_folder_t *)0)->path];
        if (strncmp(entry->d_name, FOLDER_PREFIX, strlen(FOLDER_PREFIX)) != 0) continue;
        if (snprintf(path, sizeof path, "%s/%s", root, entry->d_name) < (int)sizeof path) remove_if_left(path);
    }
    closedir(dir);
}

/* ---- one job's ---- */

/*
 * mkdtemp() makes it with mode 0700, which is_private() asks for when a later job looks. The lock is that of fd: it is
 * held until the last process that has inherited fd has closed it, the keeper among them.
 */
int run_folder_make(run_folder_t *folder)
{
    const char *root = getenv("TMPDIR");
    if (root == NULL || root[0] == '\0') root = "/tmp";
    remove_left(root);
    if (snprintf(folder->path, sizeof folder->path, "%s/" FOLDER_PREFIX "XXXXXX", root) >= (int)sizeof folder->path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    if (mkdtemp(folder->path) == NULL) return -1;
    folder->fd = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* marked once it is locked: a folder that is marked but not locked has lost its owner */
    if (folder->fd >= 0 && flock(folder->fd, LOCK_EX | LOCK_NB) == 0 && mark(folder->fd) == 0) return 0;
    run_folder_remove(folder);
    return -1;
}

/* By path at last, as rmdir() knows no descriptor; the folder is empty then, or it stays. */
void run_folder_remove(run_folder_t *folder)
{
    if (folder->fd >= 0) {
        empty_folder(folder->fd, 0);
        close(folder->fd);
        folder->fd = -1;
    }
    rmdir(folder->path);
}
