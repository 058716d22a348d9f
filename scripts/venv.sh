#!/usr/bin/env bash
# Make .venv and install this package with the extras named in $1. Usage: scripts/venv.sh dev,bench
set -euo pipefail
cd "$(dirname "$0")/.."
extras=${1:?usage: scripts/venv.sh EXTRA[,EXTRA]}

good() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

if [ ! -x .venv/bin/python ]; then
    python=
    for name in python3.11 python3.12 python3.13 python3; do
        if good "$name"; then python=$name && break; fi
    done
    if [ -z "$python" ]; then
        echo "Python 3.11 or newer with its venv module is needed and was not found." \
            "Install python3.11 (on Debian: python3 and python3-venv) and run make again." >&2
        exit 1
    fi
    "$python" -m venv .venv
fi

# Without an NVIDIA card one tested torch release is enough; with one, pip picks the build.
torch=
if ! nvidia-smi -L >/dev/null 2>&1; then torch=torch==2.13.0; fi
.venv/bin/python -m pip install --quiet --disable-pip-version-check \
    --editable ".[$extras]" ${torch:+"$torch"}
