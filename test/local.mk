# SPDX-License-Identifier: BSD-3-Clause
# The tests.
#
# The suffix chooses the runner: .t is a cmocka program that speaks TAP, .mp a program launched on ranks, .sh a script
# of checks. To add a test, add its name to a list below: that is all for test/unit/x.t, made of test/unit/x.c and
# linked with the insides of the library and the oracle; test_unit_x_t_SOURCES is for more. Ranks of an .mp and time
# limits stand in a comment of its source (%D%/rig/run-test). Exit status 77 skips. Tests run at the same time: each in
# its own temporary folder.
AM_CPPFLAGS += $(library_cppflags) -I$(srcdir)/src/ucp -I$(srcdir)/plugins/kit -I$(srcdir)/plugins/kernels \
	-I$(srcdir)/oracle -I$(srcdir)/tools/perf -I$(srcdir)/test/rig -I$(srcdir)/test/unit \
	-I$(srcdir)/test/sim $(CMOCKA_CFLAGS)
insides = libtest_parts.la libxep_kernels.la libxep_kit_parts.la libxep_cost.la libxep_all.la libxep_oracle.la -lm
LDADD = libunit.la $(insides) $(CMOCKA_LIBS)

# parts of tools, for unit tests to look at from inside
check_LTLIBRARIES = libtest_parts.la
libtest_parts_la_SOURCES = \
	tools/perf/perf_options_cluster.c tools/perf/perf_options.c \
	tools/perf/perf_options_resolve.c

# what defines main() and finds the tests that are TEST(name) in a source
libunit_la_SOURCES = %D%/unit/unit.h %D%/unit/unit.c %D%/unit/unit_files.c

unit_tests = \
	%D%/sim/sim_deaths.t %D%/sim/sim_normal.t %D%/sim/sim_ll.t %D%/sim/sim_threads.t \
	%D%/abi/dlopen.t \
	%D%/unit/boot_alone.t %D%/unit/boot_over_callback.t \
	%D%/unit/core_account.t %D%/unit/core_cost_rows.t \
	%D%/unit/core_cost_model.t %D%/unit/core_doubts.t \
	%D%/unit/core_exchange.t %D%/unit/core_heap_ranges.t %D%/unit/core_host.t %D%/unit/core_layout.t \
	%D%/unit/core_joiners.t %D%/unit/core_path.t \
	%D%/unit/core_polled.t %D%/unit/core_recording.t \
	%D%/unit/core_backoff.t %D%/unit/core_room.t %D%/unit/core_room_together.t %D%/unit/core_sleep.t \
	%D%/unit/core_give_up.t %D%/unit/core_shares.t %D%/unit/core_wait.t \
	%D%/unit/core_plan.t %D%/unit/ucp_segments.t \
	%D%/unit/intake_order.t \
	%D%/unit/util_cache.t %D%/unit/util_config.t %D%/unit/util_cpu.t %D%/unit/util_dtype.t %D%/unit/util_error.t \
	%D%/unit/util_loaded.t %D%/unit/util_log.t %D%/unit/util_mapping.t \
	%D%/unit/kernels_cast.t %D%/unit/kernels_codec.t %D%/unit/kernels_weigh.t \
	%D%/unit/kit_steps.t %D%/unit/kit_words.t \
	%D%/unit/pmix_exchange_faults.t \
	%D%/unit/oracle_numbers.t %D%/unit/oracle_routes.t %D%/unit/oracle_self.t \
	%D%/unit/perf_options_parse.t

# one simulator for all modes: a new one is a file of sim/, a program as these are, and a line of threads_modes.c
libsim_la_SOURCES = \
	%D%/sim/sim_heap.h %D%/sim/sim_heap.c %D%/sim/sim_shape.c \
	%D%/sim/sim_world.h %D%/sim/sim_world.c \
	%D%/sim/sim_calls.h %D%/sim/sim_calls.c %D%/sim/sim_death.h %D%/sim/sim_death.c \
	%D%/sim/sim_stores.c \
	%D%/sim/sim_dice.h %D%/sim/sim_wire.h %D%/sim/sim_wire.c %D%/sim/script.h %D%/sim/script.c \
	%D%/sim/script_truth.h %D%/sim/script_truth.c %D%/sim/script_memory.h %D%/sim/script_memory.c \
	%D%/sim/script_flight.h %D%/sim/script_flight.c \
	%D%/sim/script_check.h %D%/sim/script_check.c %D%/sim/script_end.h %D%/sim/script_end.c \
	%D%/sim/script_player.h %D%/sim/script_player.c \
	%D%/sim/sim_mode.h %D%/sim/sim_cases.h %D%/sim/sim_cases.c \
	%D%/sim/sim_suites.h %D%/sim/sim_failures.c %D%/sim/sim_nodes.c %D%/sim/sim_pieces.c %D%/sim/sim_recv_ring.c
