"""Everything the environment may set."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from recmesh.runtime.errors import InvalidArgument
from recmesh.runtime.settings import Env, ServiceSettings
from recmesh.runtime.tls import Tls
from recmesh.serving.transport.endpoints import Endpoint
from services.gateway.domain.access import is_loopback
from services.gateway.domain.addresses import networks

PREFIX = "RECMESH_"
PEERS = ("jobmaster", "shardsvc", "ckptcache", "brain", "forecaster")
CHILD_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "CUDA_VISIBLE_DEVICES")

MESH_VARIABLES = (
    "RECMESH_API_KEY", "RECMESH_TLS_CERT", "RECMESH_TLS_KEY", "RECMESH_TLS_CA", "RECMESH_TLS_SERVER_NAME",
)  # fmt: skip

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]


class Config(ServiceSettings):
    """gateway's settings; the service's own variables begin with RECMESH_GATEWAY_."""

    storage_uri: str = ""
    """Root of models, code and checkpoints; empty: `storage/` in the data folder."""
    public_api_key: Annotated[SecretStr | None, Env("PUBLIC_API_KEY")] = None
    """What callers of the public API must show; without it the API is open, on loopback only."""
    keys_file: Annotated[Path | None, Env("GATEWAY_KEYS_FILE")] = None
    """API keys with scopes, models, namespaces and rates (YAML)."""
    jwks_file: Annotated[Path | None, Env("GATEWAY_JWKS_FILE")] = None
    """Keys that tokens (JWT) are signed with."""
    jwt_issuer: Annotated[str, Env("GATEWAY_JWT_ISSUER")] = ""
    jwt_audience: Annotated[str, Env("GATEWAY_JWT_AUDIENCE")] = ""
    linger_s: Annotated[float, Field(ge=0, le=300), Env("GATEWAY_LINGER_S")] = 0.0
    """How long it goes on to answer after it was told to end, of RECMESH_DRAIN_S: until balancers know."""
    ready_s: Annotated[float, Field(ge=0), Env("GATEWAY_READY_S")] = 60.0
    """How long after its start it is not ready, at most, because models that served before are being loaded."""
    peer_wait_s: Annotated[float, Field(gt=0, le=300), Env("GATEWAY_PEER_WAIT_S")] = 2.0
    """How long a request waits for the service behind it that is away, such as one that is being replaced."""
    dashboards: dict[str, str] = Field(default_factory=dict)
    """Address of each service's ops page, for links."""
    max_body_bytes: Annotated[Count, Env("GATEWAY_MAX_BODY_BYTES")] = 4 << 20
    max_infer_bytes: Annotated[Count, Env("GATEWAY_MAX_INFER_BYTES")] = 256 << 20
    max_code_bytes: Annotated[Count, Env("GATEWAY_MAX_CODE_BYTES")] = 100 << 20
    max_code_unpacked_bytes: Annotated[Count, Env("GATEWAY_MAX_CODE_UNPACKED_BYTES")] = 512 << 20
    max_code_members: Annotated[Count, Env("GATEWAY_MAX_CODE_MEMBERS")] = 20_000
    infer_timeout_s: Annotated[Seconds, Env("GATEWAY_INFER_TIMEOUT_S")] = 30.0
    max_infer_timeout_s: Annotated[Seconds, Env("GATEWAY_MAX_INFER_TIMEOUT_S")] = 300.0
    load_timeout_s: Annotated[Seconds, Env("GATEWAY_LOAD_TIMEOUT_S")] = 300.0
    inspect_timeout_s: Annotated[Seconds, Env("GATEWAY_INSPECT_TIMEOUT_S")] = 120.0
    """For reading what a model without `model.json` takes and gives."""
    infer_queue: Annotated[Count, Env("GATEWAY_INFER_QUEUE")] = 256
    hns: Annotated[str, Env("GATEWAY_HNS")] = ""
    """Addresses of HNs of other machines, `tcp:host:port`, with commas between them: they run the dense halves of
    models that name no others (`serving.hns`). Empty: an HN is started on this machine."""
    runtime: Annotated[Literal["local", "kubernetes"], Env("GATEWAY_RUNTIME")] = "local"
    """Where CNs and HNs run: as processes of this machine, or as pods."""
    kube_config: Path | None = None
    """A kubeconfig; none: the service account of the pod that this runs in."""
    kube_context: str = ""
    kube_namespace: str = ""
    """Where pods and objects of models are; empty: the pod's own."""
    kube_storage_claim: str = ""
    """A PersistentVolumeClaim that holds `storage_uri`, a path then: pods of models mount it there, to read."""
    kube_service_account: str = ""
    """Of pods of models; no token of it is mounted."""
    kube_user: Annotated[int, Field(ge=1)] = 10001
    kube_grace_s: Annotated[int, Field(ge=20)] = 60
    """Between SIGTERM and SIGKILL of such a pod: another takes its place, and it finishes what is in it."""
    cn_image: Annotated[str, Env("GATEWAY_CN_IMAGE")] = ""
    hn_image: Annotated[str, Env("GATEWAY_HN_IMAGE")] = ""
    hn_cuda_image: Annotated[str, Env("GATEWAY_HN_CUDA_IMAGE")] = ""
    """Of HNs with accelerators (`serving.resources`); empty: `hn_image`."""
    pod_secret: Annotated[str, Env("GATEWAY_POD_SECRET")] = "recmesh"
    """A Secret that holds the mesh's token as `api-key`."""
    pod_tls_secret: Annotated[str, Env("GATEWAY_POD_TLS_SECRET")] = ""
    """A Secret with `tls.crt`, `tls.key` and `ca.crt` of the mesh's authority, for pods of models: needed where this
    gateway has certificates (RECMESH_TLS_*)."""
    pod_tls_name: Annotated[str, Env("GATEWAY_POD_TLS_NAME")] = ""
    """What the certificate in it is issued for; empty: RECMESH_TLS_SERVER_NAME."""
    pod_owner: Annotated[str, Env("GATEWAY_POD_OWNER")] = ""
    """The Deployment with which pods of models go; empty: they have no owner."""
    cn_resources: Annotated[dict[str, dict[str, str]], Env("GATEWAY_CN_RESOURCES")] = Field(
        default_factory=lambda: {"requests": {"cpu": "100m", "memory": "384Mi"}, "limits": {"memory": "2Gi"}}
    )
    """Requests and limits of a CN's pod, as JSON."""
    hn_resources: Annotated[dict[str, dict[str, str]], Env("GATEWAY_HN_RESOURCES")] = Field(
        default_factory=lambda: {"requests": {"cpu": "100m", "memory": "384Mi"}, "limits": {"memory": "2Gi"}}
    )
    objects: Annotated[Literal["off", "kubernetes"], Env("GATEWAY_OBJECTS")] = "off"
    """Whether ModelService objects of Kubernetes become models."""
    objects_all_namespaces: bool = False
    """Objects of all namespaces; else those of `kube_namespace` alone."""
    shared_memory: Annotated[Literal["off", "loopback", "any"], Env("GATEWAY_SHARED_MEMORY")] = "loopback"
    """Who may have tensors read from and written to /dev/shm."""
    functions: Annotated[Path | None, Env("GATEWAY_FUNCTIONS")] = None
    """The folder of code that features' functions of served models may come from; none: they are not run."""
    webhook_networks: Annotated[str, Env("GATEWAY_WEBHOOK_NETWORKS")] = ""
    """Private networks that webhooks may reach, `10.1.0.0/16`, with commas between them; without TLS, too. Empty: none,
    and public addresses by https alone."""
    webhook_ca: Annotated[Path | None, Env("GATEWAY_WEBHOOK_CA")] = None
    """Certificates (PEM) to trust of receivers of webhooks, in place of the system's."""
    webhook_give_up_s: Annotated[Seconds, Env("GATEWAY_WEBHOOK_GIVE_UP_S")] = 24 * 3600.0
    """After an event: for so long it is sent again to a webhook that does not take it."""
    audit_days: Annotated[float, Field(gt=0), Env("GATEWAY_AUDIT_DAYS")] = 400.0
    """How long it is kept who did what."""
    log_partitions: Annotated[Count, Env("GATEWAY_LOG_PARTITIONS")] = 1
    """Of topics of predictions and labels that the gateway makes."""
    log_max_age_s: Annotated[Seconds, Env("GATEWAY_LOG_MAX_AGE_S")] = 7 * 86_400.0
    log_max_bytes: Annotated[Count, Env("GATEWAY_LOG_MAX_BYTES")] = 1 << 30
    rate_step_s: Annotated[Seconds, Env("GATEWAY_RATE_STEP_S")] = 10.0
    scaling_step_s: Annotated[Seconds, Env("GATEWAY_SCALING_STEP_S")] = 10.0
    """How often models with `serving.scaling` are looked at."""

    @model_validator(mode="after")
    def _key_beyond_loopback(self) -> Self:
        for address in (self.http_address, self.rpc_address):
            if not is_loopback(address) and not (self.public_api_key or self.keys_file or self.jwks_file):
                raise ValueError(
                    f"{address} can be reached from other machines: RECMESH_PUBLIC_API_KEY must be set, "
                    "or RECMESH_GATEWAY_KEYS_FILE, or RECMESH_GATEWAY_JWKS_FILE"
                )
        if not is_loopback(self.rpc_address) and self.token is None:
            raise ValueError(
                f"{self.rpc_address} can be reached from other machines, and registers models for the mesh's services: "
                "their token, RECMESH_API_KEY, must be set"
            )
        return self

    @model_validator(mode="after")
    def _what_pods_need(self) -> Self:
        if self.runtime == "local":
            return self
        for name, value in (("CN_IMAGE", self.cn_image), ("HN_IMAGE", self.hn_image)):
            if not value:
                raise ValueError(f"RECMESH_GATEWAY_{name} is not set: it is the image of pods of models")
        if self.token is None:
            raise ValueError("RECMESH_API_KEY is not set: by it gateway and pods of models know each other")
        if self.tls is not None and not (self.pod_tls_secret and self.pod_tls and self.pod_tls.server_name):
            raise ValueError(
                "this gateway has certificates (RECMESH_TLS_*), and pods of models need some: set "
                "RECMESH_GATEWAY_POD_TLS_SECRET, and RECMESH_GATEWAY_POD_TLS_NAME to what they are issued for"
            )
        if self.tls is None and self.pod_tls_secret:
            raise ValueError("RECMESH_GATEWAY_POD_TLS_SECRET needs certificates of this gateway, too (RECMESH_TLS_*)")
        if self.kube_storage_claim and not self.storage_uri.removeprefix("file://").startswith("/"):
            raise ValueError("RECMESH_STORAGE_URI must be a path where RECMESH_KUBE_STORAGE_CLAIM is set")
        return self

    @model_validator(mode="after")
    def _addresses_of_hns(self) -> Self:
        for each in self.hn_addresses:
            try:
                Endpoint.parse(each)
            except InvalidArgument as error:
                raise ValueError(error.message) from None
        return self

    @model_validator(mode="after")
    def _networks_of_webhooks(self) -> Self:
        try:
            networks(self.webhook_networks)
        except ValueError as error:
            raise ValueError(f"webhook_networks: {error}") from None
        if self.webhook_ca is not None and not self.webhook_ca.is_file():
            raise ValueError(f"webhook_ca: {self.webhook_ca} is no file")
        return self

    @property
    def pod_tls(self) -> Tls | None:
        """This gateway's certificates, for connections to pods of models."""
        return self.tls.expecting(self.pod_tls_name) if self.tls else None

    @property
    def hn_addresses(self) -> tuple[str, ...]:
        """Those of `hns`."""
        return tuple(each.strip() for each in self.hns.split(",") if each.strip())

    @property
    def access_key(self) -> str | None:
        """The key that callers must show, in clear; never log it."""
        return self.public_api_key.get_secret_value() if self.public_api_key else None

    @property
    def storage_root(self) -> Path:
        """The storage folder."""
        return (
            Path(self.storage_uri.removeprefix("file://")) if self.storage_uri else self.data_dir / "storage"
        )


def mesh_environment(env: Mapping[str, str]) -> dict[str, str]:
    """What lets a process in at HNs of other machines: the mesh's token, and certificates."""
    return {name: env[name] for name in MESH_VARIABLES if name in env}


def child_environment(env: Mapping[str, str]) -> dict[str, str]:
    """What a model server's process sees: no secrets, one thread, a quiet TensorFlow."""
    kept = {name: env[name] for name in CHILD_VARIABLES if name in env}
    return {
        **kept, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0",
        "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
