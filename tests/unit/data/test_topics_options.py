"""What a specification may tell the clients of topics, and what it may not."""

import re
from pathlib import Path
from typing import Any

import pytest

from recmesh.data.topics import topic_of
from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.dataset import KAFKA_OPTION_FAMILIES, KAFKA_OPTIONS, StreamSource

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "data.md"


def _kafka(**options: str) -> dict[str, Any]:
    return {
        "kafka": "clicks", "servers": "kafka:9092", "start": "earliest", "types": {"item": "int"},
        "options": {name.replace("_", "."): value for name, value in options.items()},
    }


def _jetstream(servers: str) -> dict[str, Any]:
    return {"jetstream": "clicks", "servers": servers, "start": "earliest", "types": {"item": "int"}}


def _refused(value: dict[str, Any]) -> list[str]:
    with pytest.raises(InvalidArgument) as refused:
        StreamSource.parse(value)
    return [violation.path for violation in refused.value.violations]


def test_what_is_needed_to_reach_a_locked_broker_may_be_given() -> None:
    StreamSource.parse(_kafka(
        security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512", sasl_username="ads",
        sasl_password="${RECMESH_TOPICS_PASSWORD}", ssl_ca_pem="-----BEGIN CERTIFICATE-----", fetch_max_bytes="1048576",
        ssl_key_pem="${RECMESH_TOPICS_KEY}", ssl_key_password="${RECMESH_TOPICS_KEY_PASSWORD}", client_id="ads",
        socket_timeout_ms="30000",
    ))


@pytest.mark.parametrize("name", [
    "plugin.library.paths", "ssl.ca.location", "ssl.key.location", "ssl.keystore.location", "ssl.engine.location",
    "isolation.level", "enable.auto.commit", "enable.partition.eof", "auto.offset.reset", "group.id",
    "group.protocol", "bootstrap.servers", "sasl.kerberos.kinit.cmd", "sasl.oauthbearer.token.endpoint.url", "debug",
    "statistics.interval.ms", "nonsense",
])
def test_settings_that_load_code_read_files_or_change_what_is_read_are_refused_by_name(name: str) -> None:
    assert _refused(_kafka(**{name: "x"})) == [f"options.{name}"]


@pytest.mark.parametrize("name", ["sasl.password", "ssl.key.pem", "ssl.key.password"])
@pytest.mark.parametrize("value", ["hidden", "hidden${RECMESH_TOPICS_X}", ""])
def test_secrets_in_plain_are_refused_and_not_repeated(name: str, value: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        StreamSource.parse(_kafka(**{name: value}))
    assert [violation.path for violation in refused.value.violations] == [f"options.{name}"]
    assert "hidden" not in str(refused.value)


def test_sasl_needs_a_mechanism_that_runs_nothing() -> None:
    assert _refused(_kafka(security_protocol="sasl_plaintext")) == ["options.sasl.mechanism"]
    for mechanism in ("GSSAPI", "OAUTHBEARER"):
        assert _refused(_kafka(security_protocol="SASL_SSL", sasl_mechanism=mechanism)) == ["options.sasl.mechanism"]


@pytest.mark.parametrize(("value", "path"), [
    (_kafka(client_id="${RECMESH_NATS_TOKEN}"), "options.client.id"),
    (_kafka(sasl_password="${AWS_SECRET_ACCESS_KEY}"), "options.sasl.password"),
    (_kafka() | {"servers": "${RECMESH_SECRET}.example.org:9092"}, "servers"),
    (_jetstream("nats://${PATH}:4222"), "servers"),
])
def test_variables_of_others_are_refused(value: dict[str, Any], path: str) -> None:
    assert _refused(value) == [path]
    unchecked = StreamSource.model_construct(**{"options": {}, "kafka": "", "jetstream": ""} | value)
    env = {"RECMESH_NATS_TOKEN": "hidden", "AWS_SECRET_ACCESS_KEY": "hidden", "RECMESH_SECRET": "hidden", "PATH": "h"}
    with pytest.raises(InvalidArgument) as refused:
        topic_of(unchecked, env)
    assert [violation.path for violation in refused.value.violations] == [f"data.source.{path}"]
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("servers", [
    "nats://ads:hidden@nats:4222", "nats://hidden@nats:4222", "nats://nats:4222,tls://ads:hidden@nats:4223",
    "nats://ads:hidden${RECMESH_TOPICS_X}@nats:4222", "nats://ads:hid@den@nats:4222",
])
def test_passwords_in_addresses_are_variables(servers: str) -> None:
    assert _refused(_jetstream(servers)) == ["servers"]
    StreamSource.parse(_jetstream("nats://ads:${RECMESH_TOPICS_NATS}@nats:4222,nats://${RECMESH_TOPICS_NATS}@other:4222"))


def test_a_variable_that_is_not_set_is_named() -> None:
    source = StreamSource.parse(_kafka(client_id="${RECMESH_TOPICS_CLIENT}"))
    with pytest.raises(InvalidArgument, match="RECMESH_TOPICS_CLIENT is not set") as refused:
        topic_of(source, {})
    assert refused.value.violations[0].path == "data.source.options.client.id"


def test_the_documentation_lists_what_may_be_given() -> None:
    listed = next(part for part in re.split(r"\n(?=- \*\*)", DOCS.read_text()) if part.startswith("- **Options**"))
    assert set(re.findall(r"`([a-z.]+\.[a-z.]+)`", listed)) == KAFKA_OPTIONS
    assert {f"{family}*" for family in KAFKA_OPTION_FAMILIES} == set(re.findall(r"`([a-z]+\.\*)`", listed))
