#!/usr/bin/env bash
# All that needs a GPU, in at most 12 minutes: bash benchmarks/on_a_gpu.sh [STEP...]
#
# Steps that are named run alone, for machines that are lent for less at a time. The package need not be installed: its
# code is this checkout's. benchmarks/README.md says which packages to carry to a machine without a network.
#
# The steps stand in the order of what they tell: is it right on CUDA, how long does an answer take in the models that
# most people use, where does the time of a tower go, what does choosing cost, how much memory does it take? Each step
# has its own time limit and log, and none may outlast the budget of all. A step that fails or runs out of time does not
# stop the others. Each step's results are printed as they come. Writes two files to $OUT (default gpu-results), which
# grow with each step: summary.txt, what is printed, and on_a_gpu.tar.gz, all logs, results and plots. Without CUDA the
# steps are skipped, each with a line that says why.
#
#   BUDGET=720   all steps together take no longer than so many seconds
#   LIMIT=5      no step takes longer than so many seconds
#   PYTHON=...   the interpreter (default python3)
#   REHEARSAL=1  run every step on the CPU, with a small model and few frames, to see that the steps work

set -u
STEPS=(tests llava_onevision_7b qwen2_5_vl_7b qwen3_5_4b qwen3_vl_8b towers compress beside_the_paper flash_attention
    llava_onevision_7b_frames qwen2_vl_7b_frames lecture vision_tower_llava-onevision-0.5b)
ASKED=" ${*:-${STEPS[*]}} "
for name in $ASKED; do
    if [[ " ${STEPS[*]} " != *" $name "* ]]; then
        echo "There is no step $name. Name some of these, or none to run all: ${STEPS[*]}" >&2
        exit 2
    fi
    if [[ $name == vision_tower_* ]]; then ASKED+="lecture "; fi # the video that these read
done
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-gpu-results}
LIMIT=${LIMIT:-600}
BUDGET=${BUDGET:-720}
REHEARSAL=${REHEARSAL:-}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
export PYTHONPATH="$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 COLUMNS=160
: > "$OUT/summary.txt"

say() { echo "$*" | tee -a "$OUT/summary.txt"; }
has() { "$PYTHON" -c "import $1" 2> /dev/null; }

# The lines of a file go into the summary too.
tell() { [ ! -f "$1" ] || sed "s/^/  /" "$1" | tee -a "$OUT/summary.txt"; }

# step NAME SECONDS COMMAND...
step() {
    local name=$1 limit=$(($2 < LIMIT ? $2 : LIMIT)) left=$((BUDGET - SECONDS)) begin=$SECONDS code
    shift 2
    if [[ "$ASKED" != *" $name "* ]]; then return; fi
    if [ -n "$WHY_NOT" ]; then
        say "$name: skipped, $WHY_NOT"
        return
    fi
    if ((left < 3)); then
        say "$name: not begun, all $BUDGET s are spent"
        return
    fi
    limit=$((limit < left ? limit : left))
    timeout -k 5 "$limit" "$@" > "$WORK/$name.log" 2> "$WORK/$name.err"
    code=$?
    case $code in
        0) say "$name: done in $((SECONDS - begin)) s" ;;
        124 | 137) say "$name: stopped at its limit of $limit s" ;;
        *) say "$name: failed with $code after $((SECONDS - begin)) s: $(cat "$WORK/$name.err" "$WORK/$name.log" | tail -n 1)" ;;
    esac
    tell "$WORK/$name.log"
    cp "$OUT/summary.txt" "$WORK"
    tar czf "$OUT/on_a_gpu.tar.gz" -C "$WORK" .
}

# bench NAME SECONDS SIZE "FRAMES..." OPTIONS...
bench() {
    local name=$1 limit=$2 size=$3 frames=() each device=(--device cuda --dtype bfloat16) found
    for each in $4; do frames+=(--num-frames "$each"); done
    shift 4
    if [ -n "$REHEARSAL" ]; then
        size=llava-onevision-small frames=(--num-frames 4) device=(--device cpu --repeats 1 --max-new-tokens 2)
    fi
    step "$name" "$limit" "$PYTHON" -m vidcom2 bench -o "$WORK/bench/$name" \
        --model-size "$size" "${frames[@]}" "$@" "${device[@]}"
    found=$(find "$WORK/bench/$name" -name "*.json" 2> /dev/null)
    if [ -n "$found" ] && [ ! -s "$WORK/$name.log" ] && ((BUDGET > SECONDS)); then # it was stopped: what it had by then
        "$PYTHON" -m vidcom2 bench --plot-only "$found" > "$WORK/$name.log" 2>> "$WORK/$name.err"
        tell "$WORK/$name.log"
    fi
}

WHY_NOT="" DEVICE=cuda TESTS=cuda REPEATS=15
if ! "$PYTHON" -c "import torch, torchvision, transformers, av, typer, lazy_loader, httpx" 2> "$WORK/imports.log"; then
    WHY_NOT="$PYTHON lacks a package of this project ($(tail -n 1 "$WORK/imports.log"))"
