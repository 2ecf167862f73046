#!/bin/sh
# Write constraints.txt anew: constraints.sh [--upgrade]; without it, what is there stays where it still fits.
#
# One file for every Python from 3.11 on and every platform, with as few versions of a package as there can be. torch is chosen
# by hand: it is what everything was measured with. Its CUDA libraries it pins itself, each build its own, and flash-attn is
# built for the torch that is there: neither stands in the file.
set -eu
cd "$(dirname "$0")/.."
TORCH=2.13.0

cp constraints.txt constraints.new
trap 'rm -f constraints.new constraints.made' EXIT
echo "torch==$TORCH" | uv pip compile pyproject.toml --constraint - --universal --python-version 3.11 --fork-strategy fewest \
    --all-extras --no-emit-package flash-attn --no-annotate --no-header --quiet --output-file constraints.new "$@" >/dev/null
{
    echo "# One set of versions that is known to work together, for every Python and platform; made by tools/constraints.sh."
    echo "# pip install -c constraints.txt -e '.[dev,vision]'"
    grep -v -E '^(nvidia|cuda)-' constraints.new
} >constraints.made
mv constraints.made constraints.txt
