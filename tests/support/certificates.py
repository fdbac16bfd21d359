"""Certificates made by openssl."""

import subprocess
from pathlib import Path

from recmesh.runtime.tls import Tls


def certificates(folder: Path, *, name: str = "") -> Tls:
    """A CA and a certificate of localhost, and of a service by name, too."""
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, cwd=folder, capture_output=True)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem",
            "-days", "2", "-subj", "/CN=recmesh test CA")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "request.pem",
            "-subj", "/CN=localhost")
    (folder / "names").write_text(f"subjectAltName=DNS:recmesh,DNS:localhost{f',DNS:{name}' if name else ''}\n")
    openssl("x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-out", "cert.pem", "-days", "2", "-extfile", "names")
    return Tls(cert=folder / "cert.pem", key=folder / "key.pem", ca=folder / "ca.pem", server_name="localhost")
