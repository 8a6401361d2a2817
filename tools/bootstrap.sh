#!/bin/sh
# Make the project's virtual environment from the hashed lock file. Called by make; safe to repeat.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'groundwork: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

usable() { # a Python that is new enough and able to make virtual environments
    "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null
}

find_python() {
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
        if usable "$candidate"; then echo "$candidate"; return; fi
    done
    return 1
}

python=$(find_python) || {
    command -v apt-get >/dev/null || die "needs Python 3.11 or newer with the venv module; install it, or set PYTHON=/path/to/python3.11"
    as_root=
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || die "needs the package python3-venv, and root rights or sudo to install it"
        as_root=sudo
    fi
    say "installing the system package python3-venv (needs root rights)"
    $as_root apt-get update -qq
    $as_root apt-get install -y -qq --no-install-recommends python3-venv
    python=$(find_python) || die "this system's Python is older than 3.11; install a newer one, or set PYTHON=/path/to/python3.11"
}

say "making .venv with $("$python" --version) from requirements.lock (about half a minute)"
rm -f .venv/.complete
"$python" -m venv --clear .venv
.venv/bin/pip install --quiet --quiet --disable-pip-version-check --no-compile --require-hashes --requirement requirements.lock
# Compiled once here, since each start of ansible and molecule would else compile again where PYTHONDONTWRITEBYTECODE is
# set. Of the bundle's 90 collections only those in requirements.yml are used.
packages=$(.venv/bin/python -c 'import site; print(site.getsitepackages()[0])')
.venv/bin/python -m compileall -qq -j 2 -x /ansible_collections/ "$packages"
sed -n 's/^ *- name: \([a-z_]*\)\.\([a-z_]*\)$/\1\/\2/p' requirements.yml | while read -r collection; do
    .venv/bin/python -m compileall -qq -j 2 "$packages/ansible_collections/$collection"
done
touch .venv/.complete
