/* SPDX-License-Identifier: BSD-3-Clause */

/** What is checked of a plugin's file before the loader of the system maps it. */
#ifndef XEP_BUFFER_PLUGIN_FILE_H
#define XEP_BUFFER_PLUGIN_FILE_H

#include <xep/xep.h>

/** XEP_ERR_PLUGIN for what is no file (a pipe would be waited for), and for a shared object that ends too early. */
xep_status_t xep_plugin_file_check(const char *path);

#endif
