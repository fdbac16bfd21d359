"""Named meshes: where each is and which file holds its key, in one file of the user's.

    {"current": "prod", "contexts": {"prod": {"url": "https://recmesh.example", "api_key_file": "~/.secrets/recmesh"},
                                     "laptop": {"home": "~/mesh"},
                                     "lab": {"kube_context": "lab", "namespace": "recmesh"}}}

Keys themselves are not in it.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from recmesh.runtime.errors import InvalidArgument, NotFound, Violation

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class Context:
    """One mesh: by `url`, by the data folder `home` on this machine, or by its `namespace` in a cluster that kubectl
    knows."""

    url: str = ""
    home: str = ""
    api_key_file: str = ""
    ca_file: str = ""
    """Certificates (PEM) that the server's must be signed by, in place of the system's."""
    kube_context: str = ""
    """Of the kubeconfig; empty: its current one."""
    namespace: str = ""

    @property
    def where(self) -> str:
        """In words."""
        cluster = f"cluster {self.kube_context}" if self.kube_context else "kubectl's cluster"
        return self.url or self.home or f"namespace {self.namespace} of {cluster}"

    def key(self) -> str:
        """The key in the file; empty without one. InvalidArgument when it cannot be read."""
        if not self.api_key_file:
            return ""
        try:
            return Path(self.api_key_file).expanduser().read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise _wrong("api_key_file", f"{self.api_key_file}: {_why(error)}") from error


@dataclass(slots=True)
class Contexts:
    """What the file says. InvalidArgument names what is wrong in it."""

    path: Path
    current: str = ""
    known: dict[str, Context] = field(default_factory=dict)

    @classmethod
    def read(cls, env: Mapping[str, str]) -> "Contexts":
        """$RECMESH_CONTEXTS, else `recmesh/contexts.json` in $XDG_CONFIG_HOME or ~/.config; a missing file has none."""
        default = Path(env.get("XDG_CONFIG_HOME") or "~/.config") / "recmesh" / "contexts.json"
        path = Path(env.get("RECMESH_CONTEXTS") or default).expanduser()
        try:
            said = json.loads(path.read_bytes())
            known = {name: Context(**each) for name, each in said.get("contexts", {}).items()}
            return cls(path, str(said.get("current", "")), known)
        except FileNotFoundError:
            return cls(path)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise _wrong(str(path), f"cannot be read: {_why(error)}") from error

    def named(self, name: str) -> Context:
        """NotFound says which there are."""
        if name not in self.known:
            there = ", ".join(sorted(self.known)) or "none"
            raise NotFound(f"there is no context {name}; there are: {there} (`recmesh context add` makes one)")
        return self.known[name]

    def add(self, name: str, context: Context) -> None:
        """Makes or replaces it; the first is the current one."""
        if not NAME.fullmatch(name):
            raise _wrong("NAME", "must be letters, digits, '.', '_' or '-', at most 63")
        if [bool(context.url), bool(context.home), bool(context.namespace)].count(True) != 1:
            raise _wrong("--url", "give one of --url, --home and --namespace")
        if context.kube_context and not context.namespace:
            raise _wrong("--kube-context", "needs --namespace")
        if context.url and not context.url.startswith(("http://", "https://")):
            raise _wrong("--url", f"must begin with http:// or https://, not {context.url!r}")
        self.known[name] = context
        self.current = self.current or name
        self._write()

    def use(self, name: str) -> None:
        """Makes it the current one."""
        self.named(name)
        self.current = name
        self._write()

    def remove(self, name: str) -> None:
        """Forgets it; if it is the current one there is none then."""
        self.named(name)
        del self.known[name]
        self.current = "" if self.current == name else self.current
        self._write()

    def _write(self) -> None:
        contexts = {name: {k: v for k, v in asdict(each).items() if v} for name, each in sorted(self.known.items())}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(json.dumps({"current": self.current, "contexts": contexts}, indent=2) + "\n")
        part.replace(self.path)


def _wrong(field: str, why: str) -> InvalidArgument:
    return InvalidArgument("the context cannot be used", violations=[Violation(field, why)])


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
