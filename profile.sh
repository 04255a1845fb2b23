#!/usr/bin/env bash
# Scalene reports of scanning, learning and encoding, in one process and with the kernels compiled beforehand.
#
#   ./profile.sh [INPUT ...]       default: the Python standard library's sources
#
# Writes profile/STAGE.html and profile/STAGE.json, and prints a table for each stage. Scalene shows the time of a
# compiled kernel as native time of the line that calls it. Options for `scalene run` go into SCALENE_OPTIONS.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python -c 'import scalene' 2>/dev/null || { echo "profile.sh: Scalene is missing: pip install scalene" >&2; exit 2; }
mkdir -p profile
export COLUMNS=${COLUMNS:-150}

echo "Compiling the kernels ..."
echo "some text" | python "$here/bpe_numba.py" train - --vocab-size 260 --out profile/warm --quiet
echo "some text" | python "$here/bpe_numba.py" encode profile/warm - --quiet > /dev/null

profile() { # STAGE, then the arguments of bpe_numba.py
  local stage=$1
  shift
  echo
  echo "=== $stage: bpe_numba.py $*"
  # shellcheck disable=SC2086
  BPE_NUMBA_PROFILE=$stage python -m scalene run --off --cpu-only --cpu-sampling-rate 0.002 ${SCALENE_OPTIONS:-} \
    -o "profile/$stage.json" "$here/bpe_numba.py" --- "$@" > "profile/log" 2>&1 ||
    { cat profile/log >&2; exit 1; }
  python -m scalene view --cli --reduced "profile/$stage.json" | tee "profile/$stage.txt"
  (cd profile && python -m scalene view --standalone "$stage.json" > /dev/null && mv scalene-profile.html "$stage.html")
}

if [[ $# -gt 0 ]]; then
  text=("$@")
else
  text=("$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')/*.py")
fi
profile scan train "$@" --workers 1 --out profile/model --quiet
profile learn train "$@" --workers 1 --out profile/model --quiet
profile encode encode profile/model "${text[@]}" --workers 1 --out profile/tokens.npy --quiet
echo
echo "To look closer, open profile/scan.html, profile/learn.html or profile/encode.html."