sim_ldadd = libsim.la libxep_oracle.la $(CMOCKA_LIBS) -lm
%C%_sim_sim_normal_t_SOURCES = %D%/sim/sim_normal.c %D%/sim/sim_main.c
%C%_sim_sim_normal_t_CPPFLAGS = $(AM_CPPFLAGS) -DSIM_MODE=sim_normal
%C%_sim_sim_normal_t_LDADD = $(sim_ldadd)
%C%_sim_sim_ll_t_SOURCES = %D%/sim/sim_ll.c %D%/sim/sim_main.c
%C%_sim_sim_ll_t_CPPFLAGS = $(AM_CPPFLAGS) -DSIM_MODE=sim_ll
%C%_sim_sim_ll_t_LDADD = $(sim_ldadd)
%C%_sim_sim_threads_t_SOURCES = \
	%D%/sim/sim_threads.c %D%/sim/threads_modes.c %D%/sim/sim_normal.c %D%/sim/sim_ll.c
%C%_sim_sim_threads_t_LDADD = $(sim_ldadd)

# with the core's members around the modes
%C%_sim_sim_deaths_t_SOURCES = \
	%D%/sim/sim_members.h %D%/sim/sim_members.c %D%/sim/sim_blame.c %D%/sim/sim_deaths.c \
	%D%/sim/sim_normal.c %D%/sim/sim_ll.c
%C%_sim_sim_deaths_t_LDADD = libsim.la $(insides) $(CMOCKA_LIBS)

# the transport alone, between processes that it forks itself
%C%_mp_wire_wire_order_mp_SOURCES = %D%/rig/forked.h %D%/rig/forked.c %D%/mp/wire/wire_calls.h \
	%D%/mp/wire/wire_calls.c %D%/mp/wire/wire_order.c
%C%_mp_wire_wire_death_mp_SOURCES = %D%/rig/forked.h %D%/rig/forked.c %D%/mp/wire/wire_death.c
%C%_mp_wire_wire_keys_mp_SOURCES = %D%/rig/forked.h %D%/rig/forked.c %D%/mp/wire/wire_keys.c
%C%_mp_wire_wire_rate_mp_SOURCES = %D%/rig/forked.h %D%/rig/forked.c %D%/mp/wire/wire_rate.c

%C%_unit_core_give_up_t_SOURCES = %D%/unit/unit_mirror.h %D%/unit/unit_mirror.c %D%/unit/core_give_up.c
%C%_unit_core_shares_t_SOURCES = %D%/unit/unit_mirror.h %D%/unit/unit_mirror.c %D%/unit/core_shares.c
%C%_unit_core_wait_t_SOURCES = %D%/unit/unit_mirror.h %D%/unit/unit_mirror.c %D%/unit/core_wait.c
%C%_unit_pmix_exchange_faults_t_CPPFLAGS = $(AM_CPPFLAGS) $(PMIX_CFLAGS)
%C%_mp_wire_wire_order_mp_LDADD = $(insides)
%C%_mp_wire_wire_death_mp_LDADD = $(insides)
%C%_mp_wire_wire_keys_mp_LDADD = $(insides)
%C%_mp_wire_wire_rate_mp_LDADD = $(insides)
%C%_mp_launch_boot_client_mp_LDADD = $(insides)
%C%_mp_launch_setuid_mp_LDADD = $(insides)
%C%_bench_kernels_LDADD = $(insides)
%C%_bench_accuracy_LDADD = $(insides)

# programs on ranks are users of libxep.so; what they share is in mp_rig
check_LTLIBRARIES += libmp_rig.la
libmp_rig_la_SOURCES = \
	%D%/rig/mp_job.c %D%/rig/mp_job.h \
	%D%/rig/mp_pieces.c %D%/rig/mp_pieces.h %D%/rig/mp_rig.c %D%/rig/mp_rig.h \
	%D%/rig/mp_shapes.c \
	%D%/rig/mode_ops.c %D%/rig/mode_ops.h
libmp_rig_la_LIBADD = libxep_oracle.la libxep.la

