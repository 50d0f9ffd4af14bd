#!/bin/sh
# Make a private virtual environment, or bring it up to date: venv.sh FOLDER [EXTRA]
# Uses uv where there is one. PYTHON chooses the interpreter (3.11 or later): an environment of another version is made
# anew, and without PYTHON the one that is there is kept. Says one line, and more only when it fails.
set -eu

venv=$1
extra=${2:+"[$2]"}

fits() { # Run it: a name on the PATH may be a shim that does not work.
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

stop() {
    echo "$1" >&2
    exit 1
}

version() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

is_wanted() {
    fits "$venv/bin/python" || return 1
    [ -z "${PYTHON:-}" ] || [ "$(version "$PYTHON")" = "$(version "$venv/bin/python")" ]
}

choose() {
    if [ -n "${PYTHON:-}" ]; then
        echo "$PYTHON"
        return
    fi
    for name in python3.13 python3.12 python3.11 python3; do
        if fits "$name"; then
            echo "$name"
            return
        fi
    done
    stop "No Python 3.11 or later was found. Install one, or name it: make PYTHON=/path/to/python3.12 ..."
}

if [ -n "${PYTHON:-}" ]; then
    fits "$PYTHON" || stop "PYTHON=$PYTHON does not run, or is older than Python 3.11."
fi

if ! is_wanted; then
    python=$(choose)
    echo "Making $venv with $("$python" --version) (once; downloads take a minute) ..."
    if command -v uv >/dev/null 2>&1; then
        uv venv --quiet --clear --python "$python" "$venv"
    elif "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        "$python" -m venv --clear "$venv"
    else
        stop "$python cannot make virtual environments: install the package python3-venv, or uv."
    fi
else
    echo "Updating $venv ..."
fi

if command -v uv >/dev/null 2>&1; then
    VIRTUAL_ENV=$venv uv pip install --quiet --constraints constraints.txt --editable ".$extra"
else
    PIP_DISABLE_PIP_VERSION_CHECK=1 "$venv/bin/python" -m pip install -qq --constraint constraints.txt --editable ".$extra"
fi
