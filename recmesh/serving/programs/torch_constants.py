"""What of an exported program follows from its weights alone is computed once, when it is loaded.

The results are the same bit for bit: the same operators run on the same values, only earlier.
"""

from typing import Any

import torch
from torch.fx import GraphModule, Node

MAX_BYTES = 64 << 20
"""A result larger than this is computed each time, as before: a broadcast may be far larger than its weights."""


def fold(module: GraphModule) -> int:
    """How many operators are gone from the module. None where one writes into its arguments: it could be a weight."""
    operators = [node for node in module.graph.nodes if node.op == "call_function"]
    if any(_writes(node.target) for node in operators):
        return 0
    values: dict[Node, torch.Tensor] = {}
    computed: list[Node] = []
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = _attribute(module, str(node.target))
        elif node.op == "call_function" and _is_steady(node) and all(each in values for each in node.all_input_nodes):
            value = _run(node, values)
        else:
            continue
        if isinstance(value, torch.Tensor) and _fits(node, value):
            values[node] = value
            if node.op == "call_function":
                computed.append(node)
    for index, node in enumerate(computed):
        if any(user not in values for user in node.users):
            name = f"_folded_{index}"
            module.register_buffer(name, values[node], persistent=False)
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(module.graph.get_attr(name))
    gone = 0
    for node in reversed(computed):
        if not node.users:
            module.graph.erase_node(node)
            gone += 1
    module.recompile()
    return gone


def _run(node: Node, values: dict[Node, torch.Tensor]) -> Any:
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
    with torch.no_grad():
        return node.target(*args, **kwargs)


def _is_steady(node: Node) -> bool:
    """Whether it gives the same for the same, and is an operator of torch."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return bool(node.all_input_nodes) and bool(torch.Tag.nondeterministic_seeded not in node.target.tags)


def _writes(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and bool(target._schema.is_mutable)


def _fits(node: Node, value: torch.Tensor) -> bool:
    return node.op == "get_attr" or bool(value.untyped_storage().nbytes() <= MAX_BYTES)


def _attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module