# preloaded by perf_corrupt.sh; -rpath makes it a shared object although it is not installed
check_LTLIBRARIES += %D%/mp/launch/snapshot_names.la
%C%_mp_launch_snapshot_names_la_SOURCES = %D%/mp/launch/snapshot_names.c
%C%_mp_launch_snapshot_names_la_LDFLAGS = -module -avoid-version -shared -rpath /nowhere

check_LTLIBRARIES += %D%/mp/launch/no_threads.la
%C%_mp_launch_no_threads_la_SOURCES = %D%/mp/launch/no_threads.c
%C%_mp_launch_no_threads_la_LDFLAGS = -module -avoid-version -shared -rpath /nowhere

check_LTLIBRARIES += %D%/mp/perf/perf_corruptor.la
%C%_mp_perf_perf_corruptor_la_SOURCES = %D%/mp/perf/perf_corruptor.c
%C%_mp_perf_perf_corruptor_la_LDFLAGS = -module -avoid-version -shared -rpath /nowhere

# rows in device memory: a stand-in for the driver, which the script calls libcuda.so.1, and the mode as it is, with
# nothing in place of its kernels
check_LTLIBRARIES += %D%/cuda/standin_cuda.la %D%/cuda/xep_normal_cuda.la %D%/cuda/xep_ll_cuda.la
%C%_cuda_standin_cuda_la_SOURCES = \
	%D%/cuda/standin.h %D%/cuda/standin_driver.c %D%/cuda/standin_contexts.c %D%/cuda/standin_memory.c \
	%D%/cuda/standin_streams.c %D%/cuda/standin_words.h %D%/cuda/standin_ll_heaps.h %D%/cuda/standin_kernels.c \
	%D%/cuda/standin_layout.c %D%/cuda/standin_experts.c \
	%D%/cuda/standin_ll.c %D%/cuda/standin_ll_combine.c %D%/cuda/standin_captured.c
%C%_cuda_standin_cuda_la_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir)/plugins/cuda -I$(srcdir)/plugins/normal \
	-I$(srcdir)/plugins/ll
%C%_cuda_standin_cuda_la_CFLAGS = $(AM_CFLAGS) -Wno-missing-prototypes
%C%_cuda_standin_cuda_la_LIBADD = libxep_oracle.la -lpthread
%C%_cuda_standin_cuda_la_LDFLAGS = -module -avoid-version -shared -rpath /nowhere
check_LTLIBRARIES += %D%/cuda/knows_cuda.la
%C%_cuda_knows_cuda_la_SOURCES = %D%/cuda/knows_cuda.c
%C%_cuda_knows_cuda_la_CPPFLAGS = $(AM_CPPFLAGS) $(UCX_CFLAGS)
%C%_cuda_knows_cuda_la_CFLAGS = $(AM_CFLAGS) -Wno-missing-prototypes
%C%_cuda_knows_cuda_la_LIBADD = -ldl
%C%_cuda_knows_cuda_la_LDFLAGS = -module -avoid-version -shared -rpath /nowhere
%C%_cuda_xep_normal_cuda_la_SOURCES = $(cuda_normal_sources) %D%/cuda/standin_images.c
%C%_cuda_xep_normal_cuda_la_CPPFLAGS = $(cuda_cppflags)
%C%_cuda_xep_normal_cuda_la_LIBADD = libxep_kit_parts.la
%C%_cuda_xep_normal_cuda_la_LDFLAGS = -module -avoid-version -shared -rpath /nowhere
%C%_cuda_xep_ll_cuda_la_SOURCES = $(cuda_ll_sources) %D%/cuda/standin_images.c
%C%_cuda_xep_ll_cuda_la_CPPFLAGS = $(cuda_cppflags)
%C%_cuda_xep_ll_cuda_la_LIBADD = libxep_kit_parts.la -lm
%C%_cuda_xep_ll_cuda_la_LDFLAGS = -module -avoid-version -shared -rpath /nowhere
%C%_mp_device_cuda_ops_SOURCES = \
	%D%/mp/device/cuda_rig.h %D%/mp/device/cuda_rig.c %D%/mp/device/cuda_job.h %D%/mp/device/cuda_job.c \
	%D%/mp/device/cuda_parts.h %D%/mp/device/cuda_refuse.c %D%/mp/device/cuda_layouts.c \
	%D%/mp/device/cuda_staged.c %D%/mp/device/cuda_graphs.c %D%/mp/device/cuda_rounds.h \
	%D%/mp/device/cuda_rounds.c %D%/mp/device/cuda_standing.c %D%/mp/device/cuda_faults.c \
	%D%/mp/device/cuda_after.c %D%/mp/device/cuda_by_expert.c %D%/mp/device/cuda_broken.c \
	%D%/mp/device/cuda_refuse_experts.c \
	%D%/mp/device/cuda_goes_direct.c %D%/mp/device/cuda_captured.c \
	%D%/mp/device/cuda_death.c %D%/mp/device/cuda_ll_patterns.c %D%/mp/device/cuda_ll_again.c \
	%D%/mp/device/cuda_ops.c
