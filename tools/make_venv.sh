#!/bin/sh
# Creates a virtual environment with one TensorFlow minor version and this package, for development and tests.
#   sh tools/make_venv.sh DIR TF_MINOR
# Uses the first suitable Python on this machine; PYTHON=... selects a different one.
set -eu

venv=$1
tf=$2

say() { printf '%s\n' "$*" >&2; }

pythons=$(sed -n "s/^$tf //p" "$(dirname "$0")/pythons.txt")
if [ -z "$pythons" ]; then
    say "error: TensorFlow $tf is not in tools/pythons.txt"
    exit 2
fi

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true; }

python=
for candidate in ${PYTHON:-} python3 $(for v in $pythons; do echo "python$v"; done); do
    found=$(version_of "$candidate")
    for v in $pythons; do
        if [ "$found" = "$v" ]; then
            python=$candidate
            break 2
        fi
    done
    if [ -n "${PYTHON:-}" ] && [ "$candidate" = "$PYTHON" ]; then
        say "error: PYTHON=$PYTHON is Python ${found:-that cannot be run}"
        say "  found: TensorFlow $tf has wheels for Python $pythons"
        exit 2
    fi
done
if [ -z "$python" ]; then
    say "error: no Python that TensorFlow $tf has wheels for"
    say "  found: python3 is Python $(version_of python3)"
    say "  hint: install one of Python $pythons, or choose another TensorFlow with TF=..."
    exit 2
fi

say "Setting up $venv: TensorFlow $tf, $("$python" --version)"
rm -rf "$venv"
if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
    # Debian and Ubuntu have a part of the standard library (ensurepip) in a separate package.
    rm -rf "$venv"
    package=python$(version_of "$python")-venv
    say "This Python cannot create virtual environments; installing $package"
    sudo=
    [ "$(id -u)" = 0 ] || sudo="sudo -n"
    if ! { $sudo apt-get update -q && $sudo apt-get install -qy --no-install-recommends "$package"; } >&2; then
        say "error: $package could not be installed"
        say "  hint: apt-get install $package, then make again"
        exit 2
    fi
    "$python" -m venv "$venv"
fi

log=$venv/install.log
extra=tf$(echo "$tf" | tr . -)
say "Installing (some 2 GB with TensorFlow; log in $log)"
# packages.txt has third-party packages that the tests run unchanged, without their dependencies; see the file.
if ! "$venv/bin/python" tools/install_packages.py -e ".[$extra,test,lint,docs,release]" >"$log" 2>&1 ||
    ! "$venv/bin/python" tools/install_packages.py --no-deps -r tests/programs/packages.txt >>"$log" 2>&1; then
    tail -n 20 "$log" >&2
    say "error: the packages could not be installed; the last lines of $log are above"
    exit 1
fi
installed=$("$venv/bin/python" -c 'from importlib.metadata import version; print(version("tensorflow"))')
case $installed in
    "$tf".*) ;;
    *)
        say "error: TensorFlow $installed was installed in place of $tf"
        say "  found: the log $log"
        exit 1
        ;;
esac
say "Ready: $venv: TensorFlow $installed"
