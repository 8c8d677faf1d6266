/* SPDX-License-Identifier: BSD-3-Clause */

/* A rank that prints the addresses on which its group listens, as /proc/net/tcp has them: for listen_addresses.sh */

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xep/xep.h>

static int is_own_socket(unsigned long inode)
{
    char wanted[64], path[320], link[64];
    struct dirent *entry;
    int found = 0;
    DIR *folder = opendir("/proc/self/fd");
    snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
    while (folder != NULL && !found && (entry = readdir(folder)) != NULL) {
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        ssize_t length = readlink(path, link, sizeof link - 1);
        link[length < 0 ? 0 : length] = '\0';
        found = strcmp(link, wanted) == 0;
    }
    if (folder != NULL) closedir(folder);
    return found;
}

static void print_listening(const char *table)
{
    enum { LISTENS = 10 };
    char line[512], address[64];
    unsigned state;
    unsigned long inode;
    FILE *file = fopen(table, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, " %*d: %63[0-9A-F]:%*x %*s %x %*s %*s %*s %*d %*d %lu", address, &state, &inode) == 3 &&
            state == LISTENS && is_own_socket(inode))
            printf("listens on %s\n", address);
    if (file != NULL) fclose(file);
}

int main(void)
{
    xep_group_t *group;
    if (xep_group_create(NULL, &group) != XEP_OK) {
        fprintf(stderr, "listening: %s\n", xep_last_error());
        return 1;
    }
    print_listening("/proc/self/net/tcp");
    print_listening("/proc/self/net/tcp6");
    xep_status_t status = xep_group_barrier(group);
    xep_group_destroy(group);
    return status == XEP_OK ? 0 : 1;
}
