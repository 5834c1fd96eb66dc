# shellcheck shell=bash
# lib.sh - sourced by the scripts beside it: a private PostgreSQL to build, test and show outbox with.
#
# Nothing of the project is installed into the machine, and no installed cluster
# is touched.  PostgreSQL finds its libraries and its share folder from where its
# binaries lie; so work_tree() lays out a copy of the installed PostgreSQL (binaries
# copied, everything else links) in a folder of our own, and `make install` goes
# there.  Clusters live in the same folder, listen on a unix socket in it only, and run as
# an ordinary user.  Whatever is still at work in the folder is ended when the script ends, and
# the folder goes.
#
#   TOP       the checkout            WORK   the private folder
#   RUN_USER  who builds and serves   PGBIN  the private binaries
#   PORT      of the server
#
# Environment, all optional: PG_CONFIG (of the PostgreSQL to use), TMPDIR,
# OUTBOX_KEEP=1 (leave the folder for a look).

set -euo pipefail
umask 022

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
WORK=
PORT=5432

say() { printf '%s\n' "$*"; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 2; }

# ------------------------------------------------------------ which PostgreSQL

# PG_CONFIG from the environment, else Debian's 15, else the one in PATH.
find_pg_config() {
    local candidate
    for candidate in "${PG_CONFIG:-}" /usr/lib/postgresql/15/bin/pg_config "$(command -v pg_config || true)"; do
        [[ -n $candidate && -x $candidate ]] || continue
        [[ -x $("$candidate" --bindir)/postgres || -n ${PG_CONFIG:-} ]] || continue
        printf '%s\n' "$candidate"
        return
    done
    printf '%s\n' "${PG_CONFIG:-/usr/lib/postgresql/15/bin/pg_config}"
}

# An ordinary user: ourselves, or when we are root, postgres, or else nobody.
find_user() {
    if [[ $(id -u) != 0 ]]; then
        id -un
    elif id -u postgres >/dev/null 2>&1; then
        echo postgres
    else
        echo nobody
    fi
}

# Run a command as that user, in an environment that holds nothing of the caller's.
as_user() {
    local -a drop=()
    if [[ $(id -u) == 0 ]]; then
        drop=(setpriv --reuid="$RUN_USER" --regid="$(id -g "$RUN_USER")" --init-groups --)
    fi
    "${drop[@]}" env -i LANG=C.UTF-8 HOME="$WORK" TMPDIR="$WORK/tmp" USER="$RUN_USER" LOGNAME="$RUN_USER" \
        PATH="${PGBIN:+$PGBIN:}/usr/local/bin:/usr/bin:/bin" PGHOST="$WORK/socket" PGPORT="$PORT" PGUSER=postgres PGDATABASE=postgres \
        "$@"
}

# ------------------------------------------------------------ packages that are not to be installed

# A package from apt, into the current folder; from lists of our own when the machine's do not do.
fetch_package() {
    local -a own=(-o Dir::State::Lists="$PWD/lists" -o Dir::Cache="$PWD/cache" -o Debug::NoLocking=1 -o APT::Sandbox::User="$(id -un)")
    apt-get -o APT::Sandbox::User="$(id -un)" download "$1" && return
    mkdir -p lists/partial cache/archives/partial
    apt-get "${own[@]}" update && apt-get "${own[@]}" download "$1"
}

# Libraries that a package file asks for, and that are not installed.
missing_libraries() {
    local name
    for name in $(dpkg-deb -f "$1" Depends | tr ',' '\n' | sed -nE 's/^ *(lib[^ |(:]*).*/\1/p'); do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null || true) == installed ]] || printf '%s\n' "$name"
    done
}

