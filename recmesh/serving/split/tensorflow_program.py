"""The front end of TensorFlow SavedModels.

The signature's graph goes through TensorFlow's own passes first: functions are inlined, constants folded, shapes and
arithmetic simplified, what is not needed dropped. Variables stay variables, so that tables of any size can be split.
The passes that choose fused kernels for a device run when a half is loaded, as they would for the whole.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
from tensorflow.python.framework import op_def_registry
from tensorflow.python.grappler import tf_optimizer
from tensorflow.python.training.saver import export_meta_graph

from recmesh.runtime.errors import InvalidArgument
from recmesh.serving.split.graph import Operator, OperatorGraph, Tensor, Unsplittable
from recmesh.serving.split.reference import identifier
from recmesh.serving.split.source import Arrays, Port, dims_of

FOLDER, SIGNATURE = "saved_model", "serving_default"
PASSES = ("function", "constfold", "shape", "arithmetic", "dependency", "pruning")
_SHAPES = ("Shape", "ShapeN", "Size", "Rank")
_READ = "ReadVariableOp"
_STRING_BYTES = 8
"""A text counts as this where it has to be weighed at all; it is never sent."""


class TensorFlowModel:
    """A signature, its operators told apart: constants, sizes, and the rest."""

    framework = "tensorflow"

    def __init__(self, folder: Path, *, inputs: Sequence[Port] = (), outputs: Sequence[Port] = ()) -> None:
        """`inputs`, `outputs`: what model.json says, if there is one; else they are the signature's."""
        try:
            self._model = tf.saved_model.load(str(folder))
        except Exception as error:
            raise InvalidArgument(f"{folder} is no SavedModel: {str(error).partition(chr(10))[0][:300]}") from error
        signatures = self._model.signatures
        if SIGNATURE not in signatures:
            has = ", ".join(signatures) or "none"
            raise InvalidArgument(f"the SavedModel has no signature {SIGNATURE!r}; it has {has}")
        self._signature = signatures[SIGNATURE]
        self._bind(inputs, outputs)
        self._nodes = {node.name: node for node in _optimised(self._signature).node}
        self._order = _sorted(self._nodes)
        self._captures = {inner.op.name: outer for outer, inner in self._signature.graph.captures}
        self._tracked = _tracked(self._model)
        self._arity = self._arities()
        self._sort()
        self._folded: dict[str, Any] = {}

    def _bind(self, inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
        specs = self._signature.structured_input_signature[1]
        placeholders = {tensor.op.name: tensor for tensor in self._signature.inputs}
        listed = {identifier(each.name): each for each in inputs}
        if inputs and set(listed) != set(specs):
            wanted = ", ".join(sorted(each.name for each in inputs))
            raise InvalidArgument(f"the signature takes {', '.join(sorted(specs))}; model.json lists {wanted}")
        self.inputs = [listed.get(key) or _port(key, spec) for key, spec in specs.items()]
        self._keyword = {port.name: identifier(port.name) if inputs else port.name for port in self.inputs}
        self._input_of = {}                                       # placeholder's name to the input's
        for port in self.inputs:
            node = specs[self._keyword[port.name]].name
            if node not in placeholders:
                raise Unsplittable(f"its input {port.name!r} is not one tensor")
            self._input_of[node] = port.name
        keys = dict(self._signature.structured_outputs)
        results = {key: tensor for key, tensor in zip(sorted(keys), self._signature.outputs, strict=True)}
        names = {next(iter(keys)): outputs[0].name} if len(keys) == len(outputs) == 1 else {key: key for key in keys}
        self._output_key = {names[key]: key for key in keys}
        self._results = {names[key]: results[key].name for key in keys}
        self.outputs = [_port(names[key], results[key]) for key in keys]

    def _arities(self) -> dict[str, list[Any]]:
        """dtypes of the results of each node."""
        function = self._wrapped([], [])
        return {op.name: [tensor.dtype for tensor in op.outputs] for op in function.graph.get_operations()}

    def _sort(self) -> None:
        self._constant: set[str] = set(self._captures)
        self._size: set[str] = set()
        self._operators: list[str] = []
        for name in self._order:
            node = self._nodes[name]
            if name in self._input_of or name in self._constant:
                continue
            before = [_node(each) for each in node.input if not each.startswith("^")]
            constant = [each in self._constant for each in before]
            steady = not _is_stateful(node.op)
            if all(constant) and (steady or node.op == _READ):
                self._constant.add(name)
            elif node.op in _SHAPES or (
                steady and all(known or each in self._size for known, each in zip(constant, before, strict=True))
            ):
                self._size.add(name)
            elif self._arity[name]:
                self._operators.append(name)

    def run(self, inputs: Arrays) -> Arrays:
        """The model's own results, by name."""
        specs = self._signature.structured_input_signature[1]
        fed = {key: tf.constant(inputs[name], specs[key].dtype) for name, key in self._keyword.items()}
        made = self._signature(**fed)
        return {name: np.asarray(made[key].numpy()) for name, key in self._output_key.items()}

    def pool(self) -> "np.ndarray[Any, Any]":
        """Ids that stand in one-dimensional variables: what searchsorted looks up."""
        found = [
            each.numpy() for each in self._tracked.values()
            if isinstance(each, tf.Variable) and each.dtype == tf.int64 and each.shape.rank == 1
        ]
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def graph(self, probes: Sequence[Arrays]) -> OperatorGraph:
        """See Source."""
        wanted = [
            f"{name}:{number}" for name in (*self._input_of, *self._operators)
            for number, dtype in enumerate(self._arity[name])
            if dtype not in (tf.resource, tf.variant)
        ]  # fmt: skip
        measure = self._wrapped(wanted, list(self._input_of), shapes=True)
        shapes = []
        for probe in probes:
            fed = [tf.constant(probe[name], self._arity[node][0]) for node, name in self._input_of.items()]
            made = [tuple(int(size) for size in each.numpy()) for each in measure(*fed)]
            shapes.append(dict(zip(wanted, made, strict=True)))
        self._shapes = shapes
        self._fold()
        tensors: dict[str, Tensor] = {}
        for node in (*self._input_of, *self._operators):
            for number, dtype in enumerate(self._arity[node]):
                found = self._tensor(f"{node}:{number}", dtype)
                tensors[found.name] = found
        outputs = []
        for name, tensor in self._results.items():
            source = self._through(tensor)
            if _node(source) not in self._operators:
                raise Unsplittable(f"its output {name!r} is an input or a constant")
            outputs.append(source)
        operators = tuple(self._operator(name, tensors) for name in self._operators)
        folded = sum(self._nodes[name].op not in ("Const", "Placeholder", _READ) for name in self._constant)
        return OperatorGraph(
            operators, tensors, tuple(port.name for port in self.inputs), tuple(outputs), constants=folded,
            sizes=len(self._size),
        )  # fmt: skip

    def _through(self, tensor: str) -> str:
        """The tensor in the optimised graph, which keeps the names of what is fetched."""
        return _canonical(tensor)

    def _tensor(self, name: str, dtype: Any) -> Tensor:
        public = self._public(name)
        if dtype in (tf.resource, tf.variant):
            return Tensor(public, dtype.name, (), 0, (), False)
        dims, batched = dims_of([each[name] for each in self._shapes])
        shape = self._shapes[0][name]
        item = _STRING_BYTES if dtype == tf.string else dtype.size
        return Tensor(public, dtype.name, shape, int(np.prod(shape, dtype=np.int64)) * item, dims, batched)

    def _public(self, name: str) -> str:
        """A tensor's name in the graph: of an input the model's."""
        return self._input_of.get(_node(name), name)

    def _operator(self, name: str, tensors: Mapping[str, Tensor]) -> Operator:
        node = self._nodes[name]
        data = [_canonical(each) for each in node.input if not each.startswith("^")]
        read = [self._public(each) for each in data if self._public(each) in tensors]
        made = [f"{name}:{number}" for number in range(len(self._arity[name]))]
        first = _node(data[0]) if data else ""
        size = self._bytes(first) if first in self._constant else 0
        return Operator(name, node.op, tuple(dict.fromkeys(read)), tuple(made), size)

    def _bytes(self, name: str) -> int:
        """Of a constant; of a variable's handle the variable's."""
        node = self._nodes[name]
        if node.op == _READ:
            return self._bytes(_node(node.input[0]))
        if name in self._captures:
            held = self._tracked.get(id(self._captures[name]))
            return int(np.prod(held.shape)) * held.dtype.size if isinstance(held, tf.Variable) else 1
        if node.op == "Const":
            return int(tf.make_ndarray(node.attr["value"].tensor).nbytes)
        return 1

    def _fold(self) -> None:
        """Computes once what constants give to operators, but plain constants and variables."""
        edge = {
            _canonical(each) for name in (*self._operators, *self._size) for each in self._nodes[name].input
            if not each.startswith("^") and _node(each) in self._constant
        }
        fetched = sorted(
            name for name in edge
            if self._nodes[_node(name)].op not in ("Const", "Placeholder", _READ)
            and self._arity[_node(name)][int(name.rpartition(":")[2])] not in (tf.resource, tf.variant)
        )
        if fetched:
            values = self._wrapped(fetched, [])()
            self._folded = {name: value.numpy() for name, value in zip(fetched, values, strict=True)}

    def _wrapped(self, fetches: Sequence[str], fed: Sequence[str], *, shapes: bool = False) -> Any:
        """The optimised graph as a function of the placeholders `fed`."""
        needed = self._needed(fetches) if fetches else set(self._nodes)
        definition = tf.compat.v1.GraphDef()
        definition.node.extend(node for name, node in self._nodes.items() if name in needed | set(fed))

        def body(*arguments: Any) -> Any:
            given = dict(zip(fed, arguments, strict=True))
            given |= {name: _inside(self._captures[name]) for name in self._captures if name in needed}
            mapping = {f"{name}:0": value for name, value in given.items()}
            found = tf.graph_util.import_graph_def(definition, mapping, return_elements=list(fetches), name="")
            return [tf.shape(each) for each in found] if shapes else found

        return tf.function(body, autograph=False).get_concrete_function(
            *(tf.TensorSpec(None, self._nodes[name].attr["dtype"].type) for name in fed)
        )

    def _needed(self, tensors: Sequence[str]) -> set[str]:
        """Nodes that these tensors need: a function runs whatever it holds that has a state."""
        found: set[str] = set()
        waiting = [_node(each) for each in tensors]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting.extend(_node(each) for each in self._nodes[name].input)
        return found

    def write(
        self, folder: Path, *, inputs: Mapping[str, str], outputs: Mapping[str, str], operators: Collection[str]
    ) -> None:
        """See Source."""
        node_of = {name: f"{node}:0" for node, name in self._input_of.items()}
        given = {name: node_of.get(tensor, tensor) for name, tensor in inputs.items()}
        part = _Part(self, given, operators)
        definition, captured = part.definition()
        module = tf.Module()
        module.held = [self._tracked[id(self._captures[name])] for name in captured if name in self._captures
                       and id(self._captures[name]) in self._tracked]
        # Variables, not constants: TensorFlow would fold those into what follows, and round otherwise than the whole.
        module.folded = [
            tf.Variable(self._folded[tensor], trainable=False, dtype=self.dtype(tensor)) for tensor in part.folded
        ]
        keys = {name: identifier(name) for name in inputs}

        def serve(**arguments: Any) -> Any:
            mapping = {f"{part.placeholder(tensor)}:0": arguments[keys[name]] for name, tensor in given.items()}
            mapping |= {f"{name}:0": _inside(self._captures[name]) for name in captured}
            mapping |= {
                f"{place}:0": held.read_value() for place, held in zip(part.folded.values(), module.folded, strict=True)
            }
            mapping |= {
                f"{place}:0": self._made_again(tensor, {given[name]: arguments[keys[name]] for name in inputs})
                for tensor, place in part.shapes.items()
            }
            found = tf.graph_util.import_graph_def(definition, mapping, return_elements=list(outputs.values()), name="")
            return dict(zip(outputs, found, strict=True))

        specs = {keys[name]: self._spec(tensor, keys[name]) for name, tensor in given.items()}
        module.serve = tf.function(serve, autograph=False)
        folder.mkdir(parents=True)
        tf.saved_model.save(
            module, str(folder / FOLDER), signatures={SIGNATURE: module.serve.get_concrete_function(**specs)}
        )

    def _spec(self, tensor: str, name: str) -> Any:
        dims, _ = dims_of([each[tensor] for each in self._shapes])
        number = int(tensor.rpartition(":")[2])
        dtype = self._arity[_node(tensor)][number]
        return tf.TensorSpec([None if size == -1 else size for size in dims], dtype, name=name)

    def _made_again(self, tensor: str, there: Mapping[str, Any]) -> Any:
        """The shape of a tensor that the other side has, from those here: sizes that change alike are the same.

        Of a size that no tensor here has it says 0: mostly of a shape only the number of samples is read.
        """
        node = self._nodes[_node(tensor)]
        of = _canonical(node.input[int(tensor.rpartition(":")[2])])
        dtype = self._arity[node.name][0]
        sizes = []
        for axis in range(len(self._shapes[0][of])):
            course = [each[of][axis] for each in self._shapes]
            fixed = len(set(course)) == 1
            sizes.append(tf.constant(course[0], dtype) if fixed else self._size_like(course, there, dtype))
        if node.op == "Size":
            return tf.reduce_prod(tf.stack(sizes)) if sizes else tf.constant(1, dtype)
        if node.op == "Rank":
            return tf.constant(len(sizes), dtype)
        return tf.stack(sizes) if sizes else tf.constant([], dtype)

    def _size_like(self, course: Sequence[int], there: Mapping[str, Any], dtype: Any) -> Any:
        for name, value in there.items():
            for axis in range(len(self._shapes[0][name])):
                if [each[name][axis] for each in self._shapes] == list(course):
                    return tf.shape(value, out_type=dtype)[axis]
        return tf.constant(0, dtype)                              # one that is read would be noticed by the check

    def load(self, folder: Path, outputs: Sequence[str]) -> Callable[[Arrays], Arrays]:
        """See Source."""
        model = tf.saved_model.load(str(folder / FOLDER))
        signature = model.signatures[SIGNATURE]
        specs = signature.structured_input_signature[1]

        def call(inputs: Arrays) -> Arrays:
            keys = {name: identifier(name) for name in inputs}
            fed = {keys[name]: tf.constant(array, specs[keys[name]].dtype) for name, array in inputs.items()}
            found = signature(**fed)
            return {name: np.asarray(found[name].numpy()) for name in outputs}

        call.model = model  # type: ignore[attr-defined]  # its variables live as long as it does
        return call

    def node(self, name: str) -> Any:
        """A NodeDef of the optimised graph."""
        return self._nodes[name]

    def is_constant(self, name: str) -> bool:
        """Whether a node follows from weights alone."""
        return name in self._constant

    def is_capture(self, name: str) -> bool:
        """Whether a node stands for a variable or a table."""
        return name in self._captures

    def is_size(self, name: str) -> bool:
        """Whether a node follows from shapes alone."""
        return name in self._size

    def folded(self, tensor: str) -> "np.ndarray[Any, Any] | None":
        """The value of a constant that was computed once."""
        return self._folded.get(tensor)

    def dtype(self, tensor: str) -> Any:
        """Of a tensor of the optimised graph."""
        return self._arity[_node(tensor)][int(tensor.rpartition(":")[2])]


class _Part:
    """The GraphDef of some operators: with the constants and sizes that they need, placeholders for the rest."""

    def __init__(self, model: TensorFlowModel, given: Mapping[str, str], operators: Collection[str]) -> None:
        self._model = model
        self._given = {tensor: f"given_{number}" for number, tensor in enumerate(given.values())}
        self._chosen = set(operators)
        self.shapes: dict[str, str] = {}
        """Shapes of tensors of the other side, with their placeholders."""
        self.folded: dict[str, str] = {}
        """Constants that were computed once, with their placeholders."""
        self._nodes: dict[str, Any] = {}
        self._captured: list[str] = []

    def placeholder(self, tensor: str) -> str:
        """The node that stands for a given tensor."""
        return self._given[tensor]

    def definition(self) -> tuple[Any, list[str]]:
        """The GraphDef, and the captures that it reads."""
        for tensor, name in self._given.items():
            self._add_placeholder(name, self._model.dtype(tensor))
        for name in sorted(self._chosen):
            self._add(name)
        made = tf.compat.v1.GraphDef()
        made.node.extend(self._nodes.values())
        return made, self._captured

    def _add(self, first: str) -> None:
        """A node and all that it needs, without recursion: graphs can be deep."""
        waiting = [first]
        while waiting:
            name = waiting.pop()
            if name in self._nodes:
                continue
            if self._model.is_capture(name):
                self._captured.append(name)
                self._nodes[name] = self._model.node(name)
                continue
            copy = tf.compat.v1.NodeDef()
            copy.CopyFrom(self._model.node(name))
            del copy.input[:]
            self._nodes[name] = copy
            for each in self._model.node(name).input:
                if each.startswith("^"):
                    if each[1:] in self._chosen:
                        copy.input.append(each)
                    continue
                tensor = _canonical(each)
                place = self._resolved(tensor)
                copy.input.append(place or each)
                if not place:
                    waiting.append(_node(tensor))

    def _resolved(self, tensor: str) -> str:
        """Another node to read instead; empty: the node itself is needed."""
        if tensor in self._given:
            return self._given[tensor]
        if self._model.folded(tensor) is not None:
            if tensor not in self.folded:
                self.folded[tensor] = f"folded_{len(self.folded)}"
                self._add_placeholder(self.folded[tensor], self._model.dtype(tensor))
            return self.folded[tensor]
        node = self._model.node(_node(tensor))
        if self._model.is_size(node.name) and node.op in _SHAPES:
            of = _canonical(node.input[int(tensor.rpartition(":")[2])])
            here = of in self._given or _node(of) in self._chosen or self._model.is_size(_node(of))
            if not here:
                self.shapes.setdefault(tensor, f"shape_{len(self.shapes)}")
                self._add_placeholder(self.shapes[tensor], self._model.dtype(tensor))
                return self.shapes[tensor]
        return ""

    def _add_placeholder(self, name: str, dtype: Any) -> None:
        node = tf.compat.v1.NodeDef(name=name, op="Placeholder")
        node.attr["dtype"].type = dtype.as_datatype_enum
        self._nodes[name] = node


def _optimised(signature: Any) -> Any:
    """Its graph after TensorFlow's passes."""
    graph = export_meta_graph(graph_def=signature.graph.as_graph_def(), graph=signature.graph)
    fetched = meta_graph_pb2.CollectionDef()
    fetched.node_list.value.extend(tensor.name for tensor in signature.outputs)
    graph.collection_def["train_op"].CopyFrom(fetched)
    config = config_pb2.ConfigProto()
    rewrite = config.graph_options.rewrite_options
    rewrite.min_graph_nodes = -1
    rewrite.optimizers.extend(PASSES)
    return tf_optimizer.OptimizeGraph(config, graph)


def _tracked(model: Any) -> dict[int, Any]:
    """Variables and tables of a loaded model, by the identity of the handles that functions capture."""
    found: dict[int, Any] = {}
    for each in tf.train.TrackableView(model).descendants():
        handle = each.handle if isinstance(each, tf.Variable) else getattr(each, "resource_handle", None)
        if handle is not None:
            found[id(handle)] = each
    return found


def _inside(value: Any) -> Any:
    """A captured value, in the graph that is being built."""
    return tf.compat.v1.get_default_graph().capture(value)


def _sorted(nodes: Mapping[str, Any]) -> list[str]:
    """In an order in which they can run; Unsplittable when there is none."""
    left = {name: len({_node(each) for each in node.input}) for name, node in nodes.items()}
    after: dict[str, list[str]] = {name: [] for name in nodes}
    for name, node in nodes.items():
        for before in {_node(each) for each in node.input}:
            after[before].append(name)
    waiting = [name for name, count in left.items() if not count]
    order = []
    for name in waiting:                                          # it grows while it is read
        order.append(name)
        for each in after[name]:
            left[each] -= 1
            if not left[each]:
                waiting.append(each)
    if len(order) < len(nodes):
        raise Unsplittable("its graph has a loop")
    return order


def _node(tensor: str) -> str:
    return tensor.removeprefix("^").partition(":")[0]


def _canonical(tensor: str) -> str:
    return tensor if ":" in tensor else f"{tensor}:0"


def _is_stateful(kind: str) -> bool:
    known = op_def_registry.get(kind)
    return known is None or bool(known.is_stateful)


def _port(name: str, spec: Any) -> Port:
    if spec.shape.rank is None:
        raise Unsplittable(f"{name!r} has no known number of dimensions")
    return Port(name, spec.dtype.name, tuple(-1 if size is None else int(size) for size in spec.shape))
