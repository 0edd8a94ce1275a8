# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0

# The text reaches the demo through the environment, as it is: quotes, dollar signs and all.
export DEMO_PROMPT := $(value PROMPT)
unexport PROMPT

.DEFAULT_GOAL := help
.PHONY: help demo example build test test-all lint format clean

help: ## List the targets
	@echo 'make TARGET [PYTHON=python3.12]'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 14

demo: ## Install, build, start the node, ask it; PROMPT="..." asks your own
	@scripts/setup.sh run
	@scripts/demo.sh

example: ## Plans become goals of a mock robot; PROMPT="..." gives your own errand
	@scripts/setup.sh run
	@scripts/example.sh

build: ## Install what is needed into .venv and build the package into .ws
	@scripts/setup.sh run

test: ## Fast tests, ruff and mypy
	@scripts/setup.sh dev
	@scripts/check.sh lint
	@scripts/check.sh fast

test-all: test ## The slow tests too
	@scripts/check.sh slow

lint: ## ruff and mypy
	@scripts/setup.sh dev
	@scripts/check.sh lint

format: ## Sort imports and format the Python files
	@scripts/setup.sh dev
	@scripts/check.sh format

clean: ## Remove all that make made
	rm -rf .venv .ws .pytest_cache .mypy_cache .ruff_cache .hypothesis
