# One line per target: `make help`.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
PROTO_BIN := .venv-proto/bin
PROTO_STAMP := .venv-proto/.set-up
PROTOC = PATH="$(CURDIR)/$(PROTO_BIN):$$PATH" $(PROTO_BIN)/python -m grpc_tools.protoc -Irecmesh/pb=proto
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 1); echo $$((n < 2 ? n : 2)))

export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup check check-proto test test-long test-cluster test-node test-yarn demo up down proto bench

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv with everything installed (again when the pins change)

check: $(STAMP) check-proto  ## lint, types, layers, generated stubs
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(STAMP)  ## run the tests (all but those marked slow or long); ARGS="-k name" narrows
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not long" $(ARGS)

test-long: $(STAMP)  ## run those that take longest: faults, scaling, updates, loans on whole meshes
	$(BIN)/python -m pytest -n $(WORKERS) -m "long and not slow" $(ARGS)

test-cluster: $(STAMP)  ## the mesh in pods of a real Kubernetes node (needs root; docker for images)
	$(BIN)/python -m pytest -n 0 -s tests/cluster $(ARGS)

test-node: $(STAMP)  ## jobmaster's controller against a real Kubernetes node, and nodes that go away (needs root)
	$(BIN)/python -m pytest -n 0 -m slow tests/integration/jobmaster/test_kubernetes_node.py tests/integration/jobmaster/test_kubernetes_api_faults.py $(ARGS)

test-yarn: $(STAMP)  ## roles in containers of a real YARN (needs Java)
	$(BIN)/python -m pytest -n 0 -m "slow or not slow" -k yarn tests/contract/test_controllers.py tests/integration/jobmaster/test_yarn.py tests/e2e/test_yarn.py $(ARGS)

demo: $(STAMP)  ## train, break, mend and serve a model on real data; KEEP=1 leaves the mesh up
	$(BIN)/python -m examples.demo

up: $(STAMP)  ## start the mesh on this machine
	$(BIN)/recmesh up

down: $(STAMP)  ## stop the mesh
	$(BIN)/recmesh down

proto: $(PROTO_STAMP)  ## generate recmesh/pb from proto/
	$(PROTOC) --python_out=. --grpc_python_out=. --mypy_out=quiet:. --mypy_grpc_out=quiet:. proto/*.proto

bench: $(STAMP)  ## measure: NAME=train ARGS="--quick --json"; without NAME lists the benchmarks
	$(BIN)/python -m bench $(NAME) $(ARGS)

check-proto: $(PROTO_STAMP)  ## fail when recmesh/pb differs from what proto/ generates
	@out=$$(mktemp -d) && trap 'rm -rf "$$out"' EXIT && \
	$(PROTOC) --python_out="$$out" --grpc_python_out="$$out" --mypy_out="quiet:$$out" --mypy_grpc_out="quiet:$$out" proto/*.proto && \
	diff -r -x __init__.py -x __pycache__ "$$out/recmesh/pb" recmesh/pb || \
	{ echo "recmesh/pb is not what proto/ generates: run 'make proto'" >&2; exit 1; }

$(STAMP): pyproject.toml constraints.txt infra/setup
	PYTHON="$(PYTHON)" bash infra/setup $(VENV)
	@touch $@

# The generator's version is a floor for every user's protobuf, so it lives apart from the project's own.
$(PROTO_STAMP): Makefile
	$(PYTHON) -m venv .venv-proto
	$(PROTO_BIN)/python -m pip install -q grpcio-tools==1.71.2 mypy-protobuf==3.7.0 "setuptools<81"
	@touch $@