%C%_mp_device_cuda_ops_LDADD = libmp_rig.la
%C%_mp_device_cuda_survivors_SOURCES = \
	%D%/mp/device/cuda_rig.h %D%/mp/device/cuda_rig.c %D%/mp/device/cuda_job.h %D%/mp/device/cuda_job.c \
	%D%/mp/device/cuda_survivors.c
%C%_mp_device_cuda_survivors_LDADD = libmp_rig.la
%C%_bench_cuda_calls_SOURCES = \
	%D%/mp/device/cuda_rig.h %D%/mp/device/cuda_rig.c %D%/mp/device/cuda_job.h %D%/mp/device/cuda_job.c \
	%D%/bench/cuda_calls.c
%C%_bench_cuda_calls_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir)/%D%/mp/device
%C%_bench_cuda_calls_LDADD = libmp_rig.la
%C%_bench_mask_cost_LDADD = libmp_rig.la -lm
%C%_bench_serve_cost_LDADD = libmp_rig.la

transport_tests = \
	%D%/mp/failures/deadlines.mp %D%/mp/ops/pieces.mp %D%/mp/ops/pieces_misuse.mp %D%/mp/wire/wire_death.mp \
	%D%/mp/wire/wire_keys.mp %D%/mp/failures/late_puts.mp %D%/mp/launch/boot_reload.mp \
	%D%/mp/failures/late_reads.mp \
	%D%/mp/ops/owner_maps.mp %D%/mp/ops/owned_weights.mp %D%/mp/ops/balanced.mp %D%/mp/ops/serving.mp \
	%D%/mp/ops/serving_kinds.mp \
	%D%/mp/ops/normal_shapes.mp %D%/mp/ops/in_place.mp %D%/mp/ops/normal_ops.mp \
	%D%/mp/ops/ll_ops.mp %D%/mp/ops/bad_arguments.mp %D%/mp/ops/mismatch.mp %D%/mp/ops/refused_calls.mp \
	%D%/mp/failures/aborted.mp %D%/mp/ops/dependencies.mp %D%/mp/groups/fork_in_flight.mp \
	%D%/mp/ops/never_begun.mp %D%/mp/groups/allgather.mp %D%/mp/ops/no_allocations.mp \
	%D%/mp/ops/prefaulted_pages.mp %D%/mp/groups/group_query.mp %D%/mp/ops/waits.mp \
	%D%/mp/ops/counters.mp \
	%D%/mp/failures/explain_on_signal.mp %D%/mp/failures/deadline_causes.mp %D%/mp/ops/ranks_outside.mp \
	%D%/mp/failures/given_up_ops.mp %D%/mp/ops/misuse.mp
# those of them that look at memory and messages, for ranks that map one another: their rows then go the same way,
# whichever memory it is, and whichever UCX has made it
mapped_tests = \
	%D%/mp/failures/deadlines.mp %D%/mp/ops/pieces.mp %D%/mp/wire/wire_death.mp %D%/mp/wire/wire_keys.mp \
	%D%/mp/failures/late_puts.mp %D%/mp/launch/boot_reload.mp %D%/mp/ops/normal_shapes.mp \
	%D%/mp/ops/owner_maps.mp %D%/mp/ops/serving.mp %D%/mp/ops/serving_kinds.mp \
	%D%/mp/ops/in_place.mp %D%/mp/ops/normal_ops.mp %D%/mp/ops/ll_ops.mp \
	%D%/mp/failures/aborted.mp %D%/mp/ops/never_begun.mp %D%/mp/ops/prefaulted_pages.mp \
	%D%/mp/groups/group_query.mp %D%/mp/ops/ranks_outside.mp
rank_tests = $(transport_tests) %D%/mp/ops/mode_query.mp %D%/mp/ops/events.mp %D%/mp/wire/wire_order.mp \
	%D%/mp/ops/shared_processor.mp \
	%D%/mp/launch/boot_client.mp %D%/mp/launch/setuid.mp %D%/mp/ops/by_nodes.mp \
	%D%/mp/ops/forwarding.mp \
	%D%/mp/failures/late_in_call.mp \
	%D%/mp/groups/nodes_disagree.mp %D%/mp/groups/own_allgather.mp %D%/mp/machine/ucx_disagree.mp \
	%D%/mp/machine/locked_memory.mp %D%/mp/machine/process_settings.mp
