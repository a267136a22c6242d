#!/usr/bin/env bash
# Attention and demotion on a GPU against PyTorch's bf16 kernels, in one call: builds bench/attend_cuda.cu from the
# sources it needs, checks and times it, then the peers.
#   scripts/device_bench_attend.sh FMT_INCLUDE_DIR [BUILD_DIR [bench arguments…]]
set -euo pipefail
cd "$(dirname "$0")/.."
fmt=$1 build=${2:-/tmp/kv2-bench}
shift $(($# < 2 ? $# : 2))
arch=${CUDA_ARCH:-90}
mkdir -p "$build"
common="-std=c++20 -O3 -w -DFMT_HEADER_ONLY -DFMT_CONSTEVAL= -Isrc -Iinclude -I$fmt -gencode arch=compute_$arch,code=sm_$arch"
{
  for f in bench/attend_cuda.cu src/cuda/{attend,attend_generic,pages,feedback}.cu src/cuda/attend_plan.cpp src/ops/plan.cpp src/quant/page_layout.cpp; do
    mad=$([ "$f" = src/cuda/pages.cu -o "$f" = src/cuda/feedback.cu ] && echo -fmad=false || true)
    echo "nvcc $common $mad -Xcompiler -ffunction-sections -c $f -o $build/$(echo "$f" | tr / _).o"
  done
} >"$build/commands"
xargs -P "$(nproc)" -I{} sh -c '{} || { echo "failed: {}" >&2; exit 255; }' <"$build/commands"
nvcc -arch=sm_"$arch" "$build"/*.o -o "$build/attend_cuda" -Xlinker --gc-sections
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader || true
"$build/attend_cuda" "$@"
if [ -z "${NO_PEERS:-}" ]; then python3 bench/peers/attend_torch.py; fi
