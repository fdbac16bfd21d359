# Build from the repository root. A serving image names the frameworks of its models:
#   docker build -f infra/gateway.Dockerfile --build-arg FRAMEWORKS=torch,tensorflow -t recmesh/gateway .
FROM python:3.11-slim AS build
ARG FRAMEWORKS=torch
ARG TORCH_BACKEND=cpu
COPY constraints.txt pyproject.toml README.md /src/
COPY recmesh /src/recmesh
RUN python -m venv /venv && pip install --no-cache-dir uv && uv pip install --no-cache --python /venv/bin/python \
    --torch-backend "$TORCH_BACKEND" -c /src/constraints.txt "/src[gateway,$FRAMEWORKS]"

FROM python:3.11-slim
RUN useradd --uid 10001 --create-home recmesh && mkdir /data && chown recmesh /data
COPY --from=build /venv /venv
COPY services/__init__.py /app/services/
COPY services/gateway /app/services/gateway
# Beyond loopback gateway refuses to start without RECMESH_PUBLIC_API_KEY and RECMESH_API_KEY: give them at run time, never here.
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 \
    RECMESH_DATA_DIR=/data RECMESH_RPC_ADDRESS=0.0.0.0:7000 RECMESH_HTTP_ADDRESS=0.0.0.0:8000
WORKDIR /app
USER recmesh
EXPOSE 7000 8000
CMD ["python", "-m", "services.gateway"]
