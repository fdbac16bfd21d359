"""What Prometheus and the kubelet ask of pods of CNs and HNs."""

from pathlib import Path

import yaml

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
