"""An exported program as a plain function from the leaves of its inputs to those of its outputs.

Its module takes arguments apart by the tree of its signature, and puts outputs together by theirs, at each call and in
Python, which takes as long as a small model. The trees stay the same, so here they are read once. What the program asks
of its inputs' shapes is asked all the same: those guards are in its graph.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.graph import CodeGen
from torch.utils import _pytree as pytree

from recmesh.runtime.errors import InvalidArgument

Call = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


def call(module: GraphModule, exported: Any) -> Call:
    """The function. The module is of use for nothing else from then on."""
    if hasattr(module, "_guards_fn"):
        module.graph.set_codegen(CodeGen())
        module.recompile()
        return lambda leaves: module.forward(*leaves)
    in_spec = exported.call_spec.in_spec

    def checked(leaves: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Saved without an example of its inputs: its guards are around the module, which wants the trees."""
        args, kwargs = pytree.tree_unflatten(leaves, in_spec)
        found: Sequence[torch.Tensor] = pytree.tree_leaves(module(*args, **kwargs))
        return found

    return checked


def inputs(exported: Any, names: Sequence[str]) -> list[str]:
    """The inputs' names in the order of the program's leaves; InvalidArgument when they are not those of its signature.

    It takes one dictionary, keywords, or positions in the order of model.json. The structure is in the program itself,
    so that a model exported by plain torch, unaware of us, works too.
    """
    args, kwargs = exported.call_spec.in_spec.children()
    positional = args.children()
    keywords = dict(zip(kwargs.context or [], kwargs.children(), strict=True)) if kwargs.num_children else {}
    if positional and keywords:
        raise _wrong("the program mixes positional and keyword inputs; export it with one kind")
    only = [*positional, *keywords.values()]
    if len(only) == 1 and only[0].type is dict:
        return _same([str(key) for key in only[0].context], {name: name for name in names})
    if keywords:
        return _same(list(keywords), {_identifier(name): name for name in names})
    if len(positional) != len(names):
        raise _wrong(f"the program takes {len(positional)} inputs; model.json lists {len(names)}: {list(names)}")
    return list(names)


def outputs(exported: Any, names: Sequence[str]) -> list[str]:
    """The outputs' names in the order of the program's leaves; InvalidArgument when there are more or fewer."""
    spec = exported.call_spec.out_spec
    if spec.type is dict:
        return [str(key) for key in spec.context]
    if spec.num_leaves != len(names):
        raise _wrong(f"the program gives {spec.num_leaves} outputs, but model.json lists {len(names)}")
    return list(names)


def _same(wanted: list[str], listed: dict[str, str]) -> list[str]:
    """`listed`: names by what the program calls them."""
    if set(wanted) != set(listed):
        raise _wrong(
            f"the program takes {', '.join(sorted(wanted))}; model.json lists {', '.join(sorted(listed))}"
        )
    return [listed[each] for each in wanted]


def _identifier(name: str) -> str:
    return "".join(char if char.isalnum() or char == "_" else "_" for char in name)


def _wrong(why: str) -> InvalidArgument:
    return InvalidArgument(why, reason="BAD_MODEL_FOLDER")
