# Everything that a newcomer needs is `make report` and `make test`; both set up .venv by themselves.

PYTHON ?= python3
VENV   := .venv
VENDOR := .venv-vendor
BIN    := $(VENV)/bin
# Without bytecode: Python makes it of what is imported, a small part of what is installed. Where it is told to write
# none, every process would compile torch and transformers anew, seconds each.
export PYTHONDONTWRITEBYTECODE :=
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
OUT    := out/deepseek-ocr

CERTIFIED := deepseek-ocr llama-3.1-8b qwen3-30b-a3b deepseek-v3 vit-l-16
# Of proofs over meshes, the options are in the name: MODEL--tp=2--dp=2.
SPREAD := llama-3.1-8b--tp=4--dp=2 deepseek-v3--tp=2--dp=4--ep=8

.DEFAULT_GOAL := help
.PHONY: help vendor-env browser docs report test test-thorough lint types imports wheel unit test-versions baselines recorded certificates bench gpu-check clean

help:  ## Show this text
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV)/trace: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable ".[trace]"
	@touch $@

$(VENV)/dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable ".[dev]"
	@touch $(VENV)/trace $@

# The Python package without its kernels: no CUDA toolkit, some seconds. Not through pip's cache, where others would
# find it in place of a whole one. Where it cannot be installed the tests that need it are skipped, and say so.
$(VENV)/flash: $(VENV)/dev
	@FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE FLASH_ATTENTION_FORCE_BUILD=TRUE \
		$(PIP) --no-build-isolation --no-cache-dir --no-deps flash-attn && touch $@ \
		|| echo "skipped: flash-attn could not be installed, so its tests are skipped"

# The sources of its kernels, where there is a compiler for them and a GPU to run them: gpu-check builds those it needs.
$(VENV)/flash-sources: $(VENV)/flash
	@if command -v nvcc >/dev/null && nvidia-smi >/dev/null 2>&1; then \
		FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE $(BIN)/python -m pip download --quiet --no-deps --no-build-isolation \
			--no-binary flash-attn --constraint constraints.txt --dest $@ flash-attn; \
	else echo "no nvcc and GPU: FlashAttention is not run"; fi || true

# A browser for the tests of pages: Debian's, where packages may be installed. Elsewhere these tests are skipped, and
# say so; where CI is set they fail.
$(VENV)/browser: $(VENV)/dev
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && export DEBIAN_FRONTEND=noninteractive \
		&& apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core >/dev/null; }; \
	command -v chromium >/dev/null && touch $@ \
		|| echo "skipped: chromium could not be installed, so the tests of pages in a browser are skipped"

# Packages of models, for their page alone: apart, since transformers builds other models where it finds them. Without
# what they ask for, which is here. Where they cannot be had the page's tests are skipped, and say so.
$(VENV)/vision/ready: $(VENV)/dev
	@$(PIP) --no-deps --upgrade --target $(VENV)/vision torchvision timm diffusers && touch $@ \
		|| echo "skipped: torchvision, timm or diffusers could not be installed, so the tests of their page are skipped"

browser: $(VENV)/browser  ## Install what tests of pages need: Debian's chromium (as root)

$(VENV)/docs: $(VENV)/trace
	$(PIP) --editable ".[docs]"
	@touch $@

docs: $(VENV)/docs  ## Build the documentation as a site that opens offline, with real reports: out/site/index.html
	$(BIN)/costproof report deepseek-ocr --output out/gallery/deepseek-ocr
	$(BIN)/costproof report docs/examples/my_model.py:make --output out/gallery/my_model
	$(BIN)/costproof diff deepseek-ocr@gundam:2x2 deepseek-ocr@gundam:3x3 --output out/gallery/change.html
	cd out/gallery && cp deepseek-ocr/report.html deepseek-ocr.html && cp my_model/report.html my_model.html
	$(BIN)/python -m docs.site.nav
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

report: $(VENV)/trace  ## Count DeepSeek-OCR three ways, reconcile, write out/deepseek-ocr
	$(BIN)/costproof report deepseek-ocr --output $(OUT)
	@printf '%s\n' '' 'Next:' \
		'  open $(OUT)/report.html in a browser' \
		'  $(BIN)/costproof explain deepseek-ocr projector    # a stage formula by formula' \
		'  $(BIN)/costproof report FILE.py:FUNCTION           # a model of your own' \
		'  . $(BIN)/activate                                  # then it is costproof alone'

