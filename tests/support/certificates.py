"""Certificates made by openssl."""

import ipaddress
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from recmesh.runtime.tls import Tls

NAMES = ("recmesh", "localhost")


def certificates(
    folder: Path, *, name: str = "", names: Sequence[str] = NAMES, authority: Path | None = None
) -> Tls:
    """A certificate of localhost, and of a service by `name`; `names`: of others instead. By a CA of its own, or by
    the one that lies in the folder `authority`."""
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, cwd=folder, capture_output=True)

    folder.mkdir(exist_ok=True)
    if authority is None:
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem",
                "-days", "2", "-subj", "/CN=recmesh test CA")
    elif authority != folder:
        for each in ("ca.key", "ca.pem"):
            shutil.copy(authority / each, folder / each)
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "request.pem",
            "-subj", f"/CN={names[-1]}")
    all_names = ",".join(f"{'IP' if _is_ip(each) else 'DNS'}:{each}" for each in (*names, *filter(None, [name])))
    (folder / "names").write_text(f"subjectAltName={all_names}\n")
    openssl("x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-out", "cert.pem", "-days", "2", "-extfile", "names")
    return Tls(cert=folder / "cert.pem", key=folder / "key.pem", ca=folder / "ca.pem", server_name=names[-1])


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
