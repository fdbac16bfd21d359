"""Names of what is a namespace's: the dataset or model `ads--clicks` is `clicks` of the namespace `ads`."""

NAMESPACE_END = "--"


def unfit(namespace: str) -> str:
    """Why names of what is this namespace's could be another's; empty: they cannot.

    `c` of `a--b` and `b--c` of `a` would both be `a--b--c`. Kubernetes allows such namespaces.
    """
    if NAMESPACE_END in namespace:
        return f"{namespace!r} has {NAMESPACE_END!r} in it: its names could not be told from another namespace's"
    if namespace.startswith("-") or namespace.endswith("-"):
        return f"{namespace!r} begins or ends with a hyphen: its names could not be told from another namespace's"
    return ""
