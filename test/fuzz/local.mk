# SPDX-License-Identifier: BSD-3-Clause
# Fuzzing. A target is one source and a folder of %D%/corpus, and a name in the list here. As a test of make check it
# runs its corpus and a fixed number of mutations; contrib/fuzz runs it for long, with libFuzzer where clang has it:
# then FUZZ_LDFLAGS brings main(), in place of fuzz_main.c.
fuzz_targets = %D%/fuzz_api.t %D%/fuzz_ballot.t %D%/fuzz_boot.t %D%/fuzz_config.t \
	%D%/fuzz_heap.t %D%/fuzz_join.t %D%/fuzz_plugin.t %D%/fuzz_route.t %D%/fuzz_trace.t

check_LTLIBRARIES += libfuzz.la
libfuzz_la_SOURCES = %D%/fuzz_target.h %D%/fuzz_target.c
libfuzz_la_CPPFLAGS = $(AM_CPPFLAGS)
EXTRA_DIST += %D%/corpus
fuzz_sources = %D%/fuzz_main.c

# all of the library, in a world of its own: what it waits by is wrapped
fuzz_world = %D%/fuzz_world.h %D%/fuzz_world.c %D%/fuzz_memory.h %D%/fuzz_memory.c %D%/fuzz_wire.c
fuzz_wrapped = -Wl,--wrap=clock_gettime -Wl,--wrap=sched_yield -Wl,--wrap=nanosleep \
	-Wl,--wrap=xep_ucp_transport_open -Wl,--wrap=xep_group_sleep
%C%_fuzz_api_t_SOURCES = $(fuzz_sources) $(fuzz_world) \
	%D%/fuzz_api.h %D%/fuzz_api.c %D%/fuzz_buffers.c %D%/fuzz_operations.c %D%/fuzz_pieces.c \
	%D%/fuzz_masks.c %D%/fuzz_groups.c \
	%D%/fuzz_patch.h %D%/fuzz_patch.c
%C%_fuzz_api_t_LDFLAGS = $(FUZZ_LDFLAGS) $(fuzz_wrapped)
%C%_fuzz_api_t_LDADD = libfuzz.la libsim.la $(insides)
%C%_fuzz_boot_t_SOURCES = $(fuzz_sources) $(fuzz_world) %D%/fuzz_boot.c
%C%_fuzz_boot_t_LDFLAGS = $(FUZZ_LDFLAGS) $(fuzz_wrapped)
%C%_fuzz_boot_t_LDADD = libfuzz.la libsim.la $(insides)

%C%_fuzz_ballot_t_SOURCES = $(fuzz_sources) %D%/fuzz_ballot.c
%C%_fuzz_ballot_t_LDFLAGS = $(FUZZ_LDFLAGS)
%C%_fuzz_ballot_t_LDADD = libfuzz.la $(insides)

%C%_fuzz_config_t_SOURCES = $(fuzz_sources) %D%/fuzz_config.c
%C%_fuzz_config_t_LDFLAGS = $(FUZZ_LDFLAGS)
%C%_fuzz_config_t_LDADD = libfuzz.la $(insides)

%C%_fuzz_heap_t_SOURCES = $(fuzz_sources) %D%/fuzz_heap.c test/sim/sim_normal.c test/sim/sim_ll.c \
	test/sim/sim_members.h test/sim/sim_members.c
%C%_fuzz_heap_t_LDFLAGS = $(FUZZ_LDFLAGS)
%C%_fuzz_heap_t_LDADD = libfuzz.la libsim.la $(insides) $(CMOCKA_LIBS)

%C%_fuzz_join_t_SOURCES = $(fuzz_sources) %D%/fuzz_join.c
%C%_fuzz_join_t_LDFLAGS = $(FUZZ_LDFLAGS)
%C%_fuzz_join_t_LDADD = libfuzz.la $(insides)

# a mode that the target changes; -rpath makes it a shared object although it is not installed
check_LTLIBRARIES += %D%/xep_solo.la
%C%_xep_solo_la_SOURCES = test/abi/stub_mode.c
%C%_xep_solo_la_LDFLAGS = -module -avoid-version -shared -rpath /nowhere
%C%_fuzz_plugin_t_SOURCES = $(fuzz_sources) %D%/fuzz_plugin.c
%C%_fuzz_plugin_t_LDFLAGS = $(FUZZ_LDFLAGS)
%C%_fuzz_plugin_t_LDADD = libfuzz.la $(insides)

%C%_fuzz_route_t_SOURCES = $(fuzz_sources) %D%/fuzz_route.c
%C%_fuzz_route_t_LDFLAGS = $(FUZZ_LDFLAGS)
%C%_fuzz_route_t_LDADD = libfuzz.la libxep_oracle.la -lm

%C%_fuzz_trace_t_SOURCES = $(fuzz_sources) %D%/fuzz_trace.c
%C%_fuzz_trace_t_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir)/tools/trace
%C%_fuzz_trace_t_LDFLAGS = $(FUZZ_LDFLAGS)
%C%_fuzz_trace_t_LDADD = libfuzz.la libxep_trace.la

# what contrib/fuzz builds besides the library
fuzz-programs: $(fuzz_targets) %D%/xep_solo.la
.PHONY: fuzz-programs

if HAVE_CMOCKA
check_PROGRAMS += $(fuzz_targets)
TESTS += $(fuzz_targets)
endif
