# The first two targets are all the set-up there is: on a fresh Debian 12 with root and a Rust
# toolchain, each installs what it needs.

CARGO ?= cargo
OUT ?= target/demo
# Where cargo puts what it builds.
TARGET = $(or $(CARGO_TARGET_DIR),target)
BENCH ?=

.PHONY: demo check generated test system-test audit bench build install install-built uninstall deb archive image first-hour clean site kernel kernel-deb kernel-test wheel chart

# What less DRAM costs Redis in time, and what Linux and two policies get back: one table, one
# sentence, one report. On a virtual machine whose clock knows the memory.
demo:
	tools/setup demo
	$(CARGO) build --release --locked --package terrace --package terrace-workloads \
	    --package terrace-recorder-plugin
	$(TARGET)/release/terrace compare examples/demo.toml --machine vm --rivals nothing,linux \
	    --policies amp,terrace --out $(OUT) --force

# Every test there is, the ones in the virtual machine included.
test:
	tools/setup test
	tools/test

# Format, lint and the tests of the libraries: what to run before a commit.
check:
	tools/setup test
	tools/test fast

# Pages of docs and lists that are made from the code: after a policy, a workload or a key was added.
generated:
	TERRACE_GENERATE=1 $(CARGO) test --quiet --package terrace --bin terrace pages_of_keys

# The package under the systemd of Debian 12 and of Debian 13, and the image and the Kubernetes
# manifests under podman, each in a virtual machine with Debian's own userland: some 15 minutes each
# under software emulation, and root, for the disks. The static programs where there is nothing else.
# QEMU 10 has a thread for each processor, which is faster.
SYSTEM_TEST ?= --qemu 10
system-test:
	tools/setup system
	$(CARGO) build --release --locked --workspace --exclude terrace-python
	tools/systemd-guest --suite bookworm --binaries $(TARGET)/release $(SYSTEM_TEST)
	tools/systemd-guest --suite trixie --binaries $(TARGET)/release $(SYSTEM_TEST)
	tools/archive --out $(TARGET)/archive
	tools/empty-root $(TARGET)/archive
	tools/pod-guest --archive $(TARGET)/archive $(SYSTEM_TEST)

# The hour of a newcomer on fresh Debian 12 and 13: what the README says, every command with its
# time. Needs root, for the userlands, and the network; each builds the programs from nothing.
first-hour:
	tools/setup system
	tools/first-hour --suite bookworm
	tools/first-hour --suite trixie

# Known faults, licences, bans and sources of all dependencies, by cargo-deny; needs the network.
# 'make test' checks licences and the oldest compiler without it.
audit:
	tools/audit

# Figures of speed and memory, one JSON object a line, in target/bench.json;
# one part of them with BENCH=policy.
bench:
	$(CARGO) build --release --locked --package terrace --package terrace-workloads \
	    --package terrace-recorder-plugin
	$(CARGO) run --release --locked --package terrace-bench -- $(BENCH)

# The documents as a site, in target/site.
site:
	tools/setup site
	tools/site

# The Terrace kernel for virtual machines, built once for the same series; says where its image is,
# for 'terrace lab --kernel'. KERNEL=7.3: of that series of kernels.
kernel:
	tools/setup kernel
	kernel/build $(if $(KERNEL),--kernel $(KERNEL)) image

# Packages of a kernel with Debian's own configuration and the series, for real machines.
kernel-deb:
	tools/setup kernel
	kernel/build deb

# The kernel's tests, in the virtual machine.
kernel-test: kernel
	kernel/test $(if $(KERNEL),--kernel $(KERNEL))

# The programs, and the plug-in of 'terrace record', which looks for it beside itself. 'make wheel'
# has the Python package.
build:
	$(CARGO) build --release --locked --workspace --exclude terrace-python

# Programs, the recorder's plug-in (in lib/terrace, where bin/terrace looks for it), man pages, shell
# completions, the systemd unit, examples and Grafana's dashboard, under PREFIX; a configuration that
# moves nothing in SYSCONFDIR, unless there is one. 'make uninstall' takes away all but that. As root
# afterwards: 'systemctl daemon-reload'.
PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
BINARIES ?= $(TARGET)/release
install: build install-built

