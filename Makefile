# Two commands on a fresh machine: make report, make test. Both install what they need into .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
export HF_HUB_DISABLE_TELEMETRY := 1

STUDIES := coreference by_hand pipeline lineages induction block positions cache position atlas

.PHONY: report report-full compatibility cost test test-browser lint format clean

report: $(VENV)/run.stamp  ## quick profile of the default studies on real models, into reports/quick/
	$(BIN)/probe run $(STUDIES) --out reports/quick

report-full: $(VENV)/run.stamp  ## the committed reports; GAP, WINOBIAS, BLIMP, LIU=path/to/data add those on it
	$(BIN)/probe run $(STUDIES) lost_in_the_middle retrieval haystack induction_heads published_heads residual --profile full --out reports
	$(BIN)/probe run atlas --model smollm2 --model minilm --profile full --out reports
	$(if $(GAP),$(BIN)/probe run coreference_gap coreference_heads --profile full --data $(GAP) --out reports)
	$(if $(WINOBIAS),$(BIN)/probe run gender_bias --profile full --data $(WINOBIAS) --out reports)
	$(if $(BLIMP),$(BIN)/probe run agreement_blimp --profile full --data $(BLIMP) --out reports)
	$(if $(LIU),$(BIN)/probe run key_value_file --profile full --data $(LIU) --out reports)

compatibility: $(VENV)/run.stamp  ## check every text architecture of transformers; writes reports/compatibility
	HF_HUB_OFFLINE=1 $(BIN)/python -m probe.compatibility

cost: $(VENV)/run.stamp  ## what reading a model costs, beside the peers; on a quiet machine, half an hour
	$(PIP) -e '.[lens,peers]'
	$(BIN)/python -m studies.cost --profile full --out reports/cost

test: $(VENV)/dev.stamp  ## everything but the tests that need a browser
	HF_HUB_OFFLINE=1 $(BIN)/pytest -m "not browser"

test-browser: $(VENV)/dev.stamp  ## the report pages in Chromium
	HF_HUB_OFFLINE=1 $(BIN)/pytest -m browser

lint: $(VENV)/dev.stamp  ## style and types
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: $(VENV)/dev.stamp
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

clean:
	rm -rf $(VENV) reports/quick .pytest_cache .mypy_cache .ruff_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/run.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e .
	@touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[dev]'
	@touch $(VENV)/run.stamp $@
