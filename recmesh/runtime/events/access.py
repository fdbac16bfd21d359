"""Events about those who use a mesh: what they did (audit), and their webhooks."""

from recmesh.runtime.events.types import EVENTS, EventType, Payload


class AuditRecorded(Payload):
    """Somebody asked for a change, and was let or was refused. Reading and inference are not recorded."""

    actor: str
    """Name of the key or token; of an event its `source`, as its sender says; `unknown` without a credential."""
    verb: str
    """submit | scale | stop | delete | register | ..."""
    kind: str
    """job | model | dataset | code | webhook | ..."""
    object: str = ""
    """Its id, where it is known."""
    outcome: str
    """done | refused | failed"""
    reason: str = ""
    """A word that programs may compare; empty when it was done."""
    via: str
    """rest | event | rpc"""
    request_id: str = ""
    """As in the answer, and in the service's log; of an event its source/id."""
    peer: str = ""
    """Address of the caller, as the service sees it: perhaps a proxy's."""
    status: int = 0
    """Of HTTP; 0 elsewhere."""


class WebhookTested(Payload):
    """A test of a webhook; sent to its address alone, never to the bus."""

    webhook: str
    by: str = ""


class WebhookDisabled(Payload):
    """A webhook is sent nothing any more until it is made again: its receiver answered 410 Gone."""

    webhook: str
    reason: str


AUDIT_RECORDED = EVENTS.add(
    EventType("audit.recorded", "gateway", AuditRecorded, "Who did what: a change was asked for, by REST or event.")
)
WEBHOOK_TESTED = EVENTS.add(EventType("webhook.tested", "gateway", WebhookTested, "A webhook is tried out."))
WEBHOOK_DISABLED = EVENTS.add(EventType("webhook.disabled", "gateway", WebhookDisabled, "A webhook was given up."))
