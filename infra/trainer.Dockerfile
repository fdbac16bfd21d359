# The roles of training jobs: the SDK and one framework, no service.
#   docker build -f infra/trainer.Dockerfile --build-arg FRAMEWORK=tensorflow -t recmesh/trainer-tensorflow .
FROM python:3.11-slim AS build
ARG FRAMEWORK=torch
ARG TORCH_BACKEND=cpu
COPY constraints.txt pyproject.toml README.md /src/
COPY recmesh /src/recmesh
RUN python -m venv /venv && pip install --no-cache-dir uv && uv pip install --no-cache --python /venv/bin/python \
    --torch-backend "$TORCH_BACKEND" -c /src/constraints.txt "/src[$FRAMEWORK]"

FROM python:3.11-slim
RUN useradd --uid 10001 --create-home recmesh
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
WORKDIR /home/recmesh
USER recmesh
# Role, job and addresses come from the pod's environment.
CMD ["python", "-m", "recmesh.trainer"]
