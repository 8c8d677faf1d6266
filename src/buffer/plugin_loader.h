/* SPDX-License-Identifier: BSD-3-Clause */

/** Finds and loads modes: xep_<name>.so, in XEP_PLUGIN_PATH, beside the library, in the installed folder. */
#ifndef XEP_BUFFER_PLUGIN_LOADER_H
#define XEP_BUFFER_PLUGIN_LOADER_H

#include <xep/plugin.h>
#include <xep/xep.h>

#include "config.h"

/**
 * A mode for the memory of devices is a file of its own, xep_normal_cuda.so: a process without a device never loads it.
 */
#define XEP_CUDA_SUFFIX "_cuda"

typedef struct xep_plugin_ref {
    const xep_plugin_t *plugin;
    void *library; /* of dlopen */
} xep_plugin_ref_t;

/**
 * Loads the mode for this kind of memory. XEP_ERR_PLUGIN with every file looked at and why it was refused as reason:
 * not there, not loadable, no xep_plugin in it, another ABI, another name.
 */
xep_status_t xep_plugin_load(const xep_config_t *config, const char *mode, xep_memory_t memory,
                             xep_plugin_ref_t *ref_p);
void xep_plugin_unload(xep_plugin_ref_t *ref);

/** Every plugin file in the folders looked in; see xep_mode_each(). */
void xep_plugin_each(const xep_config_t *config, xep_mode_fn fn, void *arg);

#endif