%C%_mp_launch_boot_reload_mp_LDADD =
%C%_mp_ops_normal_shapes_mp_LDADD = libmp_rig.la
%C%_mp_ops_by_nodes_mp_LDADD = libmp_rig.la
%C%_mp_ops_forwarding_mp_LDADD = libmp_rig.la
%C%_mp_groups_own_allgather_mp_LDADD = libmp_rig.la
%C%_unit_ucp_segments_t_LDFLAGS = -Wl,--wrap=shmget -Wl,--wrap=shmat -Wl,--wrap=shmctl
%C%_mp_failures_late_in_call_mp_SOURCES = %D%/mp/failures/late_in_call.c %D%/rig/mp_rig.c %D%/rig/mp_rig.h
%C%_mp_failures_late_in_call_mp_CPPFLAGS = $(AM_CPPFLAGS)
%C%_mp_failures_late_in_call_mp_LDADD = $(insides)
%C%_mp_failures_late_in_call_mp_LDFLAGS = -Wl,--wrap=xep_group_signal_all -Wl,--wrap=xep_group_flush
%C%_mp_groups_nodes_disagree_mp_SOURCES = %D%/mp/groups/nodes_disagree.c %D%/rig/mp_rig.c %D%/rig/mp_rig.h
%C%_mp_groups_nodes_disagree_mp_CPPFLAGS = $(AM_CPPFLAGS)
%C%_mp_groups_nodes_disagree_mp_LDADD = $(insides)
%C%_mp_groups_nodes_disagree_mp_LDFLAGS = -Wl,--wrap=xep_group_exchange
%C%_mp_ops_in_place_mp_LDADD = libmp_rig.la
%C%_mp_ops_pieces_mp_LDADD = libmp_rig.la
%C%_mp_ops_pieces_misuse_mp_LDADD = libmp_rig.la
%C%_mp_ops_owner_maps_mp_LDADD = libmp_rig.la
%C%_mp_ops_serving_mp_LDADD = libmp_rig.la
%C%_mp_ops_serving_kinds_mp_LDADD = libmp_rig.la
%C%_mp_ops_owned_weights_mp_LDADD = libmp_rig.la
%C%_mp_ops_balanced_mp_LDADD = libmp_rig.la
%C%_mp_ops_normal_ops_mp_LDADD = libmp_rig.la
%C%_mp_ops_ranks_outside_mp_LDADD = libmp_rig.la
%C%_mp_ops_ll_ops_mp_LDADD = libmp_rig.la
%C%_mp_ops_bad_arguments_mp_LDADD = libmp_rig.la
%C%_mp_ops_mismatch_mp_LDADD = libmp_rig.la
%C%_mp_ops_refused_calls_mp_LDADD = libmp_rig.la
%C%_mp_failures_deadlines_mp_LDADD = libmp_rig.la
%C%_mp_failures_aborted_mp_LDADD = libmp_rig.la
%C%_mp_ops_dependencies_mp_LDADD = libmp_rig.la
%C%_mp_groups_fork_in_flight_mp_LDADD = libmp_rig.la
%C%_mp_ops_never_begun_mp_LDADD = libmp_rig.la
%C%_mp_groups_allgather_mp_LDADD = libmp_rig.la
%C%_mp_ops_no_allocations_mp_LDADD = libmp_rig.la
%C%_mp_ops_prefaulted_pages_mp_LDADD = libmp_rig.la
%C%_mp_ops_over_4_gib_LDADD = libmp_rig.la
%C%_mp_groups_group_query_mp_LDADD = libmp_rig.la
%C%_mp_machine_locked_memory_mp_LDADD = libmp_rig.la
%C%_mp_machine_locked_memory_mp_LDFLAGS = -export-dynamic
%C%_mp_machine_ucx_disagree_mp_LDADD = libmp_rig.la
%C%_mp_machine_ucx_disagree_mp_LDFLAGS = -export-dynamic
%C%_mp_machine_process_settings_mp_LDADD = libmp_rig.la -lnuma
%C%_mp_machine_process_settings_mp_LDFLAGS = -export-dynamic
%C%_mp_failures_late_puts_mp_LDADD = libmp_rig.la
%C%_mp_failures_late_reads_mp_LDADD = libmp_rig.la
%C%_mp_ops_waits_mp_SOURCES = %D%/mp/ops/waits_books.h %D%/mp/ops/waits_books.c %D%/mp/ops/waits.c
%C%_mp_ops_waits_mp_LDADD = libmp_rig.la
%C%_mp_ops_counters_mp_LDADD = libmp_rig.la
%C%_mp_ops_shared_processor_mp_LDADD = libmp_rig.la
%C%_mp_failures_explain_on_signal_mp_LDADD = libmp_rig.la
%C%_mp_failures_deadline_causes_mp_LDADD = libmp_rig.la
%C%_mp_failures_given_up_ops_mp_LDADD = libmp_rig.la
%C%_mp_ops_misuse_mp_LDADD = libmp_rig.la
%C%_mp_ops_mode_query_mp_LDADD = libmp_rig.la
%C%_mp_ops_events_mp_LDADD = libmp_rig.la

