#!/usr/bin/env bash
# Where the time of a command goes: tables of its stages and kernels, then Scalene's report on each longer stage.
set -euo pipefail

usage() {
  cat <<'END'
usage: ./profile.sh [--kernels | --cold | --lines] [train|encode|decode|inspect|compare] [CORPUS ...]

  train ...    the command to look at (default: train). The others use the model that `train` makes of the corpus
  CORPUS       files, folders or globs (default: the sources of Python's standard library)
  --kernels    only the two tables, without Scalene
  --cold       the same, with a cache that is empty: all kernels are compiled in this run
  --lines      run the kernels as plain Python, on the first 200 kB, so that the lines inside them are seen

It prints seconds, MB/s and share of each stage, run with one worker and kernels that are compiled; and for each
kernel that Python calls, how often, and the seconds in which it was compiled, loaded from the disk, and running.

Then come the lines that take most of each stage that takes a tenth of the time or more, by Scalene. The time of a kernel is
that of the line which calls it, unless --lines is given. The report is in profile/COMMAND.STAGE.html; it has the functions
that took time. Under Scalene a stage takes several times as long; the two tables are made without it. It needs Scalene:
pip install scalene

An installed bpe_numba has another cache: the first run here compiles the kernels again, in a minute or two.
END
}

lines='' only_kernels='' cold='' command=train
while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help) usage; exit ;;
    --kernels) only_kernels=1 ;;
    --cold) only_kernels=1 cold=1 ;;
    --lines) lines=1 ;;
    train | encode | decode | inspect | compare) command=$1; shift; break ;;
    -*) usage >&2; exit 2 ;;
    *) break ;;
  esac
  shift
done
module=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/bpe_numba.py
[[ $only_kernels ]] || python -c 'import scalene' 2>/dev/null || {
  echo "profile.sh: Scalene is missing: pip install scalene; or use --kernels" >&2
  exit 2
}
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
  python "$module" "$@" > profile/log 2>&1 || { cat profile/log >&2; exit 1; }
}

record=$(mktemp -d)/record.py # in a folder of its own, which Scalene leaves out
trap 'rm -r "$(dirname "$record")"' EXIT
cat > "$record" <<'END'
import contextlib, os, sys, time

module, recorded, *arguments = sys.argv[1:]
sys.argv = [module]
sys.path.insert(0, os.path.dirname(module))
import bpe_numba
from scalene import scalene_profiler

plain_stage = bpe_numba.stage


@contextlib.contextmanager
def recorded_stage(name):
    with contextlib.ExitStack() as stack:
        if name == recorded:
            scalene_profiler.start()
            stack.callback(scalene_profiler.stop)
            time.sleep(0.3)  # Scalene charges its start, some 0.2 s, to the line that waits
        yield stack.enter_context(plain_stage(name))


bpe_numba.stage = recorded_stage
sys.exit(bpe_numba.main(arguments))
END

run_recorded() { # the same under Scalene, which records the stage $1 and writes the file $2
  python -m scalene run --off --cpu-only --no-stacks --no-async --cpu-sampling-rate 0.002 \
    --program-path "$(dirname "$module")" -o "$2" "$record" --- "$module" "$1" "${@:3}" \
    > profile/log 2>&1 || { cat profile/log >&2; exit 1; }
}

