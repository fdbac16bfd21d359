# Build from the repository root: docker build -f infra/forecaster.Dockerfile -t recmesh/forecaster .
# With --build-arg EXTRAS=forecaster,torch it has the transformer, too, and some gigabytes more.
FROM python:3.11-slim AS build
ARG EXTRAS=forecaster
COPY constraints.txt pyproject.toml README.md /src/
COPY recmesh /src/recmesh
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir -c /src/constraints.txt "/src[${EXTRAS}]"

FROM python:3.11-slim
RUN useradd --uid 10001 --create-home recmesh && mkdir /data && chown recmesh /data
COPY --from=build /venv /venv
COPY services/__init__.py /app/services/
COPY services/forecaster /app/services/forecaster
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 \
    RECMESH_DATA_DIR=/data RECMESH_RPC_ADDRESS=0.0.0.0:7000 RECMESH_HTTP_ADDRESS=0.0.0.0:8000
WORKDIR /app
USER recmesh
EXPOSE 7000 8000
CMD ["python", "-m", "services.forecaster"]
