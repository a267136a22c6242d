# The only commands to remember. Each installs what it needs first (scripts/bootstrap is silent when nothing is missing).
.PHONY: all demo test bench quality fuzz format lint
BUILD := build
JOBS := $(shell nproc)

all: $(BUILD)/build.ninja
	@cmake --build $(BUILD) -j $(JOBS)

$(BUILD)/build.ninja: CMakeLists.txt CMakePresets.json
	@scripts/bootstrap
	@cmake --preset release

demo: all
	@scripts/demo

test: all
	@scripts/test

bench: all
	@scripts/bench

quality: all
	@scripts/quality

format:
	@git ls-files '*.h' '*.cpp' '*.cc' | xargs clang-format -i

lint: all
	@scripts/lint

fuzz:
	@scripts/fuzz
