#!/usr/bin/env bash
# All that needs a GPU, in at most 25 minutes: bash benchmarks/on_a_gpu.sh [STEP...]
#
# Steps that are named run alone, for machines that are lent for less at a time.
# The steps stand in the order of the questions: is it right on CUDA, does it save what the paper's Table 3 says, what
# does choosing cost, how much memory does it take? Each step has its own time limit and log, and a step that fails or
# runs out of time does not stop the others. Writes two files to $OUT (default gpu-results), which grow with each step:
# summary.txt, a line a step, and on_a_gpu.tar.gz, all logs, results and plots. Without CUDA the steps are skipped, each
# with a line that says why.
#
#   LIMIT=5      no step takes longer than so many seconds
#   PYTHON=...   the interpreter (default python3)
#   REHEARSAL=1  run every step on the CPU, with a small model and few frames, to see that the steps work

set -u
STEPS=(tests llava_onevision_7b qwen2_5_vl_7b flash_attention compress beside_the_paper llava_onevision_7b_frames
    qwen2_vl_7b_frames llava_video_7b lecture vision_tower_llava-onevision-0.5b vision_tower_qwen3-vl-2b)
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
REHEARSAL=${REHEARSAL:-}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
export PYTHONPATH="$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
: > "$OUT/summary.txt"

say() { echo "$*" | tee -a "$OUT/summary.txt"; }

# step NAME SECONDS COMMAND...
step() {
    local name=$1 limit=$(($2 < LIMIT ? $2 : LIMIT)) begin=$SECONDS code
    shift 2
    if [[ "$ASKED" != *" $name "* ]]; then return; fi
    if [ -n "$WHY_NOT" ]; then
        say "$name: skipped, $WHY_NOT"
        return
    fi
    timeout -k 5 "$limit" "$@" > "$WORK/$name.log" 2>&1
    code=$?
    case $code in
        0) say "$name: done in $((SECONDS - begin)) s" ;;
        124 | 137) say "$name: stopped at its limit of $limit s" ;;
        *) say "$name: failed with $code after $((SECONDS - begin)) s: $(tail -n 1 "$WORK/$name.log")" ;;
    esac
    tar czf "$OUT/on_a_gpu.tar.gz" -C "$WORK" .
}

# bench NAME SECONDS SIZE "FRAMES..." OPTIONS...
bench() {
    local name=$1 limit=$2 size=$3 frames=() each device=(--device cuda --dtype bfloat16)
    for each in $4; do frames+=(--num-frames "$each"); done
    shift 4
    if [ -n "$REHEARSAL" ]; then
        size=llava-onevision-small frames=(--num-frames 4) device=(--device cpu --repeats 1 --max-new-tokens 2)
    fi
    step "$name" "$limit" "$PYTHON" -m vidcom2 bench -o "$WORK/bench/$name" \
        --model-size "$size" "${frames[@]}" "$@" "${device[@]}"
}

# The lines that a step printed go into the summary too.
tell() { [ ! -f "$WORK/$1.log" ] || sed "s/^/  /" "$WORK/$1.log" | tee -a "$OUT/summary.txt"; }

WHY_NOT="" DEVICE=cuda TESTS=cuda REPEATS=30
if ! "$PYTHON" -c "import torch, transformers, av, typer" 2> "$WORK/imports.log"; then
    WHY_NOT="$PYTHON lacks a package of this project ($(tail -n 1 "$WORK/imports.log"))"
elif [ -n "$REHEARSAL" ]; then
    DEVICE=cpu TESTS="not cuda and not product and slow" REPEATS=1
elif ! "$PYTHON" -c "import sys, torch; sys.exit(not torch.cuda.is_available())" 2> /dev/null; then
    WHY_NOT="this machine has no CUDA device that PyTorch can use"
else
    nvidia-smi > "$WORK/nvidia-smi.txt" 2>&1
fi
NO_CUDA=$WHY_NOT NO_FLASH=$WHY_NOT
if [ -z "$WHY_NOT" ] && ! "$PYTHON" -c "import flash_attn" 2> /dev/null; then NO_FLASH="flash-attn is not installed"; fi

# Is it right? The tests that skip without CUDA, and no others.
files=(tests/test_devices.py)
if [ -n "$REHEARSAL" ]; then files+=(-k llava_onevision); else files+=(tests/test_{compression,generate,bench}.py); fi
step tests 300 "$PYTHON" -m pytest -o addopts= -q -rs -m "$TESTS" \
    -W default -W error::pytest.PytestUnraisableExceptionWarning "${files[@]}"

# Does it save what the paper says? Its setting is 32 × 196 tokens. Qwen2.5-VL has 144 for each two frames here.
METHODS=(--method "random,vidcom2,coverage,vidcom2:compression_scoring=released" --encode-once)
bench llava_onevision_7b 240 llava-onevision-7b 32 "${METHODS[@]}"
bench qwen2_5_vl_7b 180 qwen2.5-vl-7b 96 "${METHODS[@]}" --video-size 448x252
WHY_NOT=$NO_FLASH
bench flash_attention 120 llava-onevision-7b 32 --encode-once --method random,vidcom2 --retention-ratio 0.25 \
    --attn-implementation flash_attention_2 --attn-implementation sdpa
WHY_NOT=$NO_CUDA

# What does choosing cost, alone and in an answer?
SIZES=()
[ -z "$REHEARSAL" ] || SIZES=(--size llava-onevision-0.5b)
step compress 90 "$PYTHON" benchmarks/benchmark_compress.py --device "$DEVICE" --repeats "$REPEATS" "${SIZES[@]}" \
    --json "$WORK/compress.json"
step beside_the_paper 30 "$PYTHON" -m benchmarks.beside_the_paper "$WORK/bench"
tell beside_the_paper

# How do memory and time grow with the frames? Qwen2-VL has 27,648 tokens of 384.
bench llava_onevision_7b_frames 100 llava-onevision-7b "8 16 32 64" --encode-once --repeats 3 --max-new-tokens 4 \
    --method random,vidcom2 --retention-ratio 0.25
bench qwen2_vl_7b_frames 120 qwen2-vl-7b "96 192 384" --encode-once --repeats 3 --max-new-tokens 4 --video-size 448x252 \
    --method random,vidcom2 --retention-ratio 0.25
bench llava_video_7b 100 llava-video-7b 64 --encode-once --repeats 3 --retention-ratio 0.25 \
    --method random,vidcom2,vidcom2:compression_scoring=released

# The vision tower, which compression does not shorten: whole, and without the patches that repeat.
step lecture 30 "$PYTHON" -m benchmarks.clips lecture "$WORK/lecture.mp4"
for size in llava-onevision-0.5b qwen3-vl-2b; do
    bench "vision_tower_$size" 60 "$size" 32 --video "$WORK/lecture.mp4" --repeats 5 --max-new-tokens 4 \
        --method vidcom2,vidcom2:vision_method=skip_repeated:vision_tolerance=0.02 --retention-ratio 0.25
done

say "all steps: $SECONDS s, in $OUT"
