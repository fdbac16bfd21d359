"""Which cluster, and as whom: a kubeconfig's context, or the service account of the pod that this runs in."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes.aio import client as api
from kubernetes.aio import config

from recmesh.runtime.errors import FailedPrecondition
from recmesh.runtime.kube.client import KubeClient

CALLS_PER_S, BURST = 50.0, 100.0
"""client-go's controllers are given 20 to 50 and a burst of twice as many; pods are started by hundreds here."""
CONNECTIONS = 64
"""At once; each watch holds one. Calls beyond it wait: a TLS connection costs both sides more than the wait."""
REFRESH_S = 60.0
"""A token of an exec plugin is asked for again this often, and made anew once it has expired."""


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a cluster."""

    kubeconfig: Path | None = None
    """None: the service account of this pod."""
    context: str = ""
    """Of the kubeconfig; empty: its current one."""


async def connect(
    access: Access, *, field_manager: str, calls_per_s: float = CALLS_PER_S, burst: float = BURST,
) -> KubeClient:
    """A client, to be closed by the caller; nothing is called yet. FailedPrecondition without such a configuration."""
    configuration: Any = api.Configuration()
    configuration.connection_pool_maxsize = CONNECTIONS
    refresh: asyncio.Task[None] | None = None
    try:
        if access.kubeconfig is None:
            await asyncio.to_thread(config.load_incluster_config, configuration)
        else:
            if not await asyncio.to_thread(os.path.isfile, access.kubeconfig):
                raise FailedPrecondition(f"there is no kubeconfig {access.kubeconfig}", reason="NO_KUBECONFIG")
            loader = await config.load_kube_config(
                str(access.kubeconfig), context=access.context or None, client_configuration=configuration,
                persist_config=False,
            )
            refresh = asyncio.create_task(
                config.refresh_token(loader, client_configuration=configuration, interval=REFRESH_S)
            )
    except config.ConfigException as error:
        where = f"kubeconfig {access.kubeconfig}" if access.kubeconfig else "the service account of this pod"
        raise FailedPrecondition(f"{where} cannot be used: {error}", reason="NO_KUBECONFIG") from error
    return KubeClient(
        api.ApiClient(configuration), field_manager=field_manager, calls_per_s=calls_per_s, burst=burst, refresh=refresh
    )
