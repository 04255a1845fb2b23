#!/usr/bin/env bash
# Where the time of a command goes: a table of its stages, then Scalene's report on each that takes a tenth or more.
set -euo pipefail

usage() {
  cat <<'END'
usage: ./profile.sh [--lines] [train|encode|decode|inspect|compare] [CORPUS ...]

  train ...    the command to look at (default: train). The others use the model that `train` makes of the corpus
  CORPUS       files, folders or globs (default: the sources of Python's standard library)
  --lines      run the kernels as plain Python, on the first 200 kB, so that the lines inside them are seen

It prints seconds, MB/s, share and memory of each stage, run with one worker and kernels that are compiled. Then come the
lines that take most; the time of a kernel is that of the line which calls it, unless --lines is given. Scalene's whole
report is in profile/COMMAND.STAGE.html. It needs Scalene: pip install scalene

An installed bpe_numba has another cache: the first run here compiles the kernels again, in a minute or two.
END
}

lines='' command=train
while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help) usage; exit ;;
    --lines) lines=1 ;;
    train | encode | decode | inspect | compare) command=$1; shift; break ;;
    -*) usage >&2; exit 2 ;;
    *) break ;;
  esac
  shift
done
module=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/bpe_numba.py
python -c 'import scalene' 2>/dev/null || { echo "profile.sh: Scalene is missing: pip install scalene" >&2; exit 2; }
mkdir -p profile
if [[ $# -eq 0 ]]; then
  set -- "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')/*.py"
fi
if [[ $lines ]]; then
  # shellcheck disable=SC2068  # a glob
  head -qc 200000 $@ | head -c 200000 > profile/small.txt || true # head stops reading
  set -- profile/small.txt
  export NUMBA_DISABLE_JIT=1
fi

run() { # arguments of bpe_numba.py; what it says is shown if it fails
  ${before:-python} "$module" ${before:+---} "$@" > profile/log 2>&1 || { cat profile/log >&2; exit 1; }
}

train=(train "$@" --workers 1 --out profile/model --quiet --timings)
encode=(encode profile/model "$@" --workers 1 --out profile/tokens.npy --quiet --timings)
decode=(decode profile/model profile/tokens.npy --out profile/text --quiet --timings)
inspect=(inspect profile/model "$@" --workers 1 --quiet --timings)
compare=(compare profile/model --corpus "$@" --workers 1 --quiet --timings)
declare -n chosen=$command
echo "Compiling this copy of bpe_numba.py, if it has not run yet, and making what $command needs ..."
[[ $command == train ]] || run "${train[@]}"
[[ $command != decode ]] || run "${encode[@]}"
[[ $lines ]] || run "${chosen[@]}"
echo
[[ ! $lines ]] || echo "These are shares of plain Python: a compiled kernel may take 100 times less. Compare lines within a kernel."
echo "=== bpe_numba.py ${chosen[*]}"
run "${chosen[@]}"
grep -A 99 -E '^[0-9.]+ seconds$' profile/log | tee profile/stages

# Rows of the table: | stage | seconds | MB/s | % of time | peak MB |. Kernels are compiled or loaded once: that is apart.
mapfile -t stages < <(awk -F'[| ]+' '
  $2 ~ /^(stage|-+|other|compile|)$/ || $1 != "" { next }
  { seconds[$2] = $3; total += $3 }
  END { for (stage in seconds) if (seconds[stage] >= total / 10) print seconds[stage], stage }
' profile/stages | sort -rn | cut -d " " -f 2)
for stage in "${stages[@]}"; do
  report=profile/$command.$stage
  export BPE_NUMBA_PROFILE=$stage
  before="python -m scalene run --off --cpu-only --no-stacks --no-async --cpu-sampling-rate 0.002 -o $report.json" \
    run "${chosen[@]}"
  echo
  python - "$report.json" <<'END' || continue
import json, re, sys

KINDS = "n_cpu_percent_python", "n_cpu_percent_c", "n_sys_percent"
with open(sys.argv[1]) as file:
    profile = json.load(file)
module = next((content for path, content in profile["files"].items() if path.endswith("bpe_numba.py")), None)
real = 0
if module:
    timer = next(row["lineno"] for row in module["lines"] if row["line"].startswith("def stage("))
    of_timer = [row for row in module["lines"] if row["start_function_line"] == timer]  # it waits for Scalene to start
    real = 100 - sum(row[kind] for row in of_timer for kind in KINDS)
if real < 1:
    sys.exit(f"{sys.argv[1][8:-5]}: too short for Scalene; take more text")
profile["elapsed_time_sec"] *= real / 100
module["functions"] = [row for row in module["functions"] if row["line"] != "stage"]
for row in of_timer:  # no line may be missing: the page takes the n-th row for line n
    row |= dict.fromkeys(KINDS, 0)
for content in profile["files"].values():
    for row in content["functions"] + content["lines"]:
        row |= {kind: row[kind] * 100 / real for kind in KINDS}
every = [(sum(row[kind] for kind in KINDS), row["lineno"], row["line"]) for row in module["lines"]]
print(f"{sys.argv[1][8:-5]}: {profile['elapsed_time_sec']:.2f} s under Scalene; % of it, and the line")
for share, number, line in sorted((row for row in every if row[0]), reverse=True)[:12]:
    line = re.sub(r"\\u00(..)", lambda code: chr(int(code[1], 16)), line.strip())  # as Scalene writes < and &
    print(f"{share:5.1f}  {number:5}  {line[:100]}")
with open(sys.argv[1], "w") as file:
    json.dump(profile, file)
END
  (cd profile && python -m scalene view --standalone "${report#*/}.json" > /dev/null)
  mv profile/scalene-profile.html "$report.html"
  echo "More in $report.html"
done