# What takes longest begins first, and what takes a second or two comes last: then no processor waits at the end for one
# test. kills, heartbeat and failure mostly sleep, beside others that compute.
long_scripts = \
	%D%/mp/launch/hosts.sh %D%/model/protocols.sh %D%/mp/failures/survivors.sh \
	%D%/mp/failures/serving_ends.sh %D%/mp/ops/settings.sh \
	%D%/mp/wire/wire_transports.sh %D%/mp/failures/kills.sh %D%/mp/device/cuda_standin.sh \
	%D%/mp/device/cuda_survivors.sh %D%/mp/ops/over_4_gib.sh \
	%D%/mp/groups/shrink.sh %D%/mp/failures/heartbeat.sh %D%/mp/perf/simulated_hosts.sh %D%/mp/perf/perf_ratios.sh \
	%D%/mp/groups/grow.sh %D%/mp/ops/ll_check.sh %D%/mp/groups/soak.sh %D%/mp/failures/recovery_time.sh \
	%D%/mp/groups/grow_last_word.sh
short_scripts = \
	%D%/mp/perf/trace_output.sh %D%/rig/layers.sh %D%/rig/documents.sh %D%/rig/tarball.sh %D%/rig/rig.sh \
	%D%/mp/launch/launch_prterun.sh %D%/mp/launch/launch_slurm.sh %D%/mp/perf/perf_output.sh \
	%D%/mp/perf/perf_check.sh %D%/mp/perf/simulated.sh %D%/mp/launch/run_status.sh %D%/mp/launch/run_signals.sh \
	%D%/mp/launch/boot_hazards.sh %D%/mp/perf/perf_corrupt.sh %D%/mp/launch/launch_mpirun.sh \
	%D%/mp/launch/launch_hosts.sh %D%/mp/launch/launch_xep_run.sh %D%/rig/symbols.sh \
	%D%/mp/machine/shared_memory.sh %D%/mp/machine/missing.sh %D%/mp/machine/ucx_settings.sh %D%/rig/format.sh \
	%D%/mp/launch/run_environ.sh %D%/mp/launch/run_leftovers.sh %D%/mp/launch/run_output.sh \
	%D%/mp/machine/limits.sh %D%/mp/launch/networks.sh %D%/mp/machine/ucx_versions.sh %D%/mp/perf/recorded.sh \
	%D%/mp/perf/documented.sh \
	%D%/model/orders.sh \
	%D%/rig/mutants.sh %D%/abi/examples.sh %D%/abi/outoftree.sh %D%/abi/headers.sh %D%/abi/cmake.sh %D%/abi/loader.sh \
	%D%/abi/frozen.sh \
	%D%/mp/groups/listen_addresses.sh %D%/mp/ops/no_system_calls.sh %D%/mp/failures/death_in_phase.sh
script_tests = $(long_scripts) $(short_scripts)

# of protocols.sh; "make model" runs all sizes
EXTRA_DIST += %D%/model/model_core.pml %D%/model/model_combine.pml %D%/model/model_run.pml \
	%D%/model/model_normal.pml %D%/model/model_ll.pml %D%/model/model_mask.pml \
	%D%/model/model_rows.pml %D%/model/model_grants.pml %D%/model/model_nodes.pml \
	%D%/model/model_pieces.pml %D%/model/model_recv_ring.pml %D%/model/model_serve.pml %D%/model/model_shrink.pml \
	%D%/model/model_grow.pml %D%/model/orders.cpp
model:
	srcdir='$(abs_top_srcdir)' CC='$(CC)' bash $(srcdir)/%D%/model/protocols.sh full
.PHONY: model

