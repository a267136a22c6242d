#!/usr/bin/env bash
# The op tests of src/cuda on a machine that has a GPU, nvcc and g++ but none of kv2's other dependencies: builds
# only what they need. fmt is used as headers; GoogleTest from its sources.
#   scripts/device_op_tests.sh FMT_INCLUDE_DIR GTEST_SOURCE_DIR [BUILD_DIR [gtest arguments…]]
# SANITIZE=1 before it runs compute-sanitizer's memcheck and racecheck on a reduced set afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."
fmt=$1 gtest=$2 build=${3:-/tmp/kv2-device}
shift $(($# < 3 ? $# : 3))
arch=${CUDA_ARCH:-90}
mkdir -p "$build"
common="-std=c++20 -O2 -w -DFMT_HEADER_ONLY -DFMT_CONSTEVAL= -Isrc -Iinclude -I$fmt"
{
  for f in src/base/memory.cpp src/quant/int2/int2.cpp src/quant/page_layout.cpp src/ops/op_case.cpp \
    src/ops/plan.cpp src/ops/cases/*.cpp src/ops/reference/{dense,pages,reference}.cpp src/cuda/*.cpp \
    src/quant/int2/encode_head.cpp src/quant/feedback/feedback.cpp; do
    [ -e "$f" ] || continue
    echo "g++ $common -ffunction-sections -ffp-contract=off -I${CUDA_HOME:-/usr/local/cuda}/include -I$gtest/include -c $f -o $build/$(echo "$f" | tr / _).o"
  done
  for f in src/cuda/*.cu; do
    mad=$([ "$f" = src/cuda/pages.cu -o "$f" = src/cuda/feedback.cu ] && echo -fmad=false || true)
    echo "nvcc $common $mad -O3 -lineinfo -gencode arch=compute_$arch,code=sm_$arch -c $f -o $build/$(echo "$f" | tr / _).o"
  done
  for f in gtest-all gtest_main; do
    echo "g++ -std=c++20 -O1 -I$gtest/include -I$gtest -c $gtest/src/$f.cc -o $build/$f.o"
  done
} >"$build/commands"
xargs -P "$(nproc)" -I{} sh -c '{} || { echo "failed: {}" >&2; exit 255; }' <"$build/commands"
nvcc -arch=sm_"$arch" "$build"/*.o -o "$build/tests" -lcublasLt -lpthread -Xlinker --gc-sections
"$build/tests" "$@"
if [ -n "${SANITIZE:-}" ]; then
  for tool in memcheck racecheck; do
    echo "== compute-sanitizer $tool"
    timeout 240 compute-sanitizer --tool $tool --error-exitcode 9 "$build/tests" \
      --gtest_filter="${SANITIZE_FILTER:-CudaFeedback*:*CudaOp*attend:*CudaOp*demote:*CudaOp*append:*CudaOp*rope:*CudaOp*rms_norm}" 2>&1 | tail -5
  done
fi
