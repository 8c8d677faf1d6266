# SPDX-License-Identifier: BSD-3-Clause
# The Python package, for use from the build tree.

# xep._ext, for use from the build tree. That it cannot be compiled is no error of the build: importing xep says so.
ext_sources = %D%/setup.py $(xepinclude_HEADERS) \
	%D%/ext/ext_args.c %D%/ext/ext_args.h %D%/ext/ext_arrays.c %D%/ext/ext_arrays.h %D%/ext/ext_buffer.c \
	%D%/ext/ext_buffer.h %D%/ext/ext_combine.c %D%/ext/ext_combine.h %D%/ext/ext_device.c \
	%D%/ext/ext_dispatch.c %D%/ext/ext_dlpack.h %D%/ext/ext_elements.c %D%/ext/ext_elements.h \
	%D%/ext/ext_end.c %D%/ext/ext_expand.c %D%/ext/ext_experts.c %D%/ext/ext_experts.h %D%/ext/ext_failed.c \
	%D%/ext/ext_failed.h %D%/ext/ext_group.c %D%/ext/ext_group.h %D%/ext/ext_grow.c %D%/ext/ext_handle.c \
	%D%/ext/ext_handle.h %D%/ext/ext_in_place.c %D%/ext/ext_layout.c %D%/ext/ext_library.c \
	%D%/ext/ext_library.h %D%/ext/ext_module.c %D%/ext/ext_module.h %D%/ext/ext_params.c \
	%D%/ext/ext_params.h %D%/ext/ext_park.c %D%/ext/ext_pieces.c %D%/ext/ext_plan.c %D%/ext/ext_python.c \
	%D%/ext/ext_python.h %D%/ext/ext_received.c %D%/ext/ext_received.h %D%/ext/ext_recent.c \
	%D%/ext/ext_recent.h %D%/ext/ext_request.c %D%/ext/ext_request.h %D%/ext/ext_rows.c %D%/ext/ext_serve.c \
	%D%/ext/ext_show.c %D%/ext/ext_signals.c %D%/ext/ext_slots.c %D%/ext/ext_slots.h %D%/ext/ext_stream.c \
	%D%/ext/ext_sums.c %D%/ext/ext_tensor.c %D%/ext/ext_view.c %D%/ext/ext_weights.c
%D%/ext.stamp: $(ext_sources)
	$(AM_V_at)$(MKDIR_P) %D%
	$(AM_V_GEN)cd '$(srcdir)/%D%' && $(PYTHON) setup.py -q build_ext --build-lib '$(abs_builddir)/%D%' \
		--build-temp '$(abs_builddir)/%D%/temp' >'$(abs_builddir)/%D%/build.log' 2>&1 || \
		echo 'the Python package has no compiled module: %D%/build.log says why' >&2
	$(AM_V_at)touch $@
if HAVE_PYTHON
python_module = %D%/ext.stamp
endif
clean-local:
	rm -rf %D%/ext.stamp %D%/build.log %D%/temp %D%/pycache %D%/xep/_ext.*so

# the Python packages: what has a name of theirs, not what running them left
dist-hook:
	cd '$(srcdir)' && find %D% -type f \( -name '*.py' -o -name '*.pyi' -o -name '*.[ch]' -o -name '*.toml' \
		-o -name '*.md' -o -name py.typed -o -name run-tests \) | \
		tar cf - -T - | (cd '$(abs_builddir)' && cd '$(distdir)' && tar xf -)