run_timed() { # the same, with a clock around each kernel that Python calls
  python - "$module" "$@" > profile/log 2>&1 <<'END' || { cat profile/log >&2; exit 1; }
import collections, contextlib, inspect, json, pathlib, re, sys, time

sys.argv.pop(0)
sys.path.insert(0, str(pathlib.Path(sys.argv[0]).parent))
import numba
from numba.core import event
from numba.experimental import structref  # before `njit` is replaced
from numba.extending import typeof_impl


class Clock(event.Listener):
    """The seconds of some events; events inside them do not count twice."""

    def __init__(self, kind):
        self.depth = self.start = self.end = self.seconds = 0
        event.register(kind, self)

    def on_start(self, started):
        if not self.depth:
            self.start = time.perf_counter()
        self.depth += 1

    def on_end(self, ended):
        self.depth -= 1
        if not self.depth:
            self.end = time.perf_counter()
            self.seconds += self.end - self.start


preparing = Clock("numba:compiler_lock")  # held while a kernel is compiled or loaded
compiling = Clock("numba:compile")
stages = ["other"]
# (stage, kernel, line that calls it) -> calls, and seconds of compiling, loading and running
spent = collections.defaultdict(lambda: [0, 0.0, 0.0, 0.0])


class TimedKernel:
    """A kernel with a clock around its calls from Python; other kernels call the kernel itself."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.name = re.sub(r"Type\w*\.new$", "", kernel.py_func.__qualname__)  # of a struct

    def __call__(self, *arguments):
        line = inspect.currentframe().f_back.f_lineno
        compiled = compiling.seconds
        start = time.perf_counter()
        try:
            return self.kernel(*arguments)
        finally:
            end = time.perf_counter()
            prepared = max(preparing.end - start, 0)  # it runs when it has been prepared
            compiled = compiling.seconds - compiled
            row = spent[stages[-1], self.name, line]
            for k, more in enumerate([1, compiled, prepared - compiled, end - start - prepared]):
                row[k] += more

    def __getattr__(self, name):
        return getattr(self.kernel, name)


@typeof_impl.register(TimedKernel)
def type_of_timed(timed, context):
    return numba.typeof(timed.kernel)


def timed_njit(*functions, **options):
    if functions:  # of Numba itself
        return njit(*functions, **options)
    return lambda function: TimedKernel(njit(**options)(function))


njit, numba.njit = numba.njit, timed_njit
import bpe_numba

numba.njit = njit
plain_stage = bpe_numba.stage


@contextlib.contextmanager
def noted_stage(name):
    stages.append(name)
    try:
        with plain_stage(name) as timing:
            yield timing
    finally:
        stages.pop()


bpe_numba.stage = noted_stage
start = time.perf_counter()
status = bpe_numba.main(sys.argv[1:])
total = time.perf_counter() - start
if status:
    sys.exit(status)
kernels = collections.defaultdict(lambda: [0, 0.0, 0.0, 0.0])
called = collections.defaultdict(dict)  # stage -> line -> the kernels that it calls
for (stage, name, line), row in spent.items():
    kernels[stage, name] = [a + b for a, b in zip(kernels[stage, name], row)]
    called[stage].setdefault(line, []).append((name, *row))
pathlib.Path("profile/kernels.json").write_text(json.dumps(called))
rows = [(*key, *row, 100 * sum(row[1:]) / total) for key, row in kernels.items()]
rows.sort(key=lambda row: -row[-1])
python = total - sum(sum(row[3:6]) for row in rows)
few = [row for row in rows[:15] if row[-1] >= 0.1]
others = rows[len(few) :]
if others:
    few.append(("", bpe_numba.number_of(len(others), "other"), *map(sum, list(zip(*others))[2:])))
few.append(("", "Python itself", None, None, None, python, 100 * python / total))
title = "Kernels that Python calls: seconds in which each was compiled, loaded and running; the first one loads Numba, too"
header = "stage", "kernel", "calls", "compiled", "loaded", "running", "% of time"
rows = [(*row[:3], *(n if n is None else round(n, 3) for n in row[3:6]), round(row[6], 1)) for row in few]
if kernels:  # as plain Python they are none
    print(f"\n{bpe_numba.Table(title, header, rows)}", file=sys.stderr)
END
}

train=(train "$@" --workers 1 --out profile/model --quiet --timings)
encode=(encode profile/model "$@" --workers 1 --out profile/tokens.npy --quiet --timings)
decode=(decode profile/model profile/tokens.npy --out profile/text --quiet --timings)
inspect=(inspect profile/model "$@" --workers 1 --quiet --timings)
compare=(compare profile/model --corpus "$@" --workers 1 --quiet --timings)
declare -n chosen=$command
echo "Making what $command needs, and compiling this copy of bpe_numba.py if it has not run yet ..."
[[ $command == train ]] || run "${train[@]}"
[[ $command != decode ]] || run "${encode[@]}"
[[ $lines || $cold ]] || run "${chosen[@]}"
echo
[[ ! $lines ]] || echo "These are shares of plain Python: a compiled kernel may take 100 times less. Compare lines within a kernel."
echo "=== bpe_numba.py ${chosen[*]}"
[[ ! $cold ]] || export NUMBA_CACHE_DIR=${record%/*}
run_timed "${chosen[@]}"
grep -A 999 -E '^[0-9.]+ seconds$' profile/log | tee profile/stages
[[ ! $only_kernels ]] || exit 0

# Rows of the table: | stage | seconds | MB/s | % of time |. Kernels are compiled or loaded once: that is apart.
mapfile -t stages < <(awk -F'[| ]+' '
  /^Kernels/ { exit }
  $2 ~ /^(stage|-+|other|compile|)$/ || $1 != "" { next }
  { seconds[$2] = $3; total += $3 }
  END { for (stage in seconds) if (seconds[stage] >= total / 10) print seconds[stage], stage }
' profile/stages | sort -rn | cut -d " " -f 2)
for stage in "${stages[@]}"; do
  report=profile/$command.$stage
  echo "Running the stage $stage under Scalene ..."
  run_recorded "$stage" "$report.json" "${chosen[@]}"
  echo
  python - "$report.json" "$stage" <<'END' || continue
import json, re, sys

KINDS = "n_cpu_percent_python", "n_cpu_percent_c", "n_sys_percent"
path, stage = sys.argv[1:]
with open(path) as file:
    profile = json.load(file)
with open("profile/kernels.json") as file:
    kernels = json.load(file).get(stage, {})
with open("profile/stages") as file:
    seconds = re.search(rf"\| {stage} +\| +([\d.,]+)", file.read())[1]
module = next((content for path, content in profile["files"].items() if path.endswith("bpe_numba.py")), None)


def time_of(row):
    return sum(row[kind] for kind in KINDS)


real = 0
if module:
    # the line that begins the stage waits for Scalene to start
    of_timer = [row for row in module["lines"] if row["line"].strip().startswith("with stage(")]
    real = 100 - sum(map(time_of, of_timer))
if real < 1:
    sys.exit(f"{path[8:-5]}: too short for Scalene; take more text")
profile["elapsed_time_sec"] *= real / 100
around = {row["start_function_line"] for row in of_timer if time_of(row)}
module["functions"] = [row for row in module["functions"] if row["lineno"] not in around]
for row in of_timer:
    row |= dict.fromkeys(KINDS, 0)
for content in profile["files"].values():
    for row in content["functions"] + content["lines"]:
        row |= {kind: row[kind] * 100 / real for kind in KINDS}


def notes_on(number):
    """The kernels that a line calls, and their seconds."""
    for verb, first, last in ("compiles or loads", 1, 3), ("runs", 3, 4):
        there = {name: sum(row[first:last]) for name, *row in kernels.get(str(number), ())}
        names = sorted(there, key=there.get, reverse=True)
        if sum(there.values()) >= 0.01:
            more = ", …" * (len(names) > 3)
            yield f"{verb} {', '.join(names[:3])}{more}: {sum(there.values()):.2f} s without Scalene"


print(f"{path[8:-5]}: {seconds} s, and {profile['elapsed_time_sec']:.2f} s under Scalene; % of these, and the line")
for row in sorted(filter(time_of, module["lines"]), key=time_of, reverse=True)[:12]:
    line = re.sub(r"\\u00(..)", lambda code: chr(int(code[1], 16)), row["line"].strip())  # as Scalene writes < and &
    print(f"{time_of(row):5.1f}  {row['lineno']:5}  {line[:100]}")
    for note in notes_on(row["lineno"]):
        print(f"{'':14}{note}")
# The page has the functions that took time. It looks up the other lines of a region by their numbers: so each is one line.
shown = set()
for row in filter(time_of, module["lines"]):
    shown.update([row["lineno"]], range(row["start_function_line"], row["end_function_line"] + 1))
module["lines"] = [row for row in module["lines"] if row["lineno"] in shown]
for row in module["lines"]:
    row["start_region_line"] = row["end_region_line"] = row["lineno"]
    notes = "".join(f"  # {note}" for note in notes_on(row["lineno"]))
    row["line"] = row["line"].rstrip("\n") + notes + "\n"
with open(path, "w") as file:
    json.dump(profile, file)
END
  (cd profile && python -m scalene view --standalone "${report#*/}.json" > /dev/null)
  mv profile/scalene-profile.html "$report.html"
  echo "More in $report.html"
done
