# Sourced by the scripts beside it, not run.
# shellcheck shell=bash

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${POSTDATE_CACHE:-$ROOT/.cache}
# Where the caller is: paths among the arguments are meant from there.
CALLED_FROM=$PWD
cd "$ROOT"

# say TEXT: a line about what happens now, on stderr, with the seconds since the start.
say() { printf '[%4ds] %s\n' "$SECONDS" "$*" >&2; }

# path_of PATH: the absolute form of a path among the arguments.
path_of() { (cd "$CALLED_FROM" && realpath --canonicalize-missing -- "$1"); }

# die TEXT: ends the script.
die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# usage TEXT "$@": prints TEXT and ends for -h or --help.
usage() {
    local text=$1 arg
    shift
    for arg in "$@"; do
        case $arg in -h | --help)
            printf '%s\n' "$text"
            exit 0
            ;;
        esac
    done
}

# quietly TEXT COMMAND...: says TEXT, runs COMMAND, shows its output only if it fails.
quietly() {
    local log status=0
    say "$1"
    shift
    log=$(mktemp)
    "$@" >"$log" 2>&1 </dev/null || status=$?
    if ((status)); then
        tail -n 40 "$log" >&2
    fi
    rm -f "$log"
    return "$status"
}

# not_tested TEXT: says what is not tested here, and notes it for the end of scripts/test.
not_tested() {
    say "NOT TESTED: $1"
    if [[ -n ${POSTDATE_TEST_NOT_TESTED:-} ]]; then
        printf '%s\n' "$1" >>"$POSTDATE_TEST_NOT_TESTED"
    fi
}

have() { command -v "$1" >/dev/null 2>&1; }

# use_pinned_rust: where rustup has the version of rust-toolchain.toml as its default alone, `stable` say, takes that one.
# rustup would fetch the version once more under its own name, or fail without a network.
use_pinned_rust() {
    local pinned default
    # The archive of a release has this file, and no Rust to choose.
    if [[ -n ${RUSTUP_TOOLCHAIN:-} || ! -e $ROOT/rust-toolchain.toml ]] || ! have rustup; then return; fi
    pinned=$(sed -n 's/^channel = "\(.*\)"$/\1/p' "$ROOT/rust-toolchain.toml")
    if rustup toolchain list 2>/dev/null | grep "^$pinned-" >/dev/null; then return; fi
    default=$(rustup default 2>/dev/null | sed -n '1s/ .*//p') || return 0
    if [[ -n $default && $(rustup run "$default" rustc --version 2>/dev/null) == "rustc $pinned "* ]]; then
        export RUSTUP_TOOLCHAIN=$default
    fi
}
use_pinned_rust

# install_commands NAME...: from Debian's packages of these names, those that are no command here.
install_commands() {
    local name missing=() as_root=()
    for name in "$@"; do have "$name" || missing+=("$name"); done
    ((${#missing[@]})) || return 0
    have apt-get || die "missing here: ${missing[*]}; please install them"
    ((EUID == 0)) || as_root=(sudo)
    # shellcheck disable=SC2016
    quietly "installing ${missing[*]}" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive sh -c \
        'apt-get -q update && apt-get -q install --yes --no-install-recommends "$@"' sh "${missing[@]}"
}

# have_go: Go from 1.21 on, which fetches by itself the later one that a module asks for.
have_go() { have go && printf 'go1.21\n%s\n' "$(go env GOVERSION)" | sort -CV; }
