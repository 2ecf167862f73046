#!/bin/sh
# The whole suite in several environments, one after the other: suites.sh [3.11 | 3.12 | … | lowest] …
#
# Without arguments every Python from 3.11 on that is at hand, and "lowest": the first of them with the lowest version of each
# package that pyproject.toml names. The environments stay in .venvs. Takes some ten minutes each on two cores.
set -eu
cd "$(dirname "$0")/.."
mkdir -p .venvs

# An interpreter of a version: on PATH, of pyenv, or one that uv knows of.
find_python() {
    for candidate in "python$1" "$HOME"/.pyenv/versions/"$1".*/bin/python; do
        if "$candidate" -c "" 2>/dev/null; then echo "$candidate" && return; fi
    done
    uv python find --no-project --no-python-downloads "$1" 2>/dev/null
}

# The environment of the lowest versions, which only uv can choose.
make_lowest() {
    [ -x .venvs/lowest/bin/python ] || uv venv --quiet --no-project --seed --python "$1" .venvs/lowest
    uv pip install --quiet --python .venvs/lowest/bin/python --resolution lowest-direct --editable ".[dev,vision]"
}

if [ $# = 0 ]; then
    for version in 3.11 3.12 3.13 3.14; do
        if find_python $version >/dev/null; then set -- "$@" $version; fi
    done
    if command -v uv >/dev/null; then set -- "$@" lowest; else echo "without uv the lowest versions are left out"; fi
fi

failed=""
for name in "$@"; do
    start=$(date +%s)
    if [ "$name" = lowest ]; then
        python=""
        for version in 3.11 3.12 3.13; do python=${python:-$(find_python $version || true)}; done
        prepared=$(make_lowest "$python" >&2 && echo yes) || true
    else
        prepared=$(PYTHON=$(find_python "$name") tools/environment.sh dev ".venvs/$name" >&2 && echo yes) || true
    fi
    made=$(date +%s)
    if [ -n "$prepared" ] && ".venvs/$name/bin/python" -m pytest -q -p no:cacheprovider >".venvs/$name.log" 2>&1; then
        result=passed
    else
        result=FAILED
        failed=yes
    fi
    echo "$name: $result ($(tail -n 1 ".venvs/$name.log" 2>/dev/null)); environment $((made - start)) s; see .venvs/$name.log"
done
[ -z "$failed" ]