# The same with programs that are built already, in BINARIES.
install-built:
	install -D -m 755 $(BINARIES)/terrace $(DESTDIR)$(PREFIX)/bin/terrace
	install -D -m 755 $(BINARIES)/terraced $(DESTDIR)$(PREFIX)/sbin/terraced
	install -D -m 755 $(BINARIES)/terrace-workload $(DESTDIR)$(PREFIX)/bin/terrace-workload
	install -D -m 755 $(BINARIES)/libterrace_recorder_plugin.so \
	    $(DESTDIR)$(PREFIX)/lib/terrace/libterrace_recorder_plugin.so
	$(BINARIES)/terrace man --out $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(DESTDIR)$(PREFIX)/share/man/man8
	mv $(DESTDIR)$(PREFIX)/share/man/man1/terraced.8 $(DESTDIR)$(PREFIX)/share/man/man8/
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	$(BINARIES)/terrace completions bash \
	    > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/terrace
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	sed -e 's|/usr/bin/terraced|$(PREFIX)/sbin/terraced|; s|/usr/bin/terrace|$(PREFIX)/bin/terrace|' \
	    -e 's|/etc/terrace/|$(SYSCONFDIR)/terrace/|' \
	    -e 's|/usr/share/doc/terrace/|$(PREFIX)/share/doc/terrace/|' \
	    packaging/systemd/terraced.service >$(DESTDIR)$(PREFIX)/lib/systemd/system/terraced.service
	install -D -m 644 docs/operator.md $(DESTDIR)$(PREFIX)/share/doc/terrace/operator.md
	install -D -m 644 packaging/systemd/policies-of-ones-own.conf \
	    $(DESTDIR)$(PREFIX)/share/doc/terrace/examples/policies-of-ones-own.conf
	cp -R examples/. packaging/grafana/terrace.json $(DESTDIR)$(PREFIX)/share/doc/terrace/examples/
	chmod -R u+rwX,go+rX,go-w $(DESTDIR)$(PREFIX)/share/doc/terrace/examples
	[ -e $(DESTDIR)$(SYSCONFDIR)/terrace/terraced.toml ] || install -D -m 644 \
	    packaging/debian/terraced.toml $(DESTDIR)$(SYSCONFDIR)/terrace/terraced.toml

# What 'make install' put there with the same PREFIX and DESTDIR, but for the configuration. A daemon
# that runs must be stopped first.
uninstall:
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/, bin/terrace sbin/terraced bin/terrace-workload \
	    lib/systemd/system/terraced.service share/bash-completion/completions/terrace \
	    share/man/man8/terraced.8 share/man/man1/terrace.1 share/man/man1/terrace-*.1)
	rm -rf $(DESTDIR)$(PREFIX)/lib/terrace $(DESTDIR)$(PREFIX)/share/doc/terrace

# A Debian package of it all, in target/deb.
deb:
	tools/deb --out target/deb

# Static programs, which need no library of the host, and a tar archive of them with manual pages,
# unit, configuration, examples and notices, in target/archive.
archive:
	tools/setup archive
	tools/archive

# An image of the daemon and the tool, of the archive's programs on Debian: what the Kubernetes
# manifests and the chart name. BASE=packages: on a Debian made of its packages, without a registry.
BASE ?=
image: archive
	tools/setup image
	tools/image $(if $(BASE),--base $(BASE))

# The Helm chart, rendered by Helm's own engine, and the plain manifest, both read strictly with
# Kubernetes' own types. Needs Go 1.24 and its module proxy, which Debian 12 has not.
chart:
	@command -v go >/dev/null || { echo "chart: no 'go' on the PATH; install Go 1.24 or later" >&2; exit 2; }
	cd packaging/helm/check && go run . ../terrace ../../kubernetes/terrace.yaml >/dev/null
	cd packaging/helm/check && echo 'restoreOnly: true' | \
	    go run . ../terrace ../../kubernetes/restore.yaml /dev/stdin >/dev/null
	@echo "the chart renders, and every field is one that Kubernetes knows"

# The Python package as a wheel for Python 3.11 and later, in target/wheels.
wheel:
	tools/setup python
	tools/python wheel

clean:
	$(CARGO) clean
