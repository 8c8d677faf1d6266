# SPDX-License-Identifier: BSD-3-Clause
# The modes that come with the library.

plugin_cppflags = -I$(srcdir)/include -I$(builddir)/include
plugin_ldflags = -module -avoid-version -shared -no-undefined

# What modes are made of, part of each: for those of other projects an archive, its headers, and xep-kit.pc.
kit_headers = \
	%D%/kit/agree.h %D%/kit/carve.h %D%/kit/fields.h %D%/kit/forwarders.h %D%/kit/handshake.h %D%/kit/kit.h \
	%D%/kit/rows.h %D%/kit/notices.h %D%/kit/kit_in_place.h %D%/kit/send.h %D%/kit/masks.h %D%/kit/steps.h %D%/kit/words.h
xepkitincludedir = $(includedir)/xep/kit
xepkitinclude_HEADERS = $(kit_headers)
kit_sources = \
	%D%/kit/agree.c %D%/kit/carve.c %D%/kit/forwarders.c %D%/kit/handshake.c %D%/kit/kit.c %D%/kit/notices.c \
	%D%/kit/fields.c %D%/kit/kit_in_place.c %D%/kit/send.c %D%/kit/masks.c %D%/kit/steps.c %D%/kit/words.c
noinst_LTLIBRARIES += libxep_kit_parts.la
libxep_kit_parts_la_SOURCES = $(kit_sources)
libxep_kit_parts_la_CPPFLAGS = $(plugin_cppflags)
lib_LIBRARIES = libxep_kit.a
libxep_kit_a_SOURCES = $(kit_sources)
libxep_kit_a_CPPFLAGS = $(plugin_cppflags)
libxep_kit_a_CFLAGS = $(AM_CFLAGS) -fPIC
pkgconfig_DATA += xep-kit.pc

# Kernels that both modes have: compiled once for all, as the sums take longer than all the rest of a mode.
noinst_LTLIBRARIES += libxep_kernels.la
libxep_kernels_la_SOURCES = \
	%D%/kernels/copy.h %D%/kernels/copy.c \
	%D%/kernels/floats.h %D%/kernels/weigh.h %D%/kernels/weigh.c %D%/kernels/weigh_kernels.h \
	%D%/kernels/weigh_lines.h %D%/kernels/weigh_avx2.c %D%/kernels/weigh_avx512.c \
	%D%/kernels/weigh_neon.c \
	%D%/kernels/cast.h %D%/kernels/cast.c %D%/kernels/cast_kernels.h %D%/kernels/cast_blocks.h \
	%D%/kernels/cast_avx2.c %D%/kernels/cast_avx512.c %D%/kernels/cast_avx512.h %D%/kernels/cast_vbmi.c \
	%D%/kernels/cast_neon.c \
	%D%/kernels/cast_table.c %D%/kernels/cast_table.h %D%/kernels/cast_formats.h %D%/kernels/cast_rows.c \
	%D%/kernels/cast_walk.h %D%/kernels/cast_vectors.h %D%/kernels/cast_x86.h \
	%D%/kernels/cast_formats.c \
	%D%/kernels/codec.h %D%/kernels/codec.c %D%/kernels/decode.c \
	%D%/kernels/decode_walk.h %D%/kernels/decode_vectors.h %D%/kernels/decode_avx2.c %D%/kernels/decode_neon.c \
	%D%/kernels/logfmt.h %D%/kernels/logfmt.c %D%/kernels/logfmt_lanes.h
libxep_kernels_la_CPPFLAGS = $(plugin_cppflags) -I$(srcdir)/%D%/kit -I$(srcdir)/%D%/kernels

# What the modes for host memory and those for device memory have in common.
normal_shared_sources = \
	%D%/normal/normal.h %D%/normal/normal_shared.h %D%/normal/normal_record.h %D%/normal/normal_shared.c \
	%D%/normal/normal_heap.c %D%/normal/normal_records.c %D%/normal/normal_digest.c %D%/normal/normal_nodes.h \
	%D%/normal/normal_nodes_heap.c %D%/normal/normal_pieces.h
ll_shared_sources = %D%/ll/ll.h %D%/ll/ll_notice.h %D%/ll/ll_shared.c %D%/ll/ll_heap.c