# unpack_package FOLDER PACKAGE: its files and the libraries they need, below FOLDER: no service starts, nobody has to
# be root. What has been unpacked before stays.
unpack_package() {
    local folder=$1 package=$2 file library
    [[ ! -e $folder/$package.done ]] || return 0
    say "fetching: $package"
    rm -rf "$folder/$package.deb"
    mkdir -p "$folder/$package.deb"
    if ! (cd "$folder/$package.deb" && fetch_package "$package") >"$folder/download.log" 2>&1; then
        tail -n 20 "$folder/download.log"
        say "apt-get could not download $package"
        return 1
    fi
    file=$(echo "$folder/$package.deb"/*.deb)
    dpkg -x "$file" "$folder"
    for library in $(missing_libraries "$file"); do
        unpack_package "$folder" "$library" || return 1
    done
    rm -rf "$folder/$package.deb"
    chmod -R a+rX "$folder"
    : > "$folder/$package.done"
}

# ------------------------------------------------------------ the private folder

# work_folder NAME: make it, and see that it goes with this script.
work_folder() {
    RUN_USER=$(find_user)
    WORK=$(mktemp -d "${TMPDIR:-/tmp}/outbox-$1.XXXXXX")
    trap leave EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    mkdir "$WORK/tmp" "$WORK/socket" "$WORK/log"
    chmod 755 "$WORK"
    [[ $(id -u) != 0 ]] || chown -R "$RUN_USER:" "$WORK"
    # the user may have no way into the folder that we were called from
    cd "$WORK"
}

# Processes whose working folder is in ours are ours: servers, their backends, clients.
own_processes() {
    local entry folder
    for entry in /proc/[0-9]*; do
        folder=$(readlink "$entry/cwd" 2>/dev/null) || continue
        [[ $folder != "$WORK"/* ]] || printf '%s\n' "${entry#/proc/}"
    done
}

# Ask them to end at once, then insist.
end_own_processes() {
    local signal pid tries
    for signal in QUIT KILL; do
        for pid in $(own_processes); do
            kill -s "$signal" "$pid" 2>/dev/null || true
        done
        for ((tries = 0; tries < 50; tries++)); do
            [[ -n $(own_processes) ]] || return 0
            sleep 0.1
        done
    done
}

leave() {
    local status=$?
    trap - EXIT
    trap '' INT TERM HUP
    [[ -n $WORK && -d $WORK ]] || exit $status
    cd /
    end_own_processes
    if [[ -n ${OUTBOX_KEEP:-} ]]; then
        say "left for a look: $WORK"
    else
        rm -rf "$WORK"
    fi
    exit $status
}

# ------------------------------------------------------------ PostgreSQL in it

# The longest folder that holds all of the given ones.
common_folder() {
    local common=$1 path
    for path; do
        while [[ $path/ != "${common%/}"/* ]]; do
            common=$(dirname "$common")
        done
    done
    printf '%s\n' "${common%/}"
}

# Lay out the private PostgreSQL; sets PGBIN, PGPRIVATE (its pg_config) and PGXS_DIR.
work_tree() {
    local config=$1 root name path
    local -A place=()
    for name in bindir pkglibdir sharedir includedir-server libdir; do
        place[$name]=$(realpath "$("$config" "--$name")")
    done
    root=$(common_folder "${place[@]}")
    for name in pkglibdir sharedir bindir; do
        path=$WORK/pg${place[$name]#"$root"}
        mkdir -p "$(dirname "$path")"
        [[ ! -d $path ]] || die "cannot lay out the folders of $config"
        if [[ $name == bindir ]]; then
            cp -a "${place[$name]}" "$path"
        else
            cp -rs "${place[$name]}" "$path"
        fi
    done
    for name in includedir-server libdir; do
        path=$WORK/pg${place[$name]#"$root"}
        mkdir -p "$(dirname "$path")"
        [[ -e $path ]] || ln -s "${place[$name]}" "$path"
    done
    [[ $(id -u) != 0 ]] || chown -hR "$RUN_USER:" "$WORK/pg"
    PGBIN=$WORK/pg${place[bindir]#"$root"}
    PGPRIVATE=$PGBIN/pg_config
    [[ $("$PGPRIVATE" --pkglibdir) == "$WORK"/pg/* ]] || die "$config cannot be relocated"
    # shellcheck disable=SC2034
    PGXS_DIR=$(dirname "$("$PGPRIVATE" --pgxs)")/../..
}

# A copy of the checkout, without what a build or a test has left in it.
work_source() {
    mkdir "$WORK/src"
    tar -C "$TOP" --exclude=./.git --exclude=./.build --exclude='*.o' --exclude='*.so' --exclude='*.bc' \
        --exclude='./outbox--*.sql' --exclude=./results --exclude=./output_iso --exclude=./tmp_check \
        -cf - . | tar -C "$WORK/src" --no-same-owner -xf -
    [[ $(id -u) != 0 ]] || chown -R "$RUN_USER:" "$WORK/src"
}

# What a build depends on, as one word.
build_key() {
    (
        cd "$WORK/src"
        "$1" --version --configure
        gcc --version | sed -n 1p
        find Makefile outbox.control src -type f | LC_ALL=C sort | xargs sha256sum
    ) | sha256sum | cut -c 1-20
}

# Build without warnings and install into the private tree.  The objects of the
# last builds are kept in .build, by all that went into them.
work_build() {
    local config=$1 key store
    key=$(build_key "$config")
    store=$TOP/.build/$key.tar
    if [[ -r $store ]]; then
        as_user tar -C "$WORK/src" -xmf - < "$store"
    fi
    if ! as_user make -C "$WORK/src" -s -j "$(nproc)" PG_CONFIG="$PGPRIVATE" COPT=-Werror >"$WORK/log/build" 2>&1 </dev/null ||
        ! as_user make -C "$WORK/src" -s install PG_CONFIG="$PGPRIVATE" COPT=-Werror >>"$WORK/log/build" 2>&1 </dev/null; then
        cat "$WORK/log/build"
        die "the build failed"
    fi
    [[ ! -r $store ]] || return 0
    { mkdir -p "$TOP/.build" && cp /dev/null "$store.$$"; } 2>/dev/null || return 0
    (cd "$WORK/src" && tar -cf "$store.$$" --owner=0 --group=0 src/*.o outbox.so outbox--*.sql)
    mv "$store.$$" "$store"
    # shellcheck disable=SC2012
    ls -t "$TOP"/.build/*.tar | tail -n +9 | xargs -r rm -f
}

# All of it: packages, folder, PostgreSQL, extension.  work_setup NAME GROUP...
work_setup() {
    local name=$1 config
    shift
    "$TOP/test/tools/setup" "$@"
    config=$(find_pg_config)
    work_folder "$name"
    work_tree "$config"
    work_source
    work_build "$config"
}

# work_old_server CONFIG: in a folder of its own, another PostgreSQL with outbox, for pg_upgrade to
# come from; sets OLD_PGBIN.
work_old_server() {
    local work=$WORK
    # shellcheck disable=SC2034  # check hands it to the tests
    OLD_PGBIN=$(
        WORK=$work/old
        mkdir "$WORK" "$WORK/tmp" "$WORK/log"
        [[ $(id -u) != 0 ]] || chown -R "$RUN_USER:" "$WORK"
        work_tree "$1"
        work_source
        work_build "$1" >&2
        printf '%s\n' "$PGBIN"
    )
}

# ------------------------------------------------------------ a cluster in it

# cluster_init FILE...: initdb, with these files appended to postgresql.conf.
cluster_init() {
    as_user "$PGBIN/initdb" -D "$WORK/data" -U postgres -A trust -N -E UTF8 --locale=C.UTF-8 >"$WORK/log/initdb" 2>&1 ||
        { cat "$WORK/log/initdb"; die "initdb failed"; }
    {
        printf '%s\n' "listen_addresses = ''" "unix_socket_directories = '$WORK/socket'" \
            "cluster_name = '$(basename "$WORK")'" "log_line_prefix = '%m [%p] %q%a '"
        (($# == 0)) || cat "$@"
    } >> "$WORK/data/postgresql.conf"
}

cluster_start() {
    as_user "$PGBIN/pg_ctl" -w -s -t 120 -D "$WORK/data" -l "$WORK/log/server" start </dev/null >"$WORK/log/pg_ctl" 2>&1 ||
        { cat "$WORK/log/pg_ctl"; tail -n 30 "$WORK/log/server"; die "the server does not start"; }
}

cluster_stop() {
    as_user "$PGBIN/pg_ctl" -w -s -t 120 -D "$WORK/data" -m "${1:-fast}" stop </dev/null
}

# SIGKILL to the server and each of its processes, by their ids; returns when all are gone.
cluster_kill() {
    local postmaster pid
    local -a pids=()
    postmaster=$(head -n 1 "$WORK/data/postmaster.pid")
    mapfile -t pids < <(for pid in $(own_processes); do
        [[ $(readlink "/proc/$pid/cwd") != "$WORK/data" ]] || echo "$pid"
    done)
    kill -s KILL "$postmaster" "${pids[@]}" 2>/dev/null || true
    while for pid in "${pids[@]}"; do
        [[ ! -e /proc/$pid ]] || break
    done && [[ -e /proc/$pid ]]; do
        sleep 0.05
    done
}

# a port of this machine's that nobody listens on
free_port() {
    perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1")->sockport'
}

# psql with nothing of the user's own
sql() {
    as_user "$PGBIN/psql" -X -q -v ON_ERROR_STOP=1 "$@"
}

# one value
value() {
    sql -A -t -c "$1" </dev/null
}

# until_true SECONDS SQL: wait for the query to give t
until_true() {
    local deadline=$((SECONDS + $1))
    until [[ $(value "$2") == t ]]; do
        ((SECONDS < deadline)) || { say "waited $1 s in vain for: $2"; return 1; }
        sleep 0.1
    done
}