# what tests use and is no test itself
test_helpers = %D%/mp/device/cuda_survivors \
	%D%/mp/device/cuda_ops %D%/bench/cuda_calls %D%/abi/mode_load \
	%D%/mp/machine/killed_in_shm_open %D%/mp/failures/heartbeat %D%/mp/failures/killed %D%/mp/groups/listening \
	%D%/mp/groups/meet_by_name %D%/mp/machine/no_room %D%/mp/machine/no_sysv %D%/mp/machine/two_users \
	%D%/mp/machine/room_in_pieces %D%/mp/perf/traced %D%/mp/failures/survivors \
	%D%/mp/failures/serving_ends %D%/mp/groups/shrink \
	%D%/mp/ops/over_4_gib %D%/mp/groups/grow %D%/mp/groups/grow_last_word %D%/mp/groups/soak \
	%D%/mp/failures/death_in_phase %D%/mp/failures/recovery_time %D%/mp/wire/wire_rate.mp %D%/bench/kernels \
	%D%/bench/accuracy %D%/bench/mask_cost %D%/bench/serve_cost
%C%_abi_mode_load_LDADD = libxep.la
%C%_abi_dlopen_t_LDADD = libunit.la $(CMOCKA_LIBS)
%C%_mp_machine_killed_in_shm_open_LDADD = libmp_rig.la
%C%_mp_machine_killed_in_shm_open_LDFLAGS = $(AM_LDFLAGS) -Wl,--export-dynamic
%C%_mp_groups_listening_LDADD = libxep.la
%C%_mp_machine_no_room_LDADD = libmp_rig.la
%C%_mp_machine_no_sysv_LDADD =
%C%_mp_machine_two_users_LDADD = libmp_rig.la
%C%_mp_machine_room_in_pieces_LDADD = libmp_rig.la
%C%_mp_perf_traced_LDADD = libmp_rig.la
%C%_mp_failures_survivors_SOURCES = %D%/mp/failures/survivors_log.h %D%/mp/failures/survivors_log.c \
	%D%/mp/failures/survivors.c
%C%_mp_failures_survivors_LDADD = libmp_rig.la
%C%_mp_failures_serving_ends_LDADD = libmp_rig.la
%C%_mp_failures_recovery_time_LDADD = libmp_rig.la
%C%_mp_groups_shrink_LDADD = libmp_rig.la
%C%_mp_groups_grow_LDADD = libmp_rig.la
%C%_mp_groups_soak_LDADD = libmp_rig.la
%C%_mp_groups_grow_last_word_SOURCES = %D%/mp/groups/grow_last_word.c %D%/rig/mp_rig.c %D%/rig/mp_rig.h
%C%_mp_groups_grow_last_word_CPPFLAGS = $(AM_CPPFLAGS)
%C%_mp_groups_grow_last_word_LDADD = $(insides)
%C%_mp_groups_grow_last_word_LDFLAGS = -Wl,--wrap=xep_group_signal_all
%C%_mp_failures_death_in_phase_LDADD = libmp_rig.la
%C%_mp_failures_heartbeat_LDADD = libmp_rig.la
%C%_mp_failures_killed_LDADD = libmp_rig.la
%C%_mp_groups_meet_by_name_LDADD = libmp_rig.la
EXTRA_DIST += %D%/mutants/run %D%/mutants/fuzz.mutants %D%/mutants/kit.mutants \
	%D%/mutants/normal.mutants %D%/mutants/ll.mutants %D%/mutants/members.mutants
EXTRA_DIST += %D%/mp/perf/trace_check.py %D%/bench/ratios.py %D%/bench/bounds %D%/bench/paths.sh \
	%D%/bench/formats.sh %D%/bench/sockets.py %D%/bench/activations.py %D%/bench/product_parts.py
EXTRA_DIST += %D%/rig/run-test %D%/rig/installed.bash %D%/rig/hosts.bash %D%/rig/relay.py %D%/rig/exchange.py \
	%D%/rig/launch.bash %D%/rig/ranks.bash %D%/rig/run.bash %D%/rig/prterun.bash \
	%D%/abi/layouts %D%/abi/stub_mode.c %D%/abi/outoftree/xep_flood.c %D%/abi/outoftree/flood_client.c

check_PROGRAMS = $(test_helpers) $(rank_tests)
TESTS = $(long_scripts) $(rank_tests)
if HAVE_CMOCKA
check_LTLIBRARIES += libunit.la libsim.la
check_PROGRAMS += $(unit_tests)
TESTS += $(unit_tests)
else
check-local:
	@echo 'cmocka was not found when configured: the unit tests (.t) are left out' >&2
