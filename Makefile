# SPDX-License-Identifier: MIT
#
# The front door. Needs make and bash; a target asks before it installs what else it needs (Debian 12:
# tools/setup; YES=1 or CI is a yes).
# The build itself is meson's: see meson.build, meson_options.txt and tools/configure.
.PHONY: all demo tour bench test test-long lint format deb install clean help

all:
	@tools/setup build
	@tools/configure default
	ninja -C build/default

demo: all
	@build/default/src/cli/semel demo

tour:
	@tools/setup build tour
	@tools/configure default
	ninja -C build/default

bench: all
	@bench/run

test:
	@tools/setup build test
	@tools/test

test-long:
	@tools/setup build test long
	@tools/test long

lint:
	@tools/setup build test
	@tools/configure clang
	@tools/lint/run

format:
	@tools/setup test
	@tools/lint/external.py format --fix

deb:
	@tools/setup build deb
	@tools/deb

install:
	@tools/configure default
	ninja -C build/default
	meson install -C build/default --no-rebuild

clean:
	rm -rf build

help:
	@echo 'make            build what a user needs, in build/default'
	@echo 'make demo       a storm of duplicates, crashes and poison messages, whose books balance'
	@echo 'make tour       build, and install what the tour of README.md needs'
	@echo 'make bench      every benchmark on stores of its own; tables, and build/bench/NAME.json'
	@echo 'make test       every test and lint; the last line is the sum'
	@echo 'make test-long  the same, with the long versions of the tests'
	@echo 'make lint       the checks of tools/lint only'
	@echo 'make format     clang-format over the C files'
	@echo 'make deb        Debian packages, in build/deb'
	@echo 'make install    install program, library, extension, headers and manual (DESTDIR is honoured)'
	@echo 'make clean      remove build/'
