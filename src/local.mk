# SPDX-License-Identifier: BSD-3-Clause
# The library.

# What paths to other nodes cost, also of jobs that do not exist: for xep_perf --simulate
noinst_LTLIBRARIES += libxep_cost.la
libxep_cost_la_SOURCES = \
	%D%/core/cost_rows.h %D%/core/cost_rows.c %D%/core/cost_model.h %D%/core/cost_model.c
libxep_cost_la_LIBADD = -lm

# libxep_all.la is what libxep.so is made of and what unit tests link, so that these reach what is not exported
noinst_LTLIBRARIES += libxep_all.la
libxep_all_la_SOURCES = \
	%D%/api.c %D%/api_elastic.c %D%/api_gather.c %D%/api_operations.c %D%/api_requests.c \
	%D%/api_boot.h %D%/api_boot.c %D%/api_layout.c %D%/api_check.h %D%/api_check.c \
	%D%/api_check_pieces.h %D%/api_check_pieces.c %D%/api_memory.h %D%/api_memory.c %D%/api_struct.h %D%/api_struct.c \
	%D%/api_require.h %D%/api_require.c \
	%D%/core/account.h %D%/core/account.c %D%/core/ballot.h %D%/core/ballot.c \
	%D%/core/ballot_words.h %D%/core/ballot_words.c \
	%D%/core/group_account.h %D%/core/group_account.c %D%/core/group_ask.h %D%/core/group_ask.c \
	%D%/core/boot.h %D%/core/boot_callback.h %D%/core/boot_callback.c %D%/core/boot_single.h %D%/core/boot_single.c \
	%D%/core/buffer.h %D%/core/buffer.c %D%/core/buffer_agree.h %D%/core/buffer_agree.c \
	%D%/core/buffer_create.h %D%/core/buffer_create.c %D%/core/buffer_end.h %D%/core/buffer_end.c \
	%D%/core/buffer_give_up.h %D%/core/buffer_give_up.c \
	%D%/core/buffer_size.h %D%/core/buffer_size.c \
	%D%/core/buffer_env.h %D%/core/buffer_env.c %D%/core/device.h %D%/core/group.h %D%/core/group.c \
	%D%/core/group_abort.h %D%/core/group_abort.c %D%/core/group_bell.h %D%/core/group_bell.c \
	%D%/core/group_mail.h %D%/core/group_mail.c \
	%D%/core/boot_mail.h %D%/core/boot_mail.c %D%/core/shrink_state.h %D%/core/shrink_state.c \
	%D%/core/group_shrink.h %D%/core/group_shrink.c \
	%D%/core/address.h %D%/core/address.c %D%/core/stream.h %D%/core/stream.c \
	%D%/core/meeting.h %D%/core/meeting.c \
	%D%/core/newcomers.h %D%/core/newcomers.c %D%/core/boot_grow.h %D%/core/boot_grow.c \
	%D%/core/boot_join.h %D%/core/boot_join.c %D%/core/group_grow.h %D%/core/group_grow.c \
	%D%/core/group_join.h %D%/core/group_join.c %D%/core/buffer_follow.h %D%/core/buffer_follow.c \
	%D%/core/group_control.h %D%/core/group_control.c %D%/core/group_create.h %D%/core/group_create.c \
	%D%/core/group_hello.h %D%/core/group_hello.c \
	%D%/core/neighbours.h %D%/core/neighbours.c \
	%D%/core/group_out.h %D%/core/group_out.c %D%/core/group_sleep.h %D%/core/group_sleep.c \
	%D%/core/members.h %D%/core/members.c %D%/core/members_area.h %D%/core/members_wait.h %D%/core/members_wait.c \
	%D%/core/members_mapped.h %D%/core/members_mapped.c %D%/core/members_wire.h %D%/core/members_wire.c \
	%D%/core/group_exchange.h %D%/core/group_exchange.c %D%/core/group_signal.h %D%/core/group_signal.c \
	%D%/core/group_wait.h %D%/core/group_wait.c %D%/core/handle.h %D%/core/handle.c %D%/core/heap.h %D%/core/heap.c \
	%D%/core/host.h %D%/core/host.c %D%/core/layout.h %D%/core/layout.c \
	%D%/core/plugin_file.h %D%/core/plugin_file.c %D%/core/plugin_loader.h %D%/core/plugin_loader.c \
	%D%/core/progress_thread.h %D%/core/progress_thread.c \
	%D%/core/request.h %D%/core/request.c %D%/core/request_advance.h %D%/core/request_advance.c \
	%D%/core/request_begin.h %D%/core/request_begin.c %D%/core/request_end.h %D%/core/request_end.c \
	%D%/core/request_order.h %D%/core/request_order.c \
	%D%/core/request_refuse.h %D%/core/request_refuse.c \
	%D%/core/request_trace.h %D%/core/request_trace.c \
	%D%/core/request_wait.h %D%/core/request_wait.c %D%/core/recording.h %D%/core/recording.c \
	%D%/core/rest.h %D%/core/rest.c %D%/core/room.h %D%/core/room.c %D%/core/room_together.h %D%/core/room_together.c \
	%D%/core/interfaces.h %D%/core/interfaces.c \
	%D%/core/path.h %D%/core/path.c %D%/core/path_cost.h %D%/core/path_cost.c \
	%D%/core/shape.h %D%/core/shape.c %D%/core/staging.h %D%/core/staging.c %D%/core/staging_slots.h \
	%D%/core/staging_copy.h %D%/core/staging_copy.c %D%/core/staging_take.h %D%/core/staging_take.c \
	%D%/core/staging_show.h %D%/core/staging_show.c %D%/core/staging_layout.h %D%/core/staging_layout.c \
	%D%/core/staging_look.h %D%/core/staging_look.c \
	%D%/core/staging_wait.h %D%/core/staging_wait.c %D%/core/team.h %D%/core/team.c %D%/core/transport.h \
	%D%/core/wait_times.h %D%/core/wait_times.c \
	%D%/cuda/cuda_device.h %D%/cuda/cuda_device.c %D%/cuda/cuda_driver.h %D%/cuda/cuda_driver.c \
	%D%/cuda/cuda_heap.h %D%/cuda/cuda_heap.c %D%/cuda/cuda_kept.h %D%/cuda/cuda_kept.c \
	%D%/cuda/cuda_objects.h %D%/cuda/cuda_work.h %D%/cuda/cuda_work.c \
	%D%/cuda/cuda_pointers.h %D%/cuda/cuda_pointers.c \
	%D%/pmix/pmix_api.h %D%/pmix/pmix_api.c %D%/pmix/pmix_boot.h %D%/pmix/pmix_boot.c \
	%D%/pmix/pmix_call.h %D%/pmix/pmix_call.c %D%/pmix/pmix_client.h %D%/pmix/pmix_client.c \
	%D%/pmix/pmix_names.h %D%/pmix/pmix_names.c \
	%D%/pmix/pmix_exchange.h %D%/pmix/pmix_exchange.c %D%/pmix/pmix_init.h %D%/pmix/pmix_init.c \
	%D%/pmix/pmix_life.h %D%/pmix/pmix_life.c \
	%D%/ucp/ucp_context.h %D%/ucp/ucp_context.c %D%/ucp/ucp_fault.h %D%/ucp/ucp_fault.c \
	%D%/ucp/ucp_gather.h %D%/ucp/ucp_gather.c %D%/ucp/ucp_heap.h %D%/ucp/ucp_heap.c \
	%D%/ucp/ucp_heartbeat.h %D%/ucp/ucp_heartbeat.c \
	%D%/ucp/ucp_intake.h %D%/ucp/ucp_intake.c %D%/ucp/ucp_library.h %D%/ucp/ucp_library.c \
	%D%/ucp/ucp_link.h %D%/ucp/ucp_link.c %D%/ucp/ucp_lock.h %D%/ucp/ucp_memory.h %D%/ucp/ucp_memory.c \
	%D%/ucp/ucp_mail.h %D%/ucp/ucp_mail.c %D%/ucp/ucp_message.h %D%/ucp/ucp_message.c %D%/ucp/ucp_objects.h \
	%D%/ucp/ucp_op.h %D%/ucp/ucp_op.c \
	%D%/ucp/ucp_peer.h %D%/ucp/ucp_peer.c %D%/ucp/ucp_pool.h %D%/ucp/ucp_pool.c \
	%D%/ucp/ucp_progress.h %D%/ucp/ucp_progress.c %D%/ucp/ucp_registry.h %D%/ucp/ucp_registry.c \
	%D%/ucp/ucp_rma.h %D%/ucp/ucp_rma.c %D%/ucp/ucp_settings.h %D%/ucp/ucp_settings.c \
	%D%/ucp/ucp_devices.h %D%/ucp/ucp_devices.c %D%/ucp/ucp_limits.h %D%/ucp/ucp_limits.c \
	%D%/ucp/ucp_quiet.h %D%/ucp/ucp_quiet.c \
	%D%/ucp/ucp_leftovers.h %D%/ucp/ucp_leftovers.c %D%/ucp/ucp_shared.h %D%/ucp/ucp_shared.c \
	%D%/ucp/ucp_signals.h %D%/ucp/ucp_signals.c %D%/ucp/ucp_strategy.h %D%/ucp/ucp_strategy.c \
	%D%/ucp/ucp_transport.h %D%/ucp/ucp_transport.c %D%/ucp/ucp_wire.h %D%/ucp/ucp_wire.c \
	%D%/util/cache.h %D%/util/cache.c %D%/util/config.h %D%/util/config.c %D%/util/config_defs.h \
	%D%/util/cpu.h %D%/util/cpu.c %D%/util/dtype.c \
	%D%/util/error.h %D%/util/error.c %D%/util/fork.h %D%/util/fork.c %D%/util/loaded.h %D%/util/loaded.c \
	%D%/util/log.h %D%/util/log.c %D%/util/mapping.h %D%/util/mapping.c %D%/util/secure.h %D%/util/secure.c \
	%D%/util/shm.h %D%/util/shm.c %D%/util/spelling.h %D%/util/spelling.c %D%/util/streaming.h \
	%D%/util/streaming.c %D%/util/trace.h %D%/util/trace.c %D%/util/trace_file.h %D%/util/units.h \
	%D%/util/units.c %D%/util/watch.h %D%/util/watch.c
libxep_all_la_CPPFLAGS = $(library_cppflags) $(UCX_CFLAGS) $(PMIX_CFLAGS) -DXEP_PLUGIN_DIR='"$(pkglibdir)"'
libxep_all_la_LIBADD = libxep_cost.la $(UCX_LIBS) $(NUMA_LIBS)

lib_LTLIBRARIES = libxep.la
libxep_la_SOURCES =
libxep_la_LIBADD = libxep_all.la
libxep_la_LDFLAGS = -version-info $(XEP_LIBRARY_VERSION) -no-undefined
libxep_la_DEPENDENCIES = libxep_all.la %D%/xep.map
if HAVE_VERSION_SCRIPT
libxep_la_LDFLAGS += -Wl,--version-script=$(srcdir)/%D%/xep.map
endif
EXTRA_DIST += %D%/xep.map