vendor-env: $(VENDOR)/ready  ## An environment of its own for snapshots of DeepSeek-OCR (transformers 4.46.3)

$(VENDOR)/ready: pyproject.toml constraints-vendor.txt
	$(PYTHON) -m venv $(VENDOR)
	$(VENDOR)/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints-vendor.txt --editable ".[vendor]"
	@touch $@

test: $(VENV)/dev  ## All checks: style, types, import rules, wheel, tests
	@$(MAKE) --no-print-directory --jobs 2 wheel $(VENV)/flash $(VENV)/browser $(VENV)/vision/ready imports lint
	@$(MAKE) --no-print-directory --jobs 2 types unit

lint: $(VENV)/dev  ## Style (ruff)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev  ## Types (mypy --strict on src, tests, benchmarks)
	$(BIN)/mypy

imports: $(VENV)/dev  ## Who may import whom (import-linter)
	$(BIN)/lint-imports

wheel: $(VENV)/dev  ## Build sdist, from it the wheel, and check it: costproof alone, the core without torch
	$(BIN)/python -m tests.wheel_check

unit: $(VENV)/dev $(VENV)/flash $(VENV)/browser $(VENV)/vision/ready  ## Tests (pytest)
	$(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

test-thorough: $(VENV)/dev $(VENV)/flash $(VENV)/browser $(VENV)/vision/ready  ## The tests that `make test` leaves out for time, and all layers
	$(BIN)/pytest --numprocesses 2 --dist worksteal --thorough --workloads 4 -m "slow or thorough"

test-versions:  ## The same commands under the oldest, the pinned and the newest versions (network, gigabytes)
	$(PYTHON) -m tests.versions

baselines: $(VENV)/dev  ## Write baselines/ anew, after a change of numbers that is meant
	$(BIN)/python -m tests.baselines

recorded: $(VENV)/dev  ## Write the record of which metrics each source gives of every family anew, or of FAMILIES="a b"
	$(BIN)/python -m tests.recorded $(FAMILIES)

certificates: $(VENV)/dev  ## Prove five models and two meshes anew, twenty minutes: docs/certificates
	for name in $(CERTIFIED); do \
	    $(BIN)/costproof prove $$name -o out/certificates/$$name || exit 1; \
	    for end in json md; do cp out/certificates/$$name/certificate.$$end docs/certificates/$$name.$$end; done; \
	done
	for name in $(SPREAD); do \
	    $(BIN)/costproof prove $$(echo $$name | sed 's/--/ --/g') --samples 4 -o out/certificates/$$name || exit 1; \
	    for end in json md; do cp out/certificates/$$name/certificate.$$end docs/certificates/$$name.$$end; done; \
	done

gpu-check: $(VENV)/dev $(VENV)/flash $(VENV)/flash-sources  ## Counts, times and peaks on the GPU of this machine, or on its processor: docs/gpu.md, docs/gpu-*.csv
	$(BIN)/python -m benchmarks.gpu --flash-attn "$$(ls -d $(VENV)/flash-sources/*.tar.gz 2>/dev/null)"

bench: $(VENV)/dev  ## Benchmarks: time and memory beside other tools, mutations, derived formulas
	$(BIN)/python -m benchmarks.report
	$(BIN)/python -m benchmarks.mutations
	$(BIN)/python -m benchmarks.rule_mutations
	$(BIN)/python -m benchmarks.proof_mutations
	$(BIN)/python -m benchmarks.claims
	$(BIN)/python -m benchmarks.false_claims
	$(BIN)/python -m benchmarks.fuzz
	$(BIN)/python -m benchmarks.fuzz_files
	$(BIN)/python -m benchmarks.fuzz_configs
	$(BIN)/python -m benchmarks.faults
	$(BIN)/python -m benchmarks.derive
	$(BIN)/python -m benchmarks.sweep
	$(BIN)/python -m benchmarks.attribution
	$(BIN)/python -m benchmarks.peaks
	$(BIN)/python -m benchmarks.compile
	$(BIN)/python -m benchmarks.families
	$(BIN)/python -m benchmarks.zoo

clean:  ## Remove what the other targets made
	rm -rf $(VENV) $(VENDOR) .venv-versions out dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
