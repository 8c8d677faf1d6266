/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Errors name every refused file with its reason: "mode not found" without the places is the most frequent question
 * about plugins. No other mode is ever loaded in place of the one asked for.
 */
#define _GNU_SOURCE
#include "plugin_loader.h"

#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "process.h"

enum { MAX_FOLDERS = 32, NAME_BYTES = 64 };

typedef struct folders {
    char path[MAX_FOLDERS][PATH_MAX];
    int count;
} folders_t;

/* Adds a folder only once: xep_info would show its modes twice. */
static void add_folder(folders_t *folders, const char *path, size_t length)
{
    if (length == 0 || length >= PATH_MAX || folders->count == MAX_FOLDERS) return;
    snprintf(folders->path[folders->count], PATH_MAX, "%.*s", (int)length, path);
    for (int i = 0; i < folders->count; i++)
        if (strcmp(folders->path[i], folders->path[folders->count]) == 0) return;
    folders->count++;
}

/* the folder xep beside this library: an installation that was moved, or the build tree */
static void add_own_folder(folders_t *folders)
{
    char path[PATH_MAX];
    const char *own = xep_loaded_from((const void *)(uintptr_t)xep_plugin_load), *slash = strrchr(own, '/');
    if (slash == NULL) return;
    int n = snprintf(path, sizeof path, "%.*s/xep", (int)(slash - own), own);
    if (n > 0 && (size_t)n < sizeof path) add_folder(folders, path, (size_t)n);
}

/*
 * What the user names comes first; the library's own folder before the installed one, so that a build tree finds
 * itself.
 */
static void find_folders(const xep_config_t *config, folders_t *folders)
{
    folders->count = 0;
    const char *p = config->plugin_path;
    while (*p != '\0') {
        size_t length = strcspn(p, ":");
        add_folder(folders, p, length);
        p += length + (p[length] == ':');
    }
    add_own_folder(folders);
    add_folder(folders, XEP_PLUGIN_DIR, strlen(XEP_PLUGIN_DIR));
}

/* masks, place and the like may be NULL: a mode need not have them. */
static xep_status_t check_ops(const xep_plugin_t *p)
{
    if (p->heap_size == NULL || p->open == NULL || p->close == NULL || p->dispatch == NULL || p->combine == NULL ||
        p->progress == NULL || p->input == NULL || p->explain == NULL || p->brief == NULL ||
        ((p->can & XEP_CAN_NODES) && p->traffic == NULL))
        return xep_fail(XEP_ERR_PLUGIN, "an operation of its table is NULL");
    return XEP_OK;
}

/* abi first: with another one, nothing else of the table can be trusted */
static xep_status_t check_plugin(const xep_plugin_t *p, const char *name)
{
    if (p->abi != XEP_PLUGIN_ABI)
        return xep_fail(XEP_ERR_PLUGIN, "its plugin ABI is %u, this library's is %u: rebuild it", p->abi,
                        XEP_PLUGIN_ABI);
    if (p->size != sizeof(xep_plugin_t) || p->env_size != sizeof(xep_env_t) || p->shape_size != sizeof(xep_shape_t) ||
        p->op_struct_size != sizeof(xep_op_t) || p->wire_ops_size != sizeof(xep_wire_ops_t) ||
        p->device_ops_size != sizeof(xep_device_ops_t))
        return xep_fail(XEP_ERR_PLUGIN,
                        "its structs have %u, %u, %u, %u, %u, %u bytes, this library's have %zu, %zu, %zu, %zu, %zu, "
                        "%zu: rebuild it",
                        p->size, p->env_size, p->shape_size, p->op_struct_size, p->wire_ops_size, p->device_ops_size,
                        sizeof(xep_plugin_t), sizeof(xep_env_t), sizeof(xep_shape_t), sizeof(xep_op_t),
                        sizeof(xep_wire_ops_t), sizeof(xep_device_ops_t));
    if (p->name == NULL || strcmp(p->name, name) != 0)
        return xep_fail(XEP_ERR_PLUGIN, "it calls itself \"%s\": the file must be named xep_%s.so",
                        p->name == NULL ? "" : p->name, p->name == NULL ? "<name>" : p->name);
    return check_ops(p);
}

/*
 * RTLD_LOCAL: modes import nothing of this library or of one another, and two may have functions of one name. dlopen()
 * waits for ever for who writes into a pipe.
 */
static xep_status_t load_file(const char *path, const char *name, xep_plugin_ref_t *ref_p)
{
    xep_plugin_ref_t ref;
    xep_status_t status;
    struct stat file;
    if (stat(path, &file) == 0 && !S_ISREG(file.st_mode)) return xep_fail(XEP_ERR_PLUGIN, "it is not a file");
    ref.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (ref.library == NULL) return xep_fail(XEP_ERR_PLUGIN, "it cannot be loaded: %s", dlerror());
    ref.plugin = dlsym(ref.library, "xep_plugin");
    if (ref.plugin == NULL) status = xep_fail(XEP_ERR_PLUGIN, "it has no symbol xep_plugin");
    else status = check_plugin(ref.plugin, name);
    if (status != XEP_OK) {
        dlclose(ref.library);
        return status;
    }
    *ref_p = ref;
    return XEP_OK;
}

