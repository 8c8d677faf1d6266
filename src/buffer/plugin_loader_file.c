/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * An interrupted copy has good headers but ends too early. dlopen() maps it nevertheless, and the process dies of
 * SIGBUS, in the call or when a function is first used. dlopen() finds all other defects that can be found.
 */
#define _GNU_SOURCE
#include "plugin_loader.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <link.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"

enum { MOST_SEGMENTS = 64 }; /* linkers make a dozen */

/* Whether these are headers for this machine; dlopen() has a message for all others. */
static int is_ours(const ElfW(Ehdr) * header)
{
    return memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 &&
           header->e_ident[EI_CLASS] == (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32) &&
           header->e_phentsize == sizeof(ElfW(Phdr)) && header->e_phnum <= MOST_SEGMENTS;
}

static xep_status_t ends_early(uint64_t bytes, uint64_t wanted)
{
    return xep_fail(XEP_ERR_PLUGIN, "it is incomplete: %" PRIu64 " bytes (its headers name %" PRIu64 ")", bytes,
                    wanted);
}

/* Checks the last byte of the file that is mapped; only debuggers read what lies behind it. */
static xep_status_t check_segments(int fd, const ElfW(Ehdr) * header, uint64_t bytes)
{
    ElfW(Phdr) segments[MOST_SEGMENTS];
    size_t table = header->e_phnum * sizeof *segments;
    if (pread(fd, segments, table, (off_t)header->e_phoff) != (ssize_t)table)
        return ends_early(bytes, header->e_phoff + table);
    for (int i = 0; i < header->e_phnum; i++) {
        uint64_t end;
        if (segments[i].p_type != PT_LOAD) continue;
        if (__builtin_add_overflow(segments[i].p_offset, segments[i].p_filesz, &end)) end = UINT64_MAX;
        if (end > bytes) return ends_early(bytes, end);
    }
    return XEP_OK;
}

static xep_status_t check(int fd)
{
    ElfW(Ehdr) header;
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return xep_fail(XEP_ERR_PLUGIN, "it is not a file");
    if (pread(fd, &header, sizeof header, 0) != sizeof header || !is_ours(&header)) return XEP_OK;
    return check_segments(fd, &header, (uint64_t)info.st_size);
}

xep_status_t xep_plugin_file_check(const char *path)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return xep_fail(XEP_ERR_PLUGIN, "it cannot be read: %s", strerror(errno));
    xep_status_t status = check(fd);
    close(fd);
    return status;
}
