/* SPDX-License-Identifier: BSD-3-Clause */

/**
 * A setuid program that another user starts: no file is written, and no library loaded, that the environment names, and
 * the error says which variable. Needs root, who makes a setuid copy of this program and starts it as nobody.
 * ranks: none
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <xep/xep.h>

enum { NOBODY = 65534, SKIP = 77 };

static char folder[] = "/tmp/xep_setuid.XXXXXX", copy[64], trace[64];

/* as the copy: what came of a group */
static int make_group(void)
{
    xep_group_t *group;
    if (getauxval(AT_SECURE) == 0) {
        puts("not secure");
        return 0;
    }
    xep_status_t status = xep_group_create(NULL, &group);
    printf("%s\n", status == XEP_OK ? "made" : xep_last_error());
    if (status == XEP_OK) xep_group_destroy(group);
    return 0;
}

static int write_copy(void)
{
    char bytes[65536];
    ssize_t n;
    int in = open("/proc/self/exe", O_RDONLY), out = open(copy, O_WRONLY | O_CREAT | O_EXCL, 0700);
    if (in < 0 || out < 0) return -1;
    while ((n = read(in, bytes, sizeof bytes)) > 0)
        if (write(out, bytes, (size_t)n) != n) return -1;
    close(in);
    return n == 0 && fchmod(out, 04755) == 0 && close(out) == 0 ? 0 : -1;
}

static void become_nobody(int out, char *const environment[])
{
    if (dup2(out, STDOUT_FILENO) < 0 || setgroups(0, NULL) != 0 || setgid(NOBODY) != 0 || setuid(NOBODY) != 0) _exit(1);
    execve(copy, (char *[]){copy, (char *)"copy", NULL}, environment);
    _exit(1);
}

/* the line that the copy says, in text */
static int start_copy(char *const environment[], char *text, size_t bytes)
{
    int ends[2], status;
    size_t used = 0;
    ssize_t n;
    if (pipe(ends) != 0) return -1;
    pid_t child = fork();
    if (child == 0) become_nobody(ends[1], environment);
    close(ends[1]);
    while (used + 1 < bytes && (n = read(ends[0], text + used, bytes - 1 - used)) > 0) used += (size_t)n;
    text[used] = '\0';
    close(ends[0]);
    return child > 0 && waitpid(child, &status, 0) == child && status == 0 ? 0 : -1;
}

/* the copy, with one more variable, or NULL, says something that begins so */
static int says(const char *variable, const char *expected)
{
    char text[4096];
    char *environment[] = {(char *)"PATH=/usr/bin:/bin", (char *)variable, NULL};
    if (start_copy(environment, text, sizeof text) == 0 && strncmp(text, expected, strlen(expected)) == 0) return 1;
    printf("%s: the copy said \"%s\" (\"%s\")\n", variable == NULL ? "nothing set" : variable, text, expected);
    return 0;
}

static int cases(void)
{
    char setting[128], file[80], text[4096];
    struct stat there;
    int bad = 0;
    char *const bare[] = {NULL};
    if (start_copy(bare, text, sizeof text) == 0 && strcmp(text, "not secure\n") == 0) {
        puts("skipped: setuid has no effect in /tmp");
        return SKIP;
    }
    bad |= !says(NULL, "made");
    bad |= !says("UCX_MODULE_DIR=/tmp", "UCX_MODULE_DIR is set for a setuid program");
    bad |= !says("UCX_TLS=sysv,self", "UCX_TLS is set for a setuid program");
    bad |= !says("XEP_MODE=normal", "made");
    snprintf(setting, sizeof setting, "XEP_TRACE=%s", trace);
    snprintf(file, sizeof file, "%s.0", trace);
    bad |= !says(setting, "made");
    if (lstat(file, &there) == 0) {
        printf("a trace was written: %s\n", file);
        bad = 1;
        unlink(file);
    }
    return bad;
}

int main(int argc, char **argv)
{
    int status;
    (void)argv;
    if (argc > 1) return make_group();
    if (geteuid() != 0) {
        puts("skipped: not root");
        return SKIP;
    }
    if (mkdtemp(folder) == NULL || chmod(folder, 0755) != 0) return 99;
    snprintf(copy, sizeof copy, "%s/copy", folder);
    snprintf(trace, sizeof trace, "%s/trace", folder);
    status = write_copy() == 0 ? cases() : 99;
    unlink(copy);
    rmdir(folder);
    return status;
}
