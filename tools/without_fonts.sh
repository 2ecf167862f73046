#!/bin/sh
# Run a command as on a machine that has no fonts but the one without which Chromium ends: without_fonts.sh COMMAND [ARGUMENT …]
#
# For the command alone an empty folder lies over the folder of fonts, which takes root and Linux; elsewhere the command runs as it is.
set -eu
FONTS=/usr/share/fonts

if ! unshare --mount true 2>/dev/null || [ ! -d "$FONTS" ]; then
    echo "cannot hide $FONTS (that takes root, and Linux): running with the fonts of this machine" >&2
    exec "$@"
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/fonts" "$folder/matplotlib" # whose list of fonts is made anew
cp "$FONTS/truetype/dejavu/DejaVuSans.ttf" "$folder/fonts" 2>/dev/null || true
MPLCONFIGDIR=$folder/matplotlib unshare --mount sh -c 'mount --bind "$0" "$1" && shift && exec "$@"' "$folder/fonts" "$FONTS" "$@"
