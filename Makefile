# make compare runs the main job, make test the tests. Each sets up .venv by itself; the second run starts in seconds.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
INSTALL := PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check
# The build's tools stay, so that another extra does not compile everything again.
BUILD_TOOLS := scikit-build-core ninja cmake

.PHONY: help compare bench docs test test-lab test-all mutations gpu-test sanitize lint format wheel clean

help:
	@echo "make compare   train every map on the bundled digits and write build/compare/report.html"
	@echo "make bench     measure every map, loss and sum beside torch, entmax and scipy, for benchmarks/ and their pages; CASES=... others:"
	@echo "               attention, heads, graph, ranks, dask (softmaxima bench --help)"
	@echo "make docs      write what README.md and docs/ show of studies, maps and benchmarks, from the numbers that were saved;"
	@echo "               ARGS=--list tells what there is, and ARGS='gallery --run' runs one again"
	@echo "make test      run the tests of the library, each property on a few examples"
	@echo "make test-lab  run those of the command line, the comparisons and the benchmarks"
	@echo "make test-all  run those too that take long, and each property on many examples"
	@echo "make mutations plant faults one at a time, and see that tests find each, in an hour; ARGS='--sample 2' for two of them"
	@echo "make gpu-test  run what holds of the GPU kernels on the GPU, or without one in Triton's interpreter"
	@echo "make sanitize  random calls of the native kernels under the address and undefined-behaviour sanitizers"
	@echo "make lint      ruff and pyright, clang-format and clang-tidy"
	@echo "make wheel     build this platform's wheel into dist/ and try it in an empty environment"
	@echo "make format    let ruff and clang-format format and fix"
	@echo "What writes to docs/ or the README draws its pictures with Chromium, the system's package chromium."

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

NATIVE := CMakeLists.txt $(wildcard csrc/*.* csrc/python/*.*)

# The library and the lab; `compare` is the lab alone, with what it needs.
$(INSTALLED)-%: pyproject.toml lab/pyproject.toml constraints.txt $(NATIVE) $(BIN)/python
	$(INSTALL) $(BUILD_TOOLS)
	$(INSTALL) --no-build-isolation --editable $(if $(filter compare,$*),.,".[$*]") --editable $(if $(filter test,$*),"lab[test]",lab)
	@touch $@

compare: $(INSTALLED)-compare
	$(if $(findstring --resume,$(ARGS)),,rm -rf build/compare)
	$(BIN)/softmaxima compare --out build/compare $(ARGS)

CASES ?= maps
bench: $(INSTALLED)-test
	for group in $(CASES); do $(BIN)/softmaxima bench $$group --json benchmarks/$$group-cpu.json || exit 1; done
	$(if $(filter maps,$(CASES)),$(BIN)/softmaxima bench maps --peers torch --neighbours 1 --json benchmarks/maps-cpu-busy.json)
	$(if $(filter heads,$(CASES)),$(BIN)/softmaxima bench heads --dtype bfloat16 --json benchmarks/heads-cpu-bfloat16.json)
	$(BIN)/softmaxima docs bench

docs: $(INSTALLED)-test
	$(BIN)/softmaxima docs $(ARGS)

test: $(INSTALLED)-test
	$(BIN)/python -m pytest --numprocesses auto tests src $(ARGS)

test-lab: $(INSTALLED)-test
	$(BIN)/python -m pytest --numprocesses auto lab/tests lab/src $(ARGS)

mutations: $(INSTALLED)-test
	$(BIN)/python tests/mutations/run.py $(ARGS)

test-all: $(INSTALLED)-test
	$(BIN)/python -m pytest --numprocesses auto -m "not compiles" --hypothesis-profile=thorough $(ARGS)

gpu-test: PROFILE ?= thorough
gpu-test: INTERPRET ?= $(if $(wildcard /dev/nvidia0),0,1)
gpu-test: $(INSTALLED)-test
	TRITON_INTERPRET=$(INTERPRET) SOFTMAXIMA_BACKEND=triton $(BIN)/python -m pytest --numprocesses auto -m gpu \
		--hypothesis-profile=$(PROFILE) tests $(ARGS)
ifeq ($(wildcard /dev/nvidia0),)
	$(BIN)/python -m pytest --numprocesses auto -m compiles tests/kernels/test_triton_compiles.py
endif

sanitize: $(INSTALLED)-test
	cmake -S tests/kernels/native -B build/sanitize -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python
	cmake --build build/sanitize --target fuzz --parallel 4
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 build/sanitize/fuzz

CSRC := $(wildcard csrc/*.* csrc/python/*.* tests/kernels/native/*.cpp)

lint: $(INSTALLED)-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/pyright
	$(BIN)/clang-format --dry-run --Werror $(CSRC)
	python=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('include'))"); \
	for file in $(wildcard csrc/*.cpp csrc/python/*.cpp); do \
		$(BIN)/clang-tidy --quiet $$file -- -std=c++17 -O1 -Wall -Wextra -Wno-unknown-pragmas -Wno-unused-parameter -Wno-unused-variable \
			-Icsrc -isystem $$python -DSOFTMAXIMA_ISA=baseline || exit 1; \
	done

format: $(INSTALLED)-lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CSRC)

wheel:
	release/wheel.sh

clean:
	rm -rf $(VENV) build dist
