#!/bin/sh
# Make or mend the environment of this checkout: environment.sh app | dev [FOLDER, by default .venv]
#
# Takes the best Python at hand, and uv if it is there, else pip. Called again, it goes on where it was stopped, and does
# nothing if nothing has changed. Settable:
#   PYTHON  the interpreter to use
#   TORCH   whose build of torch: "cpu", "cu126" … of PyTorch's own index, or the address of an index; empty: PyPI's
set -eu
cd "$(dirname "$0")/.."
extras=$1
VENV=${2:-.venv}
TORCH=${TORCH:-}
TESTED="3.13 3.12 3.11" # best first; what is newer is taken if there is none of these

fail() {
    echo "error: $1" >&2
    exit 1
}

# Prints what an interpreter is, or fails if diffscope cannot run on it: version, 64 bits, and how environments are made.
describe() {
    "$1" - "${uv:-}" 2>/dev/null <<'PYTHON'
import importlib.util, platform, sys, sysconfig
fits = sys.version_info >= (3, 11) and sys.maxsize > 2**32 and not sysconfig.get_config_var("Py_GIL_DISABLED")
makes = sys.argv[1] or importlib.util.find_spec("ensurepip") and importlib.util.find_spec("venv")
if not (fits and makes and sys.implementation.name == "cpython"):
    sys.exit(1)
print("Python", "%d.%d" % sys.version_info[:2], platform.machine())
PYTHON
}

# The best interpreter at hand, by name or path.
best_python() {
    for version in $TESTED; do
        if describe "python$version" >/dev/null; then echo "python$version" && return; fi
    done
    for name in python3.14 python3 python; do
        if describe "$name" >/dev/null; then echo "$name" && return; fi
    done
    if [ -n "$uv" ]; then # knows of more than lie on PATH
        for wanted in $TESTED ">=3.11"; do
            if "$uv" python find --no-project --no-python-downloads "$wanted" 2>/dev/null; then return; fi
        done
    fi
    fail "there is no Python 3.11 or later (64 bits, able to make environments); install one (on Debian with the package python3-venv), or name it with PYTHON=..."
}

uv=$(command -v uv || true)
if [ -n "${PYTHON:-}" ]; then
    describe "$PYTHON" >/dev/null || fail "$PYTHON is not a Python 3.11 or later that can make environments (64 bits; on Debian with the package python3-venv)"
else
    PYTHON=$(best_python)
fi

# An environment of another Python, other constraints or another torch is made anew.
made_of="$(describe "$PYTHON"), constraints $(cksum <constraints.txt), torch ${TORCH:-of PyPI}"
if [ "$(cat "$VENV/made-of" 2>/dev/null)" != "$made_of" ] || ! "$VENV/bin/python" -c "import pip" 2>/dev/null; then
    [ ! -e "$VENV" ] || [ -e "$VENV/made-of" ] || fail "$VENV was not made by this command; move it away, or delete it"
    rm -rf "$VENV"
    mkdir -p "$VENV"
    echo "$made_of" >"$VENV/made-of"
    if [ -n "$uv" ]; then
        "$uv" venv --quiet --no-project --allow-existing --seed --python "$PYTHON" "$VENV"
    else
        "$PYTHON" -m venv "$VENV"
    fi
fi

holds=$(cksum <pyproject.toml)
for more in "$extras" dev; do
    [ "$(cat "$VENV/holds-$more" 2>/dev/null)" != "$holds" ] || exit 0
done

echo "using $PYTHON ($(describe "$PYTHON")) and $([ -n "$uv" ] && echo uv || echo pip); installing diffscope into $VENV, which takes some minutes the first time"
python=$VENV/bin/python
if [ -n "$uv" ]; then
    install() { "$uv" pip install --quiet --compile-bytecode --python "$python" --constraint constraints.txt "$@"; }
    remove() { "$uv" pip uninstall --quiet --python "$python" "$@"; }
else
    # From 25.1 on pip goes on with a download that broke off.
    "$python" -m pip install --quiet --disable-pip-version-check "pip>=25.1"
    install() { "$python" -m pip install --quiet --disable-pip-version-check --retries 10 --constraint constraints.txt "$@"; }
    remove() { "$python" -m pip uninstall --quiet --yes "$@"; }
fi

if [ -n "$TORCH" ]; then
    case $TORCH in
    *:*) index=$TORCH ;;
    *) index=https://download.pytorch.org/whl/$TORCH ;;
    esac
    install --no-deps --index-url "$index" torch
    [ "$extras" = app ] || install --no-deps --index-url "$index" torchvision
fi
if [ "$extras" = app ]; then
    install --editable .
else
    install --editable ".[$extras]"
    # timm needs a torchvision of the same build as torch. Where the two do not fit, importing it fails, and so does transformers
    # wherever it finds it: then they lie apart, where the tests alone look for them.
    install timm torchvision
    if ! "$python" -W ignore -c "import torchvision" 2>/dev/null; then
        remove timm torchvision
        install --no-deps --target "$VENV/vision" timm torchvision
    fi
fi
echo "$holds" >"$VENV/holds-$extras"
