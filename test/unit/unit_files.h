/* SPDX-License-Identifier: BSD-3-Clause */

/** Copies of the files of a system, for what reads them below a root of its own. */
#ifndef TEST_UNIT_FILES_H
#define TEST_UNIT_FILES_H

/** A new folder; valid until the next one is made. */
const char *unit_make_root(void);

/** A file below the last root, with its folders. */
void unit_write_file(const char *path, const char *text);

#endif