endif
dist_check_SCRIPTS = $(script_tests)

include $(srcdir)/%D%/fuzz/local.mk
TESTS += $(short_scripts)

TEST_EXTENSIONS = .t .mp .sh
T_LOG_DRIVER = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh
T_LOG_COMPILER = bash $(srcdir)/%D%/rig/run-test
MP_LOG_COMPILER = $(T_LOG_COMPILER)
SH_LOG_COMPILER = $(T_LOG_COMPILER)
AM_TESTS_ENVIRONMENT = \
	XEP_PLUGIN_PATH='$(abs_builddir)/.libs'; export XEP_PLUGIN_PATH; \
	LD_LIBRARY_PATH='$(abs_builddir)/.libs'"$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH}"; export LD_LIBRARY_PATH; \
	CC='$(CC)' CXX='$(CXX)' CFLAGS='$(CFLAGS)' CXXFLAGS='$(CXXFLAGS)' LDFLAGS='$(LDFLAGS)' MAKE='$(MAKE)'; \
	export CC CXX CFLAGS CXXFLAGS LDFLAGS MAKE;

# parts of make check: the programs on ranks, to run them again with other settings (UCX_TLS=tcp,self make check-ranks);
# those of them that a transport can change (boot_client uses none, wire_transports.sh runs wire_order on all); the
# programs that run alone
check-ranks:
	$(MAKE) $(AM_MAKEFLAGS) check TESTS='$(rank_tests)'
check-transport:
	$(MAKE) $(AM_MAKEFLAGS) check TESTS='$(transport_tests)'
check-mapped:
	$(MAKE) $(AM_MAKEFLAGS) check TESTS='$(mapped_tests)'
# what happens around ranks that die and memory that is short is another UCX's business, too
memory_tests = %D%/mp/machine/shared_memory.sh %D%/mp/failures/kills.sh
check-memory:
	$(MAKE) $(AM_MAKEFLAGS) check TESTS='$(memory_tests)'
check-units:
	$(MAKE) $(AM_MAKEFLAGS) check TESTS='$(unit_tests)'
# what runs programs that a sanitizer can learn from: but for tests that look at sources and objects, or compare times;
# for launchers and hosts whose programs settings.sh and launch_xep_run.sh run; for over_4_gib.sh, which is of sizes;
# and for documented.sh, whose programs perf_check.sh and perf_output.sh run
no_programs = %D%/rig/% %/headers.sh %/frozen.sh %/protocols.sh %/orders.sh %/perf_ratios.sh %/simulated_hosts.sh \
	%/hosts.sh %/recovery_time.sh %/shared_processor.mp %/over_4_gib.sh %/launch_prterun.sh %/launch_mpirun.sh \
	%/ucx_versions.sh %/networks.sh %/documented.sh
check-run:
	$(MAKE) $(AM_MAKEFLAGS) check TESTS='$(filter-out $(no_programs),$(TESTS))'
# the units that have threads, or call what is meant for several: a thread sanitizer learns nothing from the others
threads_tests = %D%/sim/sim_threads.t %D%/abi/dlopen.t %D%/unit/boot_over_callback.t %D%/unit/core_host.t \
	%D%/unit/core_exchange.t %D%/unit/core_give_up.t %D%/unit/core_heap_ranges.t %D%/unit/core_joiners.t \
	%D%/unit/core_polled.t \
	%D%/unit/core_recording.t %D%/unit/core_sleep.t %D%/unit/core_wait.t %D%/unit/intake_order.t \
	%D%/unit/pmix_exchange_faults.t \
	%D%/unit/util_cache.t %D%/unit/util_config.t %D%/unit/util_error.t %D%/unit/util_loaded.t %D%/unit/util_log.t
check-threads: libxep.la xep_normal.la xep_ll.la $(threads_tests)
	$(MAKE) $(AM_MAKEFLAGS) check-TESTS TESTS='$(threads_tests)'

# deliberate defects, one after the other: does the simulator notice? Not part of make check: half an hour and more.
# make mutants MUTANTS='offers-* room-*' tries those alone
mutants:
	bash $(srcdir)/%D%/mutants/run $(srcdir) $(abs_builddir)/mutants $(MUTANTS)
# times, against bounds; make bench RATIOS='ll peer --launches 11' measures lines with those words, so often
bench: all
	python3 $(srcdir)/%D%/bench/ratios.py $(abs_builddir) $(srcdir)/%D%/bench/bounds $(RATIOS)
.PHONY: check-ranks check-transport check-mapped check-memory check-units check-run check-threads mutants bench