pkglib_LTLIBRARIES = xep_normal.la xep_ll.la
xep_normal_la_SOURCES = $(normal_shared_sources) \
	%D%/normal/normal.c %D%/normal/normal_steps.h %D%/normal/normal_steps.c %D%/normal/normal_plan.c \
	%D%/normal/normal_masks.h %D%/normal/normal_masks.c %D%/normal/normal_grants.c \
	%D%/normal/normal_in_place.c \
	%D%/normal/normal_pieces.c %D%/normal/normal_nodes.c \
	%D%/normal/normal_pass.c %D%/normal/normal_forward.c %D%/normal/normal_nodes_return.c %D%/normal/normal_paths.c \
	%D%/normal/normal_put.c \
	%D%/normal/normal_dispatch.c %D%/normal/normal_combine.c %D%/normal/normal_fill.c \
	%D%/normal/normal_nodes_steps.c %D%/normal/normal_cast.c \
	%D%/normal/normal_direct.c \
	%D%/normal/normal_coded.h %D%/normal/normal_coded.c
xep_normal_la_CPPFLAGS = $(plugin_cppflags) -I$(srcdir)/%D%/kit -I$(srcdir)/%D%/kernels
xep_normal_la_LDFLAGS = $(plugin_ldflags)
xep_normal_la_LIBADD = libxep_kit_parts.la libxep_kernels.la -lm

xep_ll_la_SOURCES = $(ll_shared_sources) %D%/ll/ll.c \
	%D%/ll/ll_flow_send.c %D%/ll/ll_flow_receive.c %D%/ll/ll_forward.c %D%/ll/ll_paths.c \
	%D%/ll/ll_send.c %D%/ll/ll_steps.c %D%/ll/ll_masks.c \
	%D%/ll/ll_receive.c %D%/ll/ll_unpack.c \
	%D%/ll/ll_flow.h %D%/ll/ll_pieces.h %D%/ll/ll_pieces.c \
	%D%/ll/ll_in_place.h %D%/ll/ll_in_place.c %D%/ll/ll_offer.c %D%/ll/ll_sum.c \
	%D%/ll/ll_coded.h %D%/ll/ll_coded.c
xep_ll_la_CPPFLAGS = $(plugin_cppflags) -I$(srcdir)/%D%/kit -I$(srcdir)/%D%/kernels
xep_ll_la_LDFLAGS = $(plugin_ldflags)
xep_ll_la_LIBADD = libxep_kit_parts.la libxep_kernels.la -lm

# The modes for device memory: nvcc compiles the kernels, and they are part of the mode as fat binaries, for the
# architecture there is most of today and, as PTX, for what comes after.
cuda_kernels = \
	%D%/cuda/cuda_plan.cu %D%/cuda/cuda_dispatch.cu %D%/cuda/cuda_dispatch_with_all.cu %D%/cuda/cuda_combine.cu \
	%D%/cuda/cuda_layout.cu %D%/cuda/cuda_experts.cu %D%/cuda/cuda_cast.cu %D%/cuda/cuda_direct.cu \
	%D%/cuda/cuda_ll_dispatch.cu %D%/cuda/cuda_ll_combine.cu
cuda_headers = \
	%D%/cuda/cuda_args.h %D%/cuda/cuda_kernels.h %D%/cuda/cuda_ll_kernels.h %D%/cuda/cuda_layout.h \
	%D%/cuda/cuda_experts.h %D%/cuda/cuda_words.cuh %D%/cuda/cuda_plan.cuh %D%/cuda/cuda_counts.cuh \
	%D%/cuda/cuda_bulk.cuh %D%/cuda/cuda_copy.cuh %D%/cuda/cuda_elements.cuh %D%/cuda/cuda_sum.cuh \
	%D%/cuda/cuda_move.cuh %D%/cuda/cuda_ll_heaps.cuh %D%/cuda/cuda_ll_push.cuh %D%/cuda/cuda_ll_offers.cuh \
	%D%/cuda/cuda_ll_rows.cuh %D%/cuda/cuda_ll_board.cuh %D%/cuda/cuda_ll_send.cuh %D%/cuda/cuda_ll_receive.cuh \
	%D%/cuda/cuda_cast.cuh %D%/cuda/cuda_outs.cuh %D%/cuda/cuda_reduce.cuh
