#!/bin/sh
# Make or mend the environment of this checkout: environment.sh app | dev | docs [FOLDER, by default .venv]
# Or one that holds nothing but the built wheel and what it needs: environment.sh wheel FOLDER
#
# Takes the best Python at hand, and uv if it is there, else pip. Called again, it goes on where it was stopped, and does
# nothing if nothing has changed. Settable, and kept until set otherwise:
#   PYTHON  the interpreter to use
#   TORCH   whose build of torch: "cpu", "cu126" … of PyTorch's own index, the address of an index, or "PyPI"
set -eu
cd "$(dirname "$0")/.."
extras=$1
VENV=${2:-.venv}
TESTED="python3.13 python3.12 python3.11" # best first; what is newer is taken if there is none of these

fail() {
    echo "error: $1" >&2
    exit 1
}

# What an environment was made of: python, torch, the rest; a line each.
made_of() {
    sed -n "s/^$1: //p" "$VENV/made-of" 2>/dev/null || true
}

# Whether diffscope runs on an interpreter: its version, 64 bits, and that it makes environments. Prints where it is, by its
# own account: the one below it, if it is that of an environment, which may be the one to be renewed.
locate() {
    "$1" - "$uv" 2>/dev/null <<'PYTHON'
import importlib.util, sys, sysconfig
fits = sys.version_info >= (3, 11) and sys.maxsize > 2**32 and not sysconfig.get_config_var("Py_GIL_DISABLED")
makes = sys.argv[1] or importlib.util.find_spec("ensurepip") and importlib.util.find_spec("venv")
if not (fits and makes and sys.implementation.name == "cpython"):
    sys.exit(1)
print(getattr(sys, "_base_executable", sys.executable))
PYTHON
}

# The best interpreter at hand.
best_python() {
    for name in "$(made_of python)" $TESTED python3.14 python3 python; do
        if [ -n "$name" ] && locate "$name"; then return; fi
    done
    if [ -n "$uv" ]; then # knows of more than lie on PATH
        for name in $TESTED "python>=3.11"; do
            name=$("$uv" python find --no-project --system --no-python-downloads "${name#python}" 2>/dev/null || true)
            if [ -n "$name" ] && locate "$name"; then return; fi
        done
    fi
    fail "there is no Python 3.11 or later (64 bits, able to make environments); install one (on Debian with the package python3-venv), or name it with PYTHON=..."
}

uv=$(command -v uv || true)
case $uv in
"$PWD/$VENV"/* | "$VENV"/*) uv="" ;; # which may go with the environment
esac
if [ -n "${PYTHON:-}" ]; then
    name=$PYTHON
    PYTHON=$(locate "$name") || fail "$name is not a Python 3.11 or later that can make environments (64 bits; on Debian with the package python3-venv)"
else
    PYTHON=$(best_python)
fi
TORCH=${TORCH:-$(made_of torch)}
TORCH=${TORCH:-PyPI}

# An environment of another Python, other constraints, another torch or another folder is made anew.
wanted="python: $PYTHON
torch: $TORCH
version: $("$PYTHON" -c 'import platform, sys; print("%d.%d" % sys.version_info[:2], platform.machine())')
constraints: $(cksum <constraints.txt)
folder: $PWD"
if [ "$(cat "$VENV/made-of" 2>/dev/null)" != "$wanted" ] || ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    mkdir -p "$VENV"
    [ -e "$VENV/made-of" ] || rmdir "$VENV" 2>/dev/null || fail "$VENV was not made by this command; move it away, or delete it"
    mkdir -p "$VENV"
    # What it was made of goes last, so that after a kill the folder is still known to be ours.
    find "$VENV" -mindepth 1 -maxdepth 1 ! -name made-of -exec rm -rf {} +
    echo "$wanted" >"$VENV/made-of"
    if [ -n "$uv" ]; then
        "$uv" venv --quiet --no-project --allow-existing --seed --python "$PYTHON" "$VENV"
    else
        "$PYTHON" -m venv "$VENV"
    fi
fi

holds=$(cksum <pyproject.toml)
case $extras in # each holds what the one before it does
app) enough="app dev docs" ;;
dev) enough="dev docs" ;;
*) enough=$extras ;;
esac
for more in $enough; do
    [ "$(cat "$VENV/holds-$more" 2>/dev/null)" != "$holds" ] || exit 0
done
rm -f "$VENV"/holds-*

echo "using Python $(made_of version) ($PYTHON) and $([ -n "$uv" ] && echo uv || echo pip), torch of $TORCH; installing diffscope into $VENV, which takes some minutes the first time"
python=$VENV/bin/python
if [ -n "$uv" ]; then
    install() { "$uv" pip install --quiet --compile-bytecode --python "$python" --constraint constraints.txt "$@"; }
    remove() { "$uv" pip uninstall --quiet --python "$python" "$@"; }
else
    # From 25.2 on pip goes on with a download that broke off.
    "$python" -m pip install --quiet --disable-pip-version-check "pip>=25.2"
    install() { "$python" -m pip install --quiet --disable-pip-version-check --retries 10 --constraint constraints.txt "$@"; }
    remove() { "$python" -m pip uninstall --quiet --yes "$@"; }
fi

if [ "$TORCH" != PyPI ]; then
    case $TORCH in
    *:*) index=$TORCH ;;
    *) index=https://download.pytorch.org/whl/$TORCH ;;
    esac
    install --no-deps --index-url "$index" torch
    case $extras in
    dev | docs) install --no-deps --index-url "$index" torchvision ;;
    esac
fi
case $extras in
app) install --editable . ;;
wheel) install dist/*.whl ;;
dev) install --editable ".[dev]" ;;
docs) install --editable ".[dev,docs]" ;;
esac
if [ "$extras" = dev ] || [ "$extras" = docs ]; then
    # timm needs a torchvision of the same build as torch. Where the two do not fit, importing it fails, and so does transformers
    # wherever it finds it: then they lie apart, where the tests alone look for them.
    install timm torchvision
    if ! "$python" -W ignore -c "import torchvision" 2>/dev/null; then
        remove timm torchvision
        rm -rf "$VENV/vision"
        install --no-deps --target "$VENV/vision" timm torchvision
    fi
fi
echo "$holds" >"$VENV/holds-$extras"
