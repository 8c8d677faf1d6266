# SPDX-License-Identifier: BSD-3-Clause
# The documents, and what makes a site and manual pages of them.

EXTRA_DIST += %D%/conf.py %D%/index.md %D%/images/load.png %D%/images/sweep.svg \
	%D%/explanation/agreement.md %D%/explanation/limits.md %D%/explanation/paths.md %D%/explanation/security.md \
	%D%/explanation/sums.md \
	%D%/howto/deepep.md %D%/howto/devices.md %D%/howto/errors.md %D%/howto/experts.md %D%/howto/failures.md \
	%D%/howto/frameworks.md %D%/howto/launching.md %D%/howto/low-latency.md %D%/howto/measuring.md %D%/howto/memory.md \
	%D%/howto/modes.md %D%/howto/nodes.md %D%/howto/programming.md %D%/howto/python.md %D%/howto/tuning.md \
	%D%/reference/c-api.md %D%/reference/configuration.md %D%/reference/formats.md %D%/reference/python-api.md \
	%D%/reference/tools.md \
	%D%/results/checked-input.md %D%/results/device-memory.md %D%/results/network-paths.md %D%/results/protocol-models.md \
	%D%/results/memory-orders.md \
	%D%/results/quantized-combines.md %D%/results/recovery.md %D%/results/shared-memory.md \
	%D%/tutorial/first-program.md %D%/tutorial/moe-layer.md

# Section 3 of the manual, from the headers that programs include. Pages are made in the build tree, as their names are
# those of what the headers declare.
api_headers = include/xep/xep.h include/xep/elastic.h include/xep/cuda.h include/xep/pieces.h include/xep/inspect.h \
	include/xep/experts.h include/xep/serve.h include/xep/dtype.h include/xep/status.h
man3_script = contrib/man3.awk
man3dir = $(mandir)/man3
EXTRA_DIST += $(man3_script)
%D%/man3.stamp: $(api_headers) $(man3_script)
	$(AM_V_at)rm -rf %D%/man3 && $(MKDIR_P) %D%/man3
	$(AM_V_GEN)(cd '$(srcdir)' && $(AWK) -v out='$(abs_builddir)/%D%/man3' -f $(man3_script) $(api_headers))
	$(AM_V_at)touch $@
install-data-local: %D%/man3.stamp
	$(MKDIR_P) '$(DESTDIR)$(man3dir)'
	$(INSTALL_DATA) %D%/man3/*.3 '$(DESTDIR)$(man3dir)'
uninstall-local: %D%/man3.stamp
	cd %D%/man3 && for page in *.3; do rm -f "$(DESTDIR)$(man3dir)/$$page"; done
mostlyclean-local:
	rm -rf %D%/man3 %D%/man3.stamp