/* The name becomes part of a path, and may come from the environment: it must not lead out of the folders. */
static xep_status_t check_name(const char *name)
{
    if (name[0] == '\0') return xep_fail(XEP_ERR_PLUGIN, "invalid mode: \"\" (a name)");
    if (strchr(name, '/') != NULL)
        return xep_fail(XEP_ERR_PLUGIN,
                        "invalid mode: \"%s\" (a name without a slash; folders go into XEP_PLUGIN_PATH)", name);
    if (strlen(name) >= NAME_BYTES)
        return xep_fail(XEP_ERR_PLUGIN, "invalid mode: \"%.32s...\" (at most %d characters)", name, NAME_BYTES - 1);
    for (const char *c = name; *c != '\0'; c++)
        if (!isalnum((unsigned char)*c) && *c != '_' && *c != '-')
            return xep_fail(XEP_ERR_PLUGIN, "invalid mode: \"%s\" (letters, digits, - and _)", name);
    return XEP_OK;
}

/* The first file of that name decides: a refused one is not skipped for another. */
static xep_status_t load_from(const folders_t *folders, const char *name, xep_plugin_ref_t *ref_p)
{
    char path[PATH_MAX + NAME_BYTES + 16], looked[XEP_REASON_BYTES / 2] = "";
    size_t used = 0;
    for (int i = 0; i < folders->count; i++) {
        snprintf(path, sizeof path, "%s/xep_%s.so", folders->path[i], name);
        if (access(path, F_OK) == 0) {
            if (load_file(path, name, ref_p) == XEP_OK) return XEP_OK;
            return xep_fail(XEP_ERR_PLUGIN, "mode \"%s\": %s was refused: %s", name, path, xep_last_error());
        }
        if (used < sizeof looked)
            used += (size_t)snprintf(looked + used, sizeof looked - used, "%s%s", i == 0 ? "" : ", ", folders->path[i]);
    }
    return xep_fail(XEP_ERR_PLUGIN, "mode \"%s\": there is no xep_%s.so in %s (xep_info -p lists modes)", name, name,
                    looked);
}

/* Of the modes, and of their siblings for the memory of devices. */
static void name_file(const char *name, xep_memory_t memory, char *text)
{
    snprintf(text, NAME_BYTES + sizeof XEP_CUDA_SUFFIX, "%s%s", name, memory == XEP_MEMORY_CUDA ? XEP_CUDA_SUFFIX : "");
}

xep_status_t xep_plugin_load(const xep_config_t *config, const char *mode, xep_memory_t memory, xep_plugin_ref_t *ref_p)
{
    char name[NAME_BYTES + sizeof XEP_CUDA_SUFFIX];
    xep_status_t status = check_name(mode);
    if (status != XEP_OK) return status;
    name_file(mode, memory, name);
    folders_t *folders = malloc(sizeof *folders);
    if (folders == NULL) return xep_fail(XEP_ERR_NO_MEMORY, "no memory to look for mode \"%s\"", name);
    find_folders(config, folders);
    status = load_from(folders, name, ref_p);
    free(folders);
    return status;
}

void xep_plugin_unload(xep_plugin_ref_t *ref)
{
    if (ref->library != NULL) dlclose(ref->library);
    *ref = (xep_plugin_ref_t){NULL, NULL};
}

static int is_plugin_file(const struct dirent *entry)
{
    size_t n = strlen(entry->d_name);
    return n > 7 && strncmp(entry->d_name, "xep_", 4) == 0 && strcmp(entry->d_name + n - 3, ".so") == 0;
}

/* For a refused file reports why, with the mode's name from the file name. */
static int visit(const char *folder, const char *file, xep_mode_fn fn, void *arg)
{
    char path[PATH_MAX + 256 + 2], name[256];
    xep_plugin_ref_t ref = {NULL, NULL};
    snprintf(path, sizeof path, "%s/%s", folder, file);
    snprintf(name, sizeof name, "%.*s", (int)strlen(file) - 7, file + 4);
    if (load_file(path, name, &ref) != XEP_OK) return fn(arg, name, path, "", xep_last_error());
    int ret = fn(arg, name, path, ref.plugin->brief, NULL);
    xep_plugin_unload(&ref);
    return ret;
}

/* Sorted, so that the list is the same each time. */
static int visit_folder(const char *folder, xep_mode_fn fn, void *arg)
{
    struct dirent **entries;
    int stop = 0, n = scandir(folder, &entries, is_plugin_file, alphasort);
    for (int i = 0; i < n; i++) {
        if (!stop) stop = visit(folder, entries[i]->d_name, fn, arg);
        free(entries[i]);
    }
    if (n >= 0) free(entries);
    return stop;
}

/* Loads each file and unloads it again, so that the list shows what would really happen. */
void xep_plugin_each(const xep_config_t *config, xep_mode_fn fn, void *arg)
{
    folders_t *folders = malloc(sizeof *folders);
    if (folders == NULL) return;
    find_folders(config, folders);
    for (int i = 0; i < folders->count; i++)
        if (visit_folder(folders->path[i], fn, arg) != 0) break;
    free(folders);
}
