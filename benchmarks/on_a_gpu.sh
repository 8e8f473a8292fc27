#!/usr/bin/env bash
# All that needs a GPU, in under nine minutes on one H200: bash benchmarks/on_a_gpu.sh
#
# Each step has its own time limit and log, and a step that fails or runs out of time does not stop the others. Writes two
# files to $OUT (default gpu-results), which grow with each step: summary.txt, a line a step, and on_a_gpu.tar.gz, all logs,
# results and plots. Without CUDA the steps are skipped, each with a line that says why.
#
#   LIMIT=5     no step takes longer than so many seconds
#   PYTHON=...  the interpreter (default python3)

set -u
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-gpu-results}
LIMIT=${LIMIT:-600}
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

bench() { # NAME SECONDS OPTIONS...
    local name=$1 limit=$2
    shift 2
    step "$name" "$limit" "$PYTHON" -m vidcom2 bench --device cuda --dtype bfloat16 -o "$WORK/bench" "$@"
}

if ! "$PYTHON" -c "import torch, transformers, av, typer" 2> "$WORK/imports.log"; then
    WHY_NOT="$PYTHON lacks a package of this project ($(tail -n 1 "$WORK/imports.log"))"
elif ! "$PYTHON" -c "import sys, torch; sys.exit(not torch.cuda.is_available())" 2> /dev/null; then
    WHY_NOT="this machine has no CUDA device that PyTorch can use"
else
    WHY_NOT=""
    nvidia-smi > "$WORK/nvidia-smi.txt" 2>&1
fi
NO_CUDA=$WHY_NOT

# The tests that skip without CUDA, and no others.
step tests 60 "$PYTHON" -m pytest -o addopts= -q -rs -m cuda tests/test_compression.py tests/test_generate.py tests/test_bench.py
step compress 60 "$PYTHON" benchmarks/benchmark_compress.py --device cuda --repeats 30 --json "$WORK/compress_cuda.json"

# The vision tower, which compression does not shorten: whole, and without the patches that repeat.
step lecture 20 "$PYTHON" -m benchmarks.clips lecture "$WORK/lecture.mp4"
bench vision_tower 60 --model-size llava-onevision-0.5b --model-size qwen3-vl-2b --video "$WORK/lecture.mp4" --repeats 5 \
    --max-new-tokens 4 --method vidcom2,vidcom2:vision_method=skip_repeated:vision_tolerance=0.02 --retention-ratio 0.25

# The paper's setting, 32 × 196 tokens; then over frames, for the plots of time and memory.
bench llava_onevision_7b 100 --model-size llava-onevision-7b --encode-once
bench llava_onevision_7b_frames 70 --model-size llava-onevision-7b --encode-once --repeats 3 --max-new-tokens 4 \
    --num-frames 8 --num-frames 16 --num-frames 32 --num-frames 64 --method random,vidcom2 --retention-ratio 0.25
bench llava_video_7b 70 --model-size llava-video-7b --encode-once --repeats 3 --num-frames 64 \
    --method random,vidcom2,vidcom2:compression_scoring=released
# 144 tokens for each two frames: 27,648 of 384.
bench qwen2_vl_7b_frames 80 --model-size qwen2-vl-7b --encode-once --repeats 3 --max-new-tokens 4 --video-size 448x252 \
    --num-frames 96 --num-frames 192 --num-frames 384 --method random,vidcom2 --retention-ratio 0.25

if [ -z "$WHY_NOT" ] && ! "$PYTHON" -c "import flash_attn" 2> /dev/null; then
    WHY_NOT="flash-attn is not installed"
fi
bench flash_attention 45 --model-size llava-onevision-7b --encode-once --repeats 3 --max-new-tokens 4 \
    --attn-implementation flash_attention_2 --attn-implementation sdpa --method vidcom2 --retention-ratio 0.25
WHY_NOT=$NO_CUDA

say "all steps: $SECONDS s, in $OUT"
