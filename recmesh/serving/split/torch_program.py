"""The front end of torch.export programs."""

import operator as python_operator
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import InputKind, TensorArgument
from torch.utils import _pytree as pytree

from recmesh.runtime.errors import InvalidArgument
from recmesh.serving.inspect import output_names
from recmesh.serving.programs import torch_archive
from recmesh.serving.split.graph import Operator, OperatorGraph, Tensor, Unsplittable
from recmesh.serving.split.source import Arrays, Port, dims_of

FILE = "model.pt2"
_CHECKS = ("aten._assert_tensor_metadata", "aten._assert_scalar", "aten.sym_constrain_range")
"""They assert what held when the model was traced; exporting a half notes it anew."""


class TorchModel:
    """A program, its operators told apart: constants, sizes, and the rest."""

    framework = "torch"

    def __init__(self, file: Path, *, inputs: Sequence[Port] = (), outputs: Sequence[Port] = ()) -> None:
        """`inputs`, `outputs`: what model.json says, if there is one; else names are those that `inspect` gives."""
        with _safely():
            try:
                torch_archive.check(file)
                program = torch.export.load(str(file))
            except InvalidArgument:
                raise
            except Exception as error:
                why = str(error).partition("\n")[0][:300]
                raise InvalidArgument(f"{file} is no program of torch.export.save: {why}") from error
            self._module = program.module()
            if any(_is_mutable(node) for node in program.graph.nodes):
                program = program.run_decompositions({})          # the same, with operators that change nothing
        if program.graph_signature.buffers_to_mutate or program.graph_signature.user_inputs_to_mutate:
            raise Unsplittable("it changes its own state when it runs")
        self._program, self._graph = program, program.graph
        self._held = {**program.state_dict, **program.constants}
        self._constants: dict[str, torch.Tensor] = {}
        self._bind(inputs, outputs)
        self._sort()

    def _bind(self, inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
        """Names of the model's inputs and outputs, and the nodes that they are."""
        signature = self._program.graph_signature
        user = [each for each in signature.input_specs if each.kind is InputKind.USER_INPUT]
        if any(not isinstance(each.arg, TensorArgument) for each in user):
            raise Unsplittable("it has inputs that are no tensors")
        spec = self._program.call_spec.in_spec
        args, kwargs = pytree.tree_unflatten(list(range(len(user))), spec)
        own = [str(each.arg.name) for each in user]
        names = _names([*args, *([kwargs] if kwargs else [])], [each.name for each in inputs], own, "input")
        self._call: Callable[[Sequence[Any]], Any] = lambda flat: _called(self._module, spec, flat)
        self._input_names = [names[index] for index in range(len(user))]
        self._node_of = {name: each.arg.name for name, each in zip(self._input_names, user, strict=True)}
        listed = {each.name: each for each in inputs}
        nodes = {node.name: node for node in self._graph.nodes}
        self.inputs = [
            listed.get(name) or _port(name, nodes[self._node_of[name]].meta["val"]) for name in self._input_names
        ]
        results = list(self._graph.output_node().args[0])
        unflat = pytree.tree_unflatten(list(range(len(results))), self._program.call_spec.out_spec)
        made = _names([unflat], [each.name for each in outputs], output_names(len(results)), "output")
        self._output_names = [made[index] for index in range(len(results))]
        self._results = dict(zip(self._output_names, results, strict=True))
        self.outputs = [_port(name, self._results[name].meta["val"]) for name in self._output_names]

    def _sort(self) -> None:
        """Tells constants and sizes from operators, and finds the tensors that each operator makes."""
        user = set(self._node_of.values())
        self._constant: set[str] = set()
        self._size: set[str] = set()
        self._operators: dict[str, list[torch.fx.Node]] = {}
        """Nodes by operator: itself, and those that take its results apart."""
        self._of: dict[str, str] = {}
        """The operator of each node that gives a tensor."""
        for node in self._graph.nodes:
            if node.op == "placeholder":
                if node.name not in user:
                    self._constant.add(node.name)
            elif node.op == "get_attr":
                self._constant.add(node.name)
            elif node.op == "call_function" and not _kind(node).startswith(_CHECKS):
                self._sort_call(node, user)

    def _sort_call(self, node: torch.fx.Node, user: set[str]) -> None:
        before = [each.name for each in node.all_input_nodes]
        if node.target is python_operator.getitem and before[0] in self._of:
            self._operators[self._of[before[0]]].append(node)
            self._of[node.name] = self._of[before[0]]
        elif not _is_random(node) and all(name in self._constant for name in before):
            self._constant.add(node.name)
        elif not _is_random(node) and all(name in self._constant or name in self._size for name in before):
            self._size.add(node.name)
        elif not _has_tensors(node.meta.get("val")):
            if not str(getattr(node.target, "__name__", node.target)).startswith("sym_"):
                raise Unsplittable(f"its shapes or its course depend on values, at {node.name} ({_kind(node)})")
            self._size.add(node.name)
        else:
            self._operators[node.name] = [node]
            self._of[node.name] = node.name

    def run(self, inputs: Arrays) -> Arrays:
        """The model's own results, by name."""
        result = self._call([_tensor(inputs[name]) for name in self._input_names])
        flat = pytree.tree_leaves(result)
        return {name: value.numpy() for name, value in zip(self._output_names, flat, strict=True)}

    def pool(self) -> "np.ndarray[Any, Any]":
        """Ids that stand in sorted constants: what searchsorted looks up."""
        found = [
            each.numpy().reshape(-1) for each in self._held.values()
            if isinstance(each, torch.Tensor) and each.dtype is torch.int64 and each.ndim == 1
        ]
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def graph(self, probes: Sequence[Arrays]) -> OperatorGraph:
        """See Source."""
        shapes: list[dict[str, tuple[int, ...]]] = []
        for probe in probes:
            recorder = _Recorder(self._program.graph_module, self._constant)
            with torch.inference_mode():
                recorder.run(*self._flat(probe))
            shapes.append(recorder.shapes)
            self._constants = recorder.constants
        tensors: dict[str, Tensor] = {}
        for node in self._graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and (node.name in self._of or node.name in self._node_of.values()):
                dims, batched = dims_of([each[node.name] for each in shapes])
                shape = shapes[0][node.name]
                size = int(np.prod(shape, dtype=np.int64)) * value.dtype.itemsize
                name = self._name(node)
                tensors[name] = Tensor(name, _dtype(value.dtype), shape, size, dims, batched)
        operators = tuple(self._operator(name, nodes, tensors) for name, nodes in self._operators.items())
        outputs = []
        for name, node in self._results.items():
            if node.name not in self._of:
                raise Unsplittable(f"its output {name!r} is an input or a constant")
            outputs.append(node.name)
        calls = {node.name for node in self._graph.nodes if node.op == "call_function"}
        return OperatorGraph(
            operators, tensors, tuple(self._input_names), tuple(outputs),
            constants=len(self._constant & calls), sizes=len(self._size),
        )  # fmt: skip

    def _operator(self, name: str, nodes: Sequence[torch.fx.Node], tensors: Mapping[str, Tensor]) -> Operator:
        head = nodes[0]
        read = [self._name(each) for each in head.all_input_nodes if self._name(each) in tensors]
        made = [node.name for node in nodes if node.name in tensors]
        first = head.args[0] if head.args else None
        table = first.meta.get("val") if isinstance(first, torch.fx.Node) and first.name in self._constant else None
        size = table.numel() * table.dtype.itemsize if isinstance(table, torch.Tensor) else 0
        return Operator(name, _kind(head), tuple(dict.fromkeys(read)), tuple(made), int(size))

    def _name(self, node: torch.fx.Node) -> str:
        """A tensor's: of an input the model's, else the node's."""
        return next((name for name, of in self._node_of.items() if of == node.name), node.name)

    def _flat(self, inputs: Arrays) -> list[Any]:
        """The program's arguments, weights among them, in the graph's order."""
        named = {of: _tensor(inputs[name]) for name, of in self._node_of.items()}
        specs = self._program.graph_signature.input_specs
        return [
            named[each.arg.name] if each.kind is InputKind.USER_INPUT else self._held[each.target] for each in specs
        ]

    def write(
        self, folder: Path, *, inputs: Mapping[str, str], outputs: Mapping[str, str], operators: Collection[str]
    ) -> None:
        """See Source."""
        nodes = {self._name(node): node for node in self._graph.nodes}
        given = {name: nodes[tensor] for name, tensor in inputs.items()}
        part = _Part(self, given)
        for name in self._operators:
            if name in operators:
                for node in self._operators[name]:
                    part.copy(node)
        module = part.finish({name: nodes[tensor] for name, tensor in outputs.items()})
        example = {name: _example(node.meta["val"]) for name, node in given.items()}
        dims = _Dims(self._program.range_constraints)
        shapes = {name: dims.of(node.meta["val"]) for name, node in given.items()}
        folder.mkdir(parents=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")                       # torch's own, of its own future
            exported = torch.export.export(_Stage(module, list(inputs), list(outputs)), (example,),
                                           dynamic_shapes=(shapes,), strict=False)
            torch.export.save(exported, str(folder / FILE))

    def load(self, folder: Path, outputs: Sequence[str]) -> Callable[[Arrays], Arrays]:
        """See Source."""
        with _safely():
            module = torch.export.load(str(folder / FILE)).module()

        def call(inputs: Arrays) -> Arrays:
            with torch.inference_mode():
                result = module({name: _tensor(array) for name, array in inputs.items()})
            return {name: result[name].numpy() for name in outputs}

        return call

    def is_constant(self, node: torch.fx.Node) -> bool:
        """Whether it follows from weights alone."""
        return node.name in self._constant

    def constant(self, node: torch.fx.Node) -> torch.Tensor:
        """Its value, computed once."""
        return self._constants[node.name].detach()

    def is_size(self, node: torch.fx.Node) -> bool:
        """Whether it follows from shapes alone."""
        return node.name in self._size


class _Part:
    """A graph of some operators of a program, under construction."""

    def __init__(self, model: TorchModel, given: Mapping[str, torch.fx.Node]) -> None:
        self._model = model
        self._graph = torch.fx.Graph()
        self._attributes: dict[str, torch.Tensor] = {}
        self._made: dict[torch.fx.Node, torch.fx.Node] = {}
        for number, node in enumerate(given.values()):
            self._made[node] = self._graph.placeholder(f"input_{number}")

    def copy(self, node: torch.fx.Node) -> torch.fx.Node:
        """This operator, with the constants and sizes that it needs."""
        for each in node.all_input_nodes:                         # before it, as they must stand there
            self._resolved(each)
        self._made[node] = self._graph.node_copy(node, self._resolved)
        return self._made[node]

    def finish(self, outputs: Mapping[str, torch.fx.Node]) -> torch.fx.GraphModule:
        """The module; it gives a tuple."""
        self._graph.output(tuple(self._made[node] for node in outputs.values()))
        self._graph.lint()
        root = torch.nn.Module()
        for name, value in self._attributes.items():
            root.register_buffer(name, value)
        return torch.fx.GraphModule(root, self._graph)

    def _resolved(self, node: torch.fx.Node) -> torch.fx.Node:
        if node in self._made:
            return self._made[node]
        if self._model.is_constant(node):
            name = f"constant_{len(self._attributes)}"
            self._attributes[name] = self._model.constant(node)
            self._made[node] = self._graph.get_attr(name)
            return self._made[node]
        if not self._model.is_size(node):
            raise AssertionError(f"{node.name} is neither given nor copied")
        return self._sized(node)

    def _sized(self, node: torch.fx.Node) -> torch.fx.Node:
        """A size: of what is here anyway, by its symbol; or computed again."""
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            for there, made in list(self._made.items()):
                held = there.meta.get("val")
                for axis, size in enumerate(held.shape if isinstance(held, torch.Tensor) else ()):
                    if isinstance(size, torch.SymInt) and size.node.expr == value.node.expr:
                        self._made[node] = self._graph.call_function(torch.ops.aten.sym_size.int, (made, axis))
                        return self._made[node]
        if any(not self._is_known(each) for each in node.all_input_nodes):
            raise Unsplittable(f"the accelerator's side needs the size {value} ({node.name}), which nothing sent has")
        return self.copy(node)

    def _is_known(self, node: torch.fx.Node) -> bool:
        return node in self._made or self._model.is_constant(node) or self._model.is_size(node)


class _Stage(torch.nn.Module):  # type: ignore[misc]  # torch is not analysed
    """A part behind the names of its inputs and outputs."""

    def __init__(self, part: torch.nn.Module, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        super().__init__()
        self.part = part
        self._inputs, self._outputs = list(inputs), list(outputs)

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """By name."""
        made = self.part(*(inputs[name] for name in self._inputs))
        return dict(zip(self._outputs, made, strict=True))


class _Recorder(torch.fx.Interpreter):  # type: ignore[misc]  # torch is not analysed
    """Runs a program and notes the shapes of all that it computes, and the values of constants."""

    def __init__(self, module: torch.fx.GraphModule, constant: set[str]) -> None:
        super().__init__(module, garbage_collect_values=True)
        self._constant = constant
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.constants: dict[str, torch.Tensor] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        """See Interpreter."""
        value = super().run_node(n)
        if isinstance(value, torch.Tensor):
            self.shapes[n.name] = tuple(value.shape)
            if n.name in self._constant:
                self.constants[n.name] = value
        return value


class _Dims:
    """The dynamic dimensions of a half's inputs, with the ranges of the model's."""

    def __init__(self, ranges: Mapping[Any, Any]) -> None:
        self._ranges = ranges
        self._dims: dict[str, Any] = {}

    def of(self, value: torch.Tensor) -> dict[int, Any]:
        """By axis: the same Dim wherever the model's symbol is the same."""
        return {axis: self._dim(size) for axis, size in enumerate(value.shape) if isinstance(size, torch.SymInt)}

    def _dim(self, size: torch.SymInt) -> Any:
        symbol = size.node.expr
        if not symbol.is_Symbol:
            return torch.export.Dim.AUTO                          # 2·s: a number of its own to the half
        if str(symbol) not in self._dims:
            known = self._ranges.get(symbol)
            low = int(known.lower) if known is not None else 0
            high = known.upper if known is not None else None
            most = int(high) if high is not None and high.is_Integer and high < 2**31 else None
            self._dims[str(symbol)] = torch.export.Dim(f"size_{symbol}", min=low, max=most)
        return self._dims[str(symbol)]


@contextmanager
def _safely() -> Iterator[None]:
    """Inside, torch reads tensors and nothing that runs code, and keeps its warnings to itself."""
    plain = torch.load
    torch.load = lambda *args, **kwargs: plain(*args, **{**kwargs, "weights_only": True})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.load = plain


def _called(module: Any, spec: Any, flat: Sequence[Any]) -> Any:
    args, kwargs = pytree.tree_unflatten(list(flat), spec)
    with torch.inference_mode():
        return module(*args, **kwargs)


def _names(tree: Sequence[Any], listed: Sequence[str], own: Sequence[str], what: str) -> dict[int, str]:
    """Names by place of the leaves: keys of the one dictionary, or of keywords, or those listed, else the program's."""
    if len(tree) == 1 and isinstance(tree[0], dict):
        inner = tree[0]
        if len(inner) == 1 and isinstance(next(iter(inner.values())), dict):
            inner = next(iter(inner.values()))
        if all(isinstance(place, int) for place in inner.values()):
            return {place: str(key) for key, place in inner.items()}
    flat = tree[0] if len(tree) == 1 and isinstance(tree[0], (tuple, list)) else tree
    if not all(isinstance(place, int) for place in flat):
        raise Unsplittable(f"its {what}s are nested; export it with one dictionary of {what}s")
    if listed and len(listed) != len(flat):
        raise InvalidArgument(f"the program has {len(flat)} {what}s; model.json lists {len(listed)}: {list(listed)}")
    return {place: (listed or own)[place] for place in flat}


def _port(name: str, value: torch.Tensor) -> Port:
    return Port(name, _dtype(value.dtype), tuple(size if isinstance(size, int) else -1 for size in value.shape))


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tensor(array: "np.ndarray[Any, Any]") -> torch.Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _example(value: torch.Tensor) -> torch.Tensor:
    """Zeros; of dynamic sizes 2 or more, as 0 and 1 would be taken for fixed."""
    shape = [size if isinstance(size, int) else max(int(size.node.hint or 3), 2) for size in value.shape]
    return torch.zeros(shape, dtype=value.dtype)


def _kind(node: torch.fx.Node) -> str:
    target = node.target
    return str(target) if isinstance(target, torch._ops.OpOverload) else str(getattr(target, "__name__", target))


def _is_mutable(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and bool(node.target._schema.is_mutable)


def _is_random(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def _has_tensors(value: Any) -> bool:
    return any(isinstance(each, torch.Tensor) for each in pytree.tree_leaves(value))
