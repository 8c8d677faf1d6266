/* SPDX-License-Identifier: BSD-3-Clause */

/** Signals that come while the library waits: Ctrl-C ends a wait. */
#ifndef EXT_SIGNALS_H
#define EXT_SIGNALS_H

/** xep_group_params_t.interrupted: runs Python's handlers; whether one has raised an exception, which is kept. */
int ext_signals_raised(void *unused);

/** Sets the exception that was kept; 0: there is none. */
int ext_signals_set(void);

#endif
