# make compare runs the main job, make test the tests. Each sets up .venv by itself; the second run starts in seconds.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
INSTALL := PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check
# The build's tools stay, so that another extra does not compile everything again.
BUILD_TOOLS := scikit-build-core ninja cmake

.PHONY: help compare compare-attention compare-heads compare-estimators bench gallery test test-lab test-all mutations gpu-test sanitize lint format wheel readme confirmation logsumexp temperature robust private policy graph-study clean

help:
	@echo "make compare   train every map on the bundled digits and write build/compare/report.html"
	@echo "make bench     measure every map, loss and sum beside torch, entmax and scipy, for benchmarks/ and the README; CASES=... others:"
	@echo "               attention, heads, graph, ranks, dask (softmaxima bench --help), for benchmarks/ and their pages"
	@echo "make gallery    run the examples of docs/gallery.md, whose truth is known, in a minute"
	@echo "make robust     train digits in every way and attack them, for docs/robust.md, in 8 minutes"
	@echo "make private    measure what privacy, secret shares and clients that send little cost, for docs/private.md, in 4 minutes"
	@echo "make policy     learn tasks at many temperatures, and mixtures of maps on ten tables, for docs/policy.md and docs/mixture.md"
	@echo "make graph-study  train graph networks with every aggregation, for docs/graph.md, in 9 minutes"
	@echo "make compare-attention  train a Transformer with every map in softmax's place, for docs/attention.md"
	@echo "make compare-heads  train a network with every last layer and its loss, for docs/heads.md"
	@echo "make compare-estimators  train a categorical VAE with every estimator of its gradient, for docs/sampling.md"
	@echo "make test      run the tests of the library, each property on a few examples"
	@echo "make test-lab  run those of the command line, the comparisons and the benchmarks"
	@echo "make test-all  run those too that take long, and each property on many examples"
	@echo "make mutations plant faults one at a time, and see that tests find each, in an hour; ARGS='--sample 2' for two of them"
	@echo "make gpu-test  run what holds of the GPU kernels on the GPU, or without one in Triton's interpreter"
	@echo "make sanitize  random calls of the native kernels under the address and undefined-behaviour sanitizers"
	@echo "make lint      ruff and pyright, clang-format and clang-tidy"
	@echo "make wheel     build this platform's wheel into dist/ and try it in an empty environment"
	@echo "make readme    run the comparison again for the README's picture and table"
	@echo "make confirmation  measure how often other data confirm what the comparison recommends, for docs/compare.md"
	@echo "make logsumexp measure precision, bounds, estimators and their times again for docs/logsumexp.md"
	@echo "make temperature draw temperatures, and measure estimators of gradients again, for docs/temperature.md and docs/sampling.md"
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
	$(BIN)/python docs/update.py bench

policy: $(INSTALLED)-test
	$(BIN)/python docs/update.py policies mixture

graph-study: $(INSTALLED)-test
	$(BIN)/python docs/update.py graph-study

gallery: $(INSTALLED)-test
	$(BIN)/python docs/update.py gallery

robust: $(INSTALLED)-test
	$(BIN)/python docs/update.py robustness

private: $(INSTALLED)-test
	$(BIN)/python docs/update.py private shared federated

compare-attention: $(INSTALLED)-compare
	$(BIN)/python docs/update.py compare-attention

compare-heads: $(INSTALLED)-test
	$(BIN)/python docs/update.py compare-heads

compare-estimators: $(INSTALLED)-test
	$(BIN)/python docs/update.py compare-estimators

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

readme: $(INSTALLED)-compare
	$(BIN)/python docs/update.py maps compare

confirmation: $(INSTALLED)-compare
	$(BIN)/python docs/update.py confirmation

logsumexp: $(INSTALLED)-test
	$(BIN)/python docs/update.py precision bounds estimators times

temperature: $(INSTALLED)-test
	$(BIN)/python docs/update.py temperature calibration sampling

clean:
	rm -rf $(VENV) build dist
