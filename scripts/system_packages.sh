#!/usr/bin/env bash
# Bring in what pip cannot: bubblewrap (the box), gcc and make (some tasks use them, and the native
# box is built with gcc), and, when named, chromium (the test of the report).
# Usage: scripts/system_packages.sh [chromium]
set -euo pipefail

missing=()
need() { command -v "$1" >/dev/null || missing+=("$2"); }
need bwrap bubblewrap
need gcc gcc
need make make
[ -e /usr/include/stdio.h ] || missing+=(libc6-dev)
for extra in "$@"; do need "$extra" "$extra"; done
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
else
    echo "Please install these system packages (on Debian: apt-get install ${missing[*]})" >&2
fi
if ! command -v bwrap >/dev/null; then
    echo "bubblewrap is missing, and no task runs without a box: install it and try again." >&2
    exit 1
fi
