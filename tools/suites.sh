#!/bin/sh
# The whole suite in several environments, one after the other: suites.sh [3.11 | 3.12 | … | lowest] …
#
# Without arguments every Python from 3.11 on that is at hand, and "lowest": the first of them with the lowest version of each
# package that pyproject.toml names. The environments stay in .venvs. Takes some ten minutes each on two cores.
set -eu
cd "$(dirname "$0")/.."
mkdir -p .venvs
uv=$(command -v uv || true)

# An interpreter of a version: on PATH, of pyenv, or one that uv knows of.
find_python() {
    for candidate in "python$1" "$HOME"/.pyenv/versions/"$1".*/bin/python; do
        if "$candidate" -c "" 2>/dev/null; then echo "$candidate" && return; fi
    done
    [ -n "$uv" ] && "$uv" python find --no-project --system --no-python-downloads "$1" 2>/dev/null
}

# The environment NAME; of the lowest versions, which only uv can choose, it is always made anew, for what is there and fits stays.
prepare() {
    if [ "$1" != lowest ]; then
        PYTHON=$2 tools/environment.sh dev ".venvs/$1"
        return
    fi
    "$uv" venv --quiet --no-project --clear --seed --python "$2" .venvs/lowest &&
        "$uv" pip install --quiet --python .venvs/lowest/bin/python --resolution lowest-direct --editable ".[dev,vision]"
}

if [ $# = 0 ]; then
    for version in 3.11 3.12 3.13 3.14; do
        if find_python $version >/dev/null; then set -- "$@" $version; fi
    done
    [ $# != 0 ] || { echo "error: there is no Python 3.11 or later" >&2 && exit 1; }
    if [ -n "$uv" ]; then set -- "$@" lowest; else echo "without uv the lowest versions are left out"; fi
fi

failed=""
for name in "$@"; do
    version=$name
    [ "$name" != lowest ] || version=$(for lowest in 3.11 3.12 3.13; do if find_python $lowest >/dev/null; then echo $lowest && break; fi; done)
    python=$(find_python "${version:-3.11}") || { echo "error: there is no Python $name" >&2 && exit 1; }
    start=$(date +%s)
    finished=""
    rm -f ".venvs/$name.log"
    if prepare "$name" "$python" && finished=$(date +%s) &&
        PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 ".venvs/$name/bin/python" -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -p no:cacheprovider >".venvs/$name.log" 2>&1; then
        result=passed
    else
        result=FAILED
        failed=yes
    fi
    echo "$name: $result ($(tail -n 1 ".venvs/$name.log" 2>/dev/null || echo "no environment")), environment $((${finished:-$start} - start)) s; see .venvs/$name.log"
done
[ -z "$failed" ]