elif [ -n "$REHEARSAL" ]; then
    DEVICE=cpu TESTS="not cuda and not product and slow" REPEATS=1
elif ! "$PYTHON" -c "import sys, torch; sys.exit(not torch.cuda.is_available())" 2> /dev/null; then
    WHY_NOT="this machine has no CUDA device that PyTorch can use"
else
    nvidia-smi > "$WORK/nvidia-smi.txt" 2>&1
    say "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader), $("$PYTHON" -c \
        "import torch, transformers; print(f'torch {torch.__version__}, transformers {transformers.__version__}')")"
fi
NO_CUDA=$WHY_NOT NO_FLASH=$WHY_NOT NO_TESTS=$WHY_NOT
if [ -z "$WHY_NOT" ] && ! has flash_attn; then NO_FLASH="flash-attn is not installed"; fi
if [ -z "$WHY_NOT" ] && ! has pytest; then NO_TESTS="pytest is not installed"; fi

# Is it right? The tests that skip without CUDA, and no others. Those of two files need further packages.
files=(tests/test_devices.py)
if [ -n "$REHEARSAL" ]; then
    files+=(-k llava_onevision)
else
    files+=(tests/test_generate.py)
    if has hypothesis; then files+=(tests/test_compression.py); fi
    if has hypothesis && has matplotlib; then files+=(tests/test_bench.py); fi
    if has xdist; then files+=(-n "$(($(nproc) < 8 ? $(nproc) : 8))"); fi
fi
WHY_NOT=$NO_TESTS
step tests 180 "$PYTHON" -m pytest -o addopts= -q -rs -m "$TESTS" \
    -W default -W error::pytest.PytestUnraisableExceptionWarning "${files[@]}"
WHY_NOT=$NO_CUDA

# How long does an answer take, eager and compiled? LLaVA-OneVision's setting is the paper's, 32 × 196 tokens. Qwen2.5-VL
# has 144 for each two frames here.
USUAL=(--method "random,vidcom2,coverage" --retention-ratio 0.25 --encode-once --compiled --repeats 3)
bench llava_onevision_7b 180 llava-onevision-7b 32 "${USUAL[@]}"
bench qwen2_5_vl_7b 170 qwen2.5-vl-7b 96 "${USUAL[@]}" --video-size 448x252
bench qwen3_5_4b 130 qwen3.5-4b 64 "${USUAL[@]}" --video-size 448x252
bench qwen3_vl_8b 130 qwen3-vl-8b 64 "${USUAL[@]}" --video-size 448x252

# Where does the time of a tower go: as Transformers runs it, and in each way of this project's.
TOWERS=(--size qwen2.5-vl-7b --size qwen3-vl-8b --num-frames 96 --device cuda)
[ -z "$REHEARSAL" ] || TOWERS=(--size qwen3-vl-2b --num-frames 4 --video-size 112x112 --device cpu --repeats 1 --layers 1)
step towers 60 "$PYTHON" -m benchmarks.benchmark_towers "${TOWERS[@]}" --json "$WORK/towers.json"

# What does choosing cost, alone and in an answer?
SIZES=()
[ -z "$REHEARSAL" ] || SIZES=(--size llava-onevision-0.5b --dtype bfloat16 --method vidcom2 --method random)
step compress 60 "$PYTHON" benchmarks/benchmark_compress.py --device "$DEVICE" --repeats "$REPEATS" "${SIZES[@]}" \
    --json "$WORK/compress.json"
step beside_the_paper 30 "$PYTHON" -m benchmarks.beside_the_paper "$WORK/bench"

WHY_NOT=$NO_FLASH
bench flash_attention 60 llava-onevision-7b 32 --encode-once --method random,vidcom2 --retention-ratio 0.25 --repeats 3 \
    --attn-implementation flash_attention_2 --attn-implementation sdpa
WHY_NOT=$NO_CUDA

# How do memory and time grow with the frames? Qwen2-VL has 27,648 tokens of 384.
bench llava_onevision_7b_frames 60 llava-onevision-7b "8 16 32 64" --encode-once --repeats 2 --max-new-tokens 4 \
    --method vidcom2 --retention-ratio 0.25
bench qwen2_vl_7b_frames 90 qwen2-vl-7b "96 384" --encode-once --repeats 2 --max-new-tokens 4 --video-size 448x252 \
    --method vidcom2 --retention-ratio 0.25

# The vision tower without the patches that repeat, which compression does not shorten.
step lecture 30 "$PYTHON" -m benchmarks.clips lecture "$WORK/lecture.mp4"
bench vision_tower_llava-onevision-0.5b 60 llava-onevision-0.5b 32 --video "$WORK/lecture.mp4" --repeats 5 \
    --max-new-tokens 4 --method vidcom2,vidcom2:vision_method=skip_repeated:vision_tolerance=0.02 --retention-ratio 0.25

say "all steps: $SECONDS s, in $OUT"
cp "$OUT/summary.txt" "$WORK" && tar czf "$OUT/on_a_gpu.tar.gz" -C "$WORK" .
