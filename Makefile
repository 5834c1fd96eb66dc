# outbox: a PGXS extension.
#
#   make, make install, make installcheck   against the PostgreSQL of PG_CONFIG
#   make demo, check, check-all, bench      need nothing prepared: each sets up a private server
#   make lint, indent                       for contributors

OWN_GOALS = demo check check-all bench lint indent reference

ifneq ($(filter $(OWN_GOALS),$(MAKECMDGOALS)),)

# Shell scripts that install what is missing and build in a folder of their own;
# PGXS, which may not be there yet, is not asked.
.PHONY: $(OWN_GOALS)

demo:
	@examples/demo/run

# TESTS='regress/publish tap/crash_*' runs only these
check:
	@test/tools/check $(TESTS)

# TARGETS='17 assert' runs only these
check-all:
	@test/tools/matrix $(TARGETS)

# BENCH=--quick: only see that everything runs; BENCH=publish: only this one
bench:
	@bench/run $(BENCH)

# doc/reference.md, from the comments in the database
reference:
	@test/tools/reference

lint:
	@test/tools/lint --all

indent:
	@test/tools/indent

else

EXTENSION = outbox
EXTVERSION := $(shell sed -n "s/^default_version = '\(.*\)'/\1/p" outbox.control)

MODULE_big = outbox
OBJS = $(patsubst %.c,%.o,$(sort $(wildcard src/*.c)))
CHAPTERS = $(sort $(wildcard src/schema/*.sql))
DATA_built = outbox--$(EXTVERSION).sql
DATA = $(filter-out $(DATA_built),$(wildcard outbox--*--*.sql))
PGFILEDESC = "outbox - transactional outbox"

# installcheck: a running server that has outbox in shared_preload_libraries,
# set as in test/postgresql.conf
REGRESS = $(sort $(patsubst sql/%.sql,%,$(wildcard sql/*.sql)))
ISOLATION = $(sort $(patsubst test/isolation/specs/%.spec,%,$(wildcard test/isolation/specs/*.spec)))
ISOLATION_OPTS = --inputdir=test/isolation
EXTRA_CLEAN = outbox--$(EXTVERSION).sql

PG_CPPFLAGS = -Isrc -DOUTBOX_VERSION='"$(EXTVERSION)"'
PG_CFLAGS = -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers

# no bitcode: inlining our functions into compiled expressions gains nothing
override with_llvm = no

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
ifeq ($(PGXS),)
$(error $(PG_CONFIG) does not run: install postgresql-server-dev-15, or name one with PG_CONFIG=)
endif
ifeq ($(wildcard $(shell $(PG_CONFIG) --includedir-server)/postgres.h),)
$(error $(PG_CONFIG) has no headers of the server: install postgresql-server-dev-15, or the one of its version)
endif
include $(PGXS)

outbox--$(EXTVERSION).sql: $(CHAPTERS) outbox.control
	cat $(CHAPTERS) > $@

$(OBJS): $(wildcard src/*.h) Makefile outbox.control

endif
