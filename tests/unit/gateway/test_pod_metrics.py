"""What Prometheus and the kubelet ask of pods of CNs and HNs."""

from pathlib import Path

import yaml

from recmesh.serving.process import http_tls
from services.gateway.domain.devices import Wish
from services.gateway.runtimes.pods.objects import HTTP_PORT, PodSettings, pod_of

OPERATOR = Path(__file__).parents[3] / "infra" / "monitoring" / "operator" / "pods.yaml"


def test_pods_know_the_key_by_which_they_are_scraped_and_probes_need_none() -> None:
    settings = PodSettings(namespace="n", holder="g", images={"cn": "cn", "hn": "hn"})
    monitors = {each["metadata"]["name"]: each for each in yaml.safe_load_all(OPERATOR.read_text())}
    [endpoint] = monitors["recmesh-serving"]["spec"]["podMetricsEndpoints"]
    credentials = endpoint["authorization"]["credentials"]
    for kind in ("cn", "hn"):
        pod = pod_of([f"recmesh.serving.{kind}"], {}, settings, name="p", fleet="f", kind=kind, wish=Wish())
        [container] = pod["spec"]["containers"]
        asked = {item["name"]: item.get("valueFrom", {}).get("secretKeyRef") for item in container["env"]}
        assert asked["RECMESH_METRICS_KEY"] == {**credentials, "optional": True}
        assert asked["RECMESH_API_KEY"] == {"name": credentials["name"], "key": "api-key"}
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports[endpoint["port"]] == HTTP_PORT and f"0.0.0.0:{HTTP_PORT}" in container["command"]
        for probe in ("readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"] == {"path": "/healthz", "port": "http"}


def test_pods_with_certificates_are_scraped_and_probed_by_https() -> None:
    settings = PodSettings(
        namespace="n", holder="g", images={"cn": "cn", "hn": "hn"}, tls_secret="serving-tls", tls_name="recmesh-serving"
    )
    for kind in ("cn", "hn"):
        pod = pod_of([f"recmesh.serving.{kind}"], {}, settings, name="p", fleet="f", kind=kind, wish=Wish())
        [container] = pod["spec"]["containers"]
        told = http_tls({item["name"]: item["value"] for item in container["env"] if "value" in item})
        assert told is not None and (str(told.cert), str(told.key)) == ("/tls/tls.crt", "/tls/tls.key")
        for probe in ("readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"] == {"path": "/healthz", "port": "http", "scheme": "HTTPS"}
