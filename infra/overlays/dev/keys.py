"""Makes the Secret `recmesh` with fresh keys, unless it is there: runs in the cluster, with the right to create."""

import json
import os
import secrets
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def main() -> None:
    """Ends with 0 when the Secret is there."""
    valkey = secrets.token_hex(16)
    values = {
        "api-key": secrets.token_hex(24),
        "public-api-key": secrets.token_hex(24),
        "metrics-key": secrets.token_hex(24),
        "nats-token": "t" + secrets.token_hex(24),     # NATS reads one that begins with digits as a number
        "valkey-password": valkey,
        "valkey-url": f"redis://:{valkey}@valkey:6379/0",
    }
    secret = {
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "recmesh"}, "immutable": True, "stringData": values,
    }
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT_HTTPS"]
    request = urllib.request.Request(
        f"https://{f'[{host}]' if ':' in host else host}:{port}/api/v1/namespaces/{os.environ['NAMESPACE']}/secrets",
        data=json.dumps(secret).encode(), method="POST",
        headers={"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}", "Content-Type": "application/json"},
    )
    try:
        urllib.request.urlopen(
            request, timeout=20, context=ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
        ).close()
    except urllib.error.HTTPError as error:
        if error.code != 409:
            sys.exit(f"the secret cannot be made: {error.code} {error.read(2000).decode(errors='replace')}")
        print("the secret is there already")


if __name__ == "__main__":
    main()