cuda_mode_sources = %D%/kernels/cast_formats.c %D%/kernels/logfmt.h %D%/kernels/logfmt.c \
	%D%/cuda/cuda_args.h %D%/cuda/cuda_images.h %D%/cuda/cuda_mode.h %D%/cuda/cuda_mode.c \
	%D%/cuda/cuda_layout.h %D%/cuda/cuda_layout.c
cuda_normal_sources = $(cuda_mode_sources) $(normal_shared_sources) \
	%D%/cuda/cuda_kernels.h %D%/cuda/cuda_normal.h %D%/cuda/cuda_normal.c \
	%D%/cuda/cuda_normal_dispatch.c %D%/cuda/cuda_normal_there.c %D%/cuda/cuda_normal_combine.c \
	%D%/cuda/cuda_experts.h %D%/cuda/cuda_experts.c
cuda_ll_sources = $(cuda_mode_sources) $(ll_shared_sources) \
	%D%/cuda/cuda_ll_kernels.h %D%/cuda/cuda_ll.h %D%/cuda/cuda_ll.c %D%/cuda/cuda_ll_turns.c \
	%D%/cuda/cuda_ll_dispatch.c %D%/cuda/cuda_ll_combine.c
cuda_cppflags = $(plugin_cppflags) -I$(srcdir)/%D%/kit -I$(srcdir)/%D%/kernels -I$(srcdir)/%D%/normal \
	-I$(srcdir)/%D%/ll -I$(srcdir)/%D%/cuda
if HAVE_NVCC
pkglib_LTLIBRARIES += xep_normal_cuda.la xep_ll_cuda.la
cuda_normal_images = cuda_plan.fatbin cuda_dispatch.fatbin cuda_dispatch_with_all.fatbin cuda_combine.fatbin \
	cuda_layout.fatbin cuda_experts.fatbin cuda_cast.fatbin cuda_direct.fatbin
cuda_ll_images = cuda_ll_dispatch.fatbin cuda_ll_combine.fatbin cuda_layout.fatbin cuda_direct.fatbin
CLEANFILES += $(cuda_normal_images) $(cuda_ll_images)
cuda_dispatch_with_all.fatbin: $(srcdir)/%D%/cuda/cuda_dispatch.cu
cuda_direct.fatbin: $(srcdir)/%D%/cuda/cuda_captured.cuh $(srcdir)/include/xep/captured.h
%.fatbin: $(srcdir)/%D%/cuda/%.cu $(addprefix $(srcdir)/,$(cuda_headers)) \
		%D%/normal/normal_record.h %D%/ll/ll_notice.h %D%/kernels/floats.h %D%/kernels/cast_formats.h
	$(AM_V_GEN)$(NVCC) -std=c++17 -O3 -gencode 'arch=compute_90,code=[sm_90,compute_90]' $(plugin_cppflags) \
		-I$(srcdir)/%D%/normal -I$(srcdir)/%D%/ll -I$(srcdir)/%D%/kernels -fatbin -o $@ $<
$(xep_normal_cuda_la_OBJECTS): $(cuda_normal_images)
$(xep_ll_cuda_la_OBJECTS): $(cuda_ll_images)
endif
xep_normal_cuda_la_SOURCES = $(cuda_normal_sources) %D%/cuda/cuda_normal_images.c
xep_normal_cuda_la_CPPFLAGS = $(cuda_cppflags) -DXEP_CUDA_IMAGES='"$(abs_builddir)"'
xep_normal_cuda_la_LDFLAGS = $(plugin_ldflags)
xep_normal_cuda_la_LIBADD = libxep_kit_parts.la -lm
xep_ll_cuda_la_SOURCES = $(cuda_ll_sources) %D%/cuda/cuda_ll_images.c
xep_ll_cuda_la_CPPFLAGS = $(cuda_cppflags) -DXEP_CUDA_IMAGES='"$(abs_builddir)"'
xep_ll_cuda_la_LDFLAGS = $(plugin_ldflags)
xep_ll_cuda_la_LIBADD = libxep_kit_parts.la -lm
EXTRA_DIST += $(cuda_headers) $(cuda_kernels) %D%/cuda/cuda_captured.cuh \
	test/bench/cuda_world.cuh test/bench/cuda_world.cu test/bench/cuda_kernels.cu test/bench/cuda_puts.cu \
	contrib/check-cuda.sh
