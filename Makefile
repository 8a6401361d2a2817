# Groundwork: `make lab` makes a small fleet on this machine and serves a model on it, `make test` proves the project.
# Every target does its own set-up and may be repeated.

SHELL := /bin/bash
CACHE := $(or $(GROUNDWORK_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/groundwork)
export GROUNDWORK_CACHE := $(CACHE)
BIN := .venv/bin
WITH_PODMAN = env $$([ -f $(CACHE)/containers.conf ] && echo CONTAINERS_CONF=$(CACHE)/containers.conf) PATH=$(CURDIR)/$(BIN):$$PATH
PYTHON_FILES = lab library module_utils filter_plugins tools roles molecule tests
TYPED = lab module_utils filter_plugins library tools tests/standins tests/gpu $(sort $(dir $(wildcard roles/*/files/*.py)))

.DEFAULT_GOAL := help
.PHONY: venv help lab lab-hosts lab-down test lint unit molecule docs lock clean acceptance

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

venv: .venv/.complete ## Make the virtual environment only

lab: lab-hosts ## Make lab hosts on this machine, run the whole site on them, send a request (again: seconds)
	@$(WITH_PODMAN) ansible-playbook -i inventories/lab playbooks/site.yml \
	  $(if $(TORCH),--extra-vars torchserve_torch=$(TORCH))
	@$(WITH_PODMAN) ansible-playbook -i inventories/lab lab/request.yml

lab-hosts: .venv/.complete ## Make the lab hosts only, with nothing on them
	@$(BIN)/python lab/prepare.py prepare
	@$(WITH_PODMAN) ansible-playbook -i inventories/lab lab/create.yml

lab-down: .venv/.complete ## Remove the lab: containers, network, images
	@if command -v podman >/dev/null; then $(WITH_PODMAN) ansible-playbook -i inventories/lab lab/destroy.yml; fi
	@$(BIN)/python lab/prepare.py remove

test: lint unit molecule ## Prove the project: lint, unit tests, every Molecule scenario

lint: .venv/.complete ## Check style and types
	$(BIN)/yamllint --strict .
	PATH=$(CURDIR)/$(BIN):$$PATH ansible-lint --offline -q
	$(BIN)/ruff check $(PYTHON_FILES)
	$(BIN)/ruff format --check $(PYTHON_FILES)
	$(BIN)/mypy $(TYPED)
	$(BIN)/shellcheck .ci/run $(wildcard tools/*.sh tests/gpu/*.sh)

unit: .venv/.complete ## Run the unit tests (seconds, no root)
	PATH=$(CURDIR)/$(BIN):$$PATH pytest --numprocesses auto

molecule: .venv/.complete ## Run all scenarios, or some: make molecule ROLE=torchserve
	@$(BIN)/python lab/prepare.py prepare
	@$(WITH_PODMAN) python tools/scenarios.py $(ROLE)

acceptance: .venv/.complete ## Drive the lab from nothing to nothing, as a user would; removes a running lab
	$(WITH_PODMAN) pytest -rP --no-header tests/lab

docs: .venv/.complete ## Write each role's defaults and option table from its argument_specs
	@$(BIN)/python tools/role_docs.py

lock: .venv/.complete ## Renew the hashed lock files from their .in files
	@for file in requirements.in roles/*/files/python/*.in; do \
	  version=$$([ "$$file" = requirements.in ] && echo 3.11 || echo 3.10); \
	  $(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version $$version --no-emit-index-url \
	    --no-header --no-annotate --upgrade $$file -o $${file%.in}.lock || exit 1; done

clean: ## Remove the virtual environment and all caches of the project
	@python3 lab/machines.py remove
	rm -rf .venv .cache "$(CACHE)"/images "$(CACHE)"/vm "$(CACHE)"/wheelhouse "$(CACHE)"/containers.conf

.venv/.complete: requirements.lock requirements.yml tools/bootstrap.sh
	@tools/bootstrap.sh
