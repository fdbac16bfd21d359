"""The specifications' rules in CEL, so that the API server refuses what the command line refuses, in the same words.

Each rule of a specification (`recmesh.spec.base.rule`) has an entry: CEL that says the same, or why there is none. What
has none is looked at by jobmaster, as for jobs that come by REST, and told in the object's status. A test holds the
tables against the rules, and every message against that of the specification.

In objects every field has its default, so rules ask `has` only of those whose default is None.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recmesh.spec.base import Spec
from recmesh.spec.dataset import Condition, DatasetSpec
from recmesh.spec.feature import Feature
from recmesh.spec.job import (
    HYPERPARAMETERS,
    LEAST_RATE,
    DataRole,
    Evaluation,
    InitFrom,
    Model,
    Optimizer,
    Role,
    Tracking,
    Training,
    TrainingJob,
)
from recmesh.spec.policies import FailureRule, PodGroupPolicy
from recmesh.spec.quantity import LEAST_MEMORY_BYTES, STARTS
from recmesh.spec.scaling import MOST_STEPS, RATE_STEP_S, Scaling
from recmesh.spec.source import TABLE_FORMATS, Source
from recmesh.spec.stream import MESSAGE_FORMATS, Stream, StreamSource


@dataclass(frozen=True, slots=True)
class Cel:
    """What must hold; `message` is text, `told` is CEL that makes it."""

    rule: str
    message: str = ""
    told: str = ""
    field: str = ""
    """Which field is to blame, from where the rule stands; empty: the place itself."""

    def as_document(self) -> dict[str, Any]:
        """An item of x-kubernetes-validations."""
        made = {"rule": self.rule}
        if self.message:
            made["message"] = self.message
        if self.told:
            made["messageExpression"] = self.told
        if self.field:
            made["fieldPath"] = f".{self.field}"
        return made


@dataclass(frozen=True, slots=True)
class Mesh:
    """The rule is jobmaster's alone, because of `why`."""

    why: str


Rules = Sequence[Cel] | Mesh
_JSON = Mesh("whatever the API server takes is JSON")
_PLACES = Mesh("CEL's paths cannot name the item of a list that is wrong")
_PATTERNS = Mesh("it looks for patterns within texts")
_TOPIC = "(self.jetstream != '' || self.kafka != '')"
_FORMATS = {
    Source: "self.format",
    StreamSource: f"(has(self.format) ? self.format : ({_TOPIC} ? 'jsonl' : 'parquet'))",
}
_NOT_OF_TOPICS = {
    "done": "self.done == ''", "partition": "self.partition.size() == 0", "rows": "!has(self.rows)",
    "header": "self.header", "columns": "self.columns.size() == 0", "may_be_empty": "!self.may_be_empty",
}
_ENDLESS = "self.{}.streams.exists(s, s.sources.exists(c, !has(c.end)))"
_TOPICS = "self.{}.streams.exists(s, s.sources.exists(c, c.jetstream != '' || c.kafka != ''))"


def _hyperparameters() -> list[Cel]:
    complaints = {kind: f"does not use it; it goes by lr, {', '.join(used)}" for kind, used in HYPERPARAMETERS.items()}
    words = ", ".join(f"'{kind}': '{kind} {complaint}'" for kind, complaint in complaints.items())
    made = []
    for name in sorted({name for used in HYPERPARAMETERS.values() for name in used}):
        kinds = ", ".join(f"'{kind}'" for kind, used in HYPERPARAMETERS.items() if name in used)
        default = float(Optimizer.model_fields[name].default)
        unused = f"self.kind in [{kinds}] || self.{name} == {default!r}"
        made.append(Cel(unused, told=f"{{{words}}}[self.kind]", field=name))
    return made


def _bytes(path: str) -> str:
    return f"quantity(string({path}))"


def _amounts(*paths: str) -> str:
    """What keeps a rule silent on amounts that are none: these are told of by themselves."""
    return " && ".join(f"isQuantity(string({path}))" for path in paths)


def _is_fractions(field: str) -> Cel:
    part = f"self.{field}"
    return Cel(
        f"!has({part}) || (0.0 <= {part}[0] && {part}[0] < {part}[1] && {part}[1] <= 1.0)",
        "must be two fractions 0 <= from < to <= 1", field=field,
    )


def _feature(rule: str, words: str, field: str, *, told: str = "") -> Cel:
    return Cel(rule, told=f"'feature ' + self.name + ': ' + {told or repr(words)}", field=field)


def _fields_of_formats(form: str) -> list[Cel]:
    tables = list(TABLE_FORMATS)
    return [
        Cel(f"!({form} in {['parquet', 'arrow', *tables]}) || self.compression in ['infer', 'none']",
            told=f"{form} + ' files pack inside; as a whole they cannot be packed'", field="compression"),
        Cel(f"!({form} in ['csv', 'tsv', 'criteo']) || self.types.all(t, !self.types[t].startsWith('list'))",
            told=f"'columns of ' + {form} + ' hold no lists; separator splits text'", field="types"),
        Cel(f"!({form} in {tables}) || self.files.size() <= 1", told=f"'a ' + {form} + ' source is one table'",
            field="files"),
        *(Cel(f"{empty} || {form} in {tables}", field=name,
              told=f"'belongs to tables ({', '.join(tables)}), not to ' + {form}")
          for name, empty in (("version", "!has(self.version) || self.version == 0"),
                              ("partition", "self.partition.size() == 0"))),
        Cel(f"{form} != 'protobuf' || self.descriptors != ''", "protobuf needs a file of descriptors",
            field="descriptors"),
        Cel(f"{form} != 'protobuf' || self.message != ''", "protobuf needs the name of the messages' type",
            field="message"),
    ]


def _columns_are_named(form: str) -> list[Cel]:
    return [Cel(f"!({form} in ['csv', 'tsv']) || self.header || self.columns.size() > 0",
                "must name the columns of a file without a header", field="columns")]


def _fields_of_topics() -> list[Cel]:
    form = _FORMATS[StreamSource]
    return [
        *(Cel(f"!{_TOPIC} || {unset}", "belongs to files, not to a topic", field=name)
          for name, unset in _NOT_OF_TOPICS.items()),
        Cel(f"!{_TOPIC} || {form} in {list(MESSAGE_FORMATS)}", field="format",
            told=f"'messages of a topic are {', '.join(MESSAGE_FORMATS)}, not ' + {form}"),
        Cel(f"!{_TOPIC} || {form} == 'protobuf' || self.types.size() > 0",
            "must say the type of each column that is needed: messages of a topic are not looked at", field="types"),
        Cel(f"!{_TOPIC} || self.compression in ['infer', 'none']", "belongs to files, not to a topic",
            field="compression"),
        Cel("self.kafka == '' || self.servers != ''", "Kafka needs one at least (host:port)", field="servers"),
        Cel("self.jetstream == '' || self.kafka != '' || self.options.size() == 0", "are of Kafka's client",
            field="options"),
        Cel(f"!{_TOPIC} || self.start != 'group' || self.group != ''", "is missing: start is where it has come to",
            field="group"),
        *(Cel(f"{_TOPIC} || {empty}", "belongs to topics, not to files", field=name)
          for name, empty in (("servers", "self.servers == ''"), ("options", "self.options.size() == 0"),
                              ("group", "self.group == ''"))),
        Cel(f"{_TOPIC} || !(self.start in {list(STARTS)})", field="start",
            told="string(self.start) + ' is for topics; files begin at a moment'"),
    ]


_SOURCE: dict[str, Rules] = {
    "_rows_are_fractions": [_is_fractions("rows")],
    "_format_is_there": Mesh("packages add formats to the mesh"),
    "_fields_fit_the_format": _fields_of_formats(_FORMATS[Source]),
    "_columns_are_named": _columns_are_named(_FORMATS[Source]),
}

RULES: Mapping[type[Spec], Mapping[str, Rules]] = {
    Optimizer: {"_hyperparameters_are_used": _hyperparameters()},
    Model: {
        "_one_model": [Cel("(self.zoo != '') != has(self.entrypoint)", "give either zoo or entrypoint")],
        "_params_are_json": _JSON,
        "_code_has_entrypoint": [
            Cel("self.code == '' || has(self.entrypoint) || self.zoo != ''", "needs an entrypoint in it", field="code")
        ],
    },
    Role: {
        "_min_below_max": [
            Cel("self.min <= self.max", told="'min %d is above max %d'.format([self.min, self.max])",
                field="min"),
        ],
        "_replicas_below_max": [
            Cel("!has(self.replicas) || self.replicas <= self.max", field="replicas",
                told="'replicas %d is above max %d'.format([self.replicas, self.max])"),
        ],
        "_memory_below_its_max": [
            Cel(f"!has(self.memory_max) || (has(self.memory) && (!({_amounts('self.memory', 'self.memory_max')}) || "
                f"!{_bytes('self.memory')}.isGreaterThan({_bytes('self.memory_max')})))",
                "memory_max bounds memory: give both, and memory not above it", field="memory_max"),
        ],
        "_memory_suffices_for_a_process": [
            Cel(f"!has(self.memory) || !{_amounts('self.memory')} || "
                f"!{_bytes('self.memory')}.isLessThan(quantity('{LEAST_MEMORY_BYTES}'))",
                f"is less than the {LEAST_MEMORY_BYTES >> 20} MiB that a process needs", field="memory"),
        ],
        "_pod_template_is_json": Mesh("CEL sees nothing of fields that have no schema"),
    },
    DataRole: {
        "_room_begins_below_its_end": [
            Cel("self.accept_below <= self.refuse_above", field="accept_below",
                told="'accept_below %d is above refuse_above %d'.format([self.accept_below, self.refuse_above])"),
        ],
        "_buffer_fits_into_memory": [
            Cel(f"!has(self.memory) || !({_amounts('self.memory', 'self.buffer')}) || "
                f"!{_bytes('self.memory')}.isLessThan({_bytes('self.buffer')}.add(quantity('{LEAST_MEMORY_BYTES}')))",
                "leaves a process less than 64 MiB of its memory", field="buffer"),
        ],
    },
    Training: {
        "_staleness_is_of_asynchronous_mode": [
            Cel("!has(self.sync) || !has(self.staleness)",
                "synchronous steps are never stale: give either sync or staleness", field="staleness"),
        ],
        "_ftrl_divides_by_its_rate": [
            Cel("!(self.optimizer.kind == 'ftrl' || "
                "self.table_optimizers.exists(t, self.table_optimizers[t].kind == 'ftrl')) || "
                f"self.lr_schedule.all(p, p.factor >= {LEAST_RATE!r})",
                f"ftrl divides by the rate: at least {LEAST_RATE:g}", field="lr_schedule"),
        ],
    },
    Evaluation: {
        "_data_or_rows": [Cel("has(self.data) != has(self.rows)", "give either data or rows")],
        "_rows_are_fractions": [_is_fractions("rows")],
    },
    FailureRule: {"_one_matcher": [
        Cel("has(self.on_exit_codes) != (self.on_pod_conditions.size() > 0)",
            "give either on_exit_codes or on_pod_conditions"),
    ]},
    Tracking: {
        "_somewhere": [
            Cel("self.tensorboard || self.mlflow", "give tensorboard or mlflow, or both: else leave tracking out"),
        ],
    },
    PodGroupPolicy: {"_one_scheduler": [
        Cel("has(self.coscheduling) != has(self.volcano)", "give either coscheduling or volcano"),
    ]},
    InitFrom: {"_one_source": [Cel("(self.job != '') != (self.model != '')", "give either job or model")]},
    Scaling: {
        "_steps_are_of_whole_measurements": [
            Cel(f"self.series.size() > 0 || (self.step_s >= {RATE_STEP_S} && "
                f"double(int(self.step_s / {RATE_STEP_S})) * {RATE_STEP_S} == self.step_s)",
                f"must be a multiple of {RATE_STEP_S:g}: arrivals on topics are measured over so long", field="step_s"),
        ],
        "_the_horizon_has_steps": [
            Cel(f"self.horizon_s / self.step_s >= 1.5 && self.horizon_s / self.step_s <= {MOST_STEPS}.5",
                told=f"'is %d steps of step_s; from 2 to {MOST_STEPS} can be planned'"
                     ".format([int(self.horizon_s / self.step_s + 0.5)])", field="horizon_s"),
        ],
    },
    Condition: {"_value_or_values": Mesh("CEL cannot look at values of any type")},
    DatasetSpec: {
        "_names_differ": Mesh("features are a list with keys, whose equal keys the API server refuses by itself"),
        "_source_or_streams": [
            Cel("has(self.source) || self.streams.size() > 0", "is missing: name files, or streams of them",
                field="source"),
            Cel("!has(self.source) || self.streams.size() == 0", "source or streams, not both", field="streams"),
        ],
        "_streams_end_before_others_begin": _PLACES,
        "_types_agree": _PLACES,
    },
    Feature: {
        "_weights_of_bags": [
            _feature("self.weights == '' || self.kind == 'bag'", "", "weights",
                     told="'weights belong to bags, not to ' + self.kind"),
        ],
        "_transform_of_numbers": [
            _feature("self.transform == 'none' || self.kind == 'dense'", "transform belongs to dense features",
                     "transform"),
        ],
        "_columns_instead_of_one": [
            _feature("self.columns.size() == 0 || self.column == ''", "column or columns, not both", "columns"),
            _feature("self.columns.size() == 0 || self.kind == 'single' || has(self.function)", "", "columns",
                     told="'a cross is a single id; for a ' + self.kind + ' name one column, or a function'"),
        ],
        "_steps_fit_the_kind": [
            _feature("!has(self.clip) || self.kind == 'dense'", "clip belongs to dense features", "clip"),
            *(_feature(f"self.kind != 'dense' || {empty}", f"{name} makes ids, and a dense feature is a number", name)
              for name, empty in (("boundaries", "self.boundaries.size() == 0"),
                                  ("vocabulary", "self.vocabulary.size() == 0"), ("buckets", "!has(self.buckets)"))),
            _feature("self.boundaries.size() == 0 || self.vocabulary.size() == 0", "boundaries or vocabulary, not both",
                     "vocabulary"),
            _feature("self.columns.size() == 0 || has(self.function) || "
                     "(self.boundaries.size() == 0 && self.vocabulary.size() == 0)",
                     "a cross is hashed; boundaries and vocabulary are of one column", "columns"),
        ],
        "_numbers_are_ordered": [
            # Equal neighbours, and equal words of a vocabulary, are jobmaster's: each would be compared with each.
            _feature("self.boundaries.isSorted()", "boundaries must ascend", "boundaries"),
        ],
    },
    Source: _SOURCE,
    StreamSource: {
        **_SOURCE,
        "_fields_fit_the_format": _fields_of_formats(_FORMATS[StreamSource]),
        "_columns_are_named": _columns_are_named(_FORMATS[StreamSource]),
        "_files_or_topic": [
            Cel(f"self.files.size() > 0 || {_TOPIC}",
                "is missing: name files, or a topic by jetstream or kafka", field="files"),
            Cel("self.files.size() == 0 || self.jetstream == ''", "files or jetstream, not both", field="jetstream"),
            Cel("self.kafka == '' || (self.files.size() == 0 && self.jetstream == '')", field="kafka",
                told="(self.files.size() > 0 ? 'files' : 'jetstream') + ' or kafka, not both'"),
        ],
        "_fields_of_topics": _fields_of_topics(),
        "_variables_are_of_topics": _PATTERNS,
        "_options_are_harmless": _PATTERNS,
        "_ends_after_it_starts": [
            Cel("!has(self.end) || type(self.start) != int || type(self.end) != int || "
                "int(self.end) - int(self.start) > 0",
                "must be after start", field="end"),
        ],
        "_times_are_known": _PATTERNS,
        "_servers_have_ports": _PATTERNS,
        "_whole_files": [
            Cel(f"!has(self.rows) || {_TOPIC}",
                "belongs to a dataset of one source; of a stream, start and end say which part", field="rows"),
        ],
    },
    Stream: {
        "_weights_of_all_or_none": [
            Cel("self.sources.all(s, has(s.weight)) || !self.sources.exists(s, has(s.weight))",
                "either all of them have a weight, or none", field="sources"),
        ],
        "_windows_are_told_apart": [        # of numbers; texts are jobmaster's, as what is wrong with items of lists is
            Cel("type(self.window) == string || (self.window >= 60 && self.window % 60 == 0)", "must be whole minutes",
                field="window"),
        ],
    },
    TrainingJob: {
        "_what_is_fresh_is_served": [
            Cel("!has(self.freshness) || (has(self.export) && self.export != null && self.export.serve)",
                "is of a model that is served: export must not be null, nor export.serve false", field="freshness"),
        ],
        "_one_dataset": [Cel("has(self.data) != has(self.dataset)", "give either data or dataset", field="data")],
        "_servers": [
            Cel("!has(self.roles.ps.replicas) || self.roles.ps.replicas != 0",
                "a job needs at least one parameter server", field="roles.ps.replicas"),
            Cel("self.roles.ps.max >= 1 || (has(self.roles.ps.replicas) && self.roles.ps.replicas == 0)",
                "a job needs at least one parameter server", field="roles.ps.max"),
        ],
        "_workers": [
            Cel("self.roles.worker.max >= 1", "a job needs at least one worker", field="roles.worker.max"),
        ],
        "_model_has_a_name": Mesh("a rule of the object itself, for the job's name is there (definitions)"),
        "_streams_are_trained_once_and_as_they_come": [
            Cel(f"!has(self.data) || self.training.epochs == 1 || !{_ENDLESS.format('data')}",
                "must be 1: the streams of data never end", field="training.epochs"),
            Cel(f"!has(self.data) || self.training.epochs == 1 || {_ENDLESS.format('data')} || "
                f"!{_TOPICS.format('data')}",
                "must be 1: a topic is trained as it comes, once", field="training.epochs"),
            Cel("!has(self.data) || self.data.streams.size() == 0 || !has(self.training.sync)",
                "is for a dataset of one source: the steps of a stream's end are not known before it",
                field="training.sync"),
        ],
        "_scaling_follows_topics": [
            Cel(f"!has(self.scaling) || !has(self.data) || {_TOPICS.format('data')}",
                "follows what comes in on topics, and data has none", field="scaling"),
        ],
        "_evaluation_ends": [
            Cel("!has(self.evaluation) || !has(self.evaluation.rows) || !has(self.data) || "
                "self.data.streams.size() == 0",
                "is a part of one source, and data has streams; give evaluation.data", field="evaluation.rows"),
            Cel(f"!has(self.evaluation) || !has(self.evaluation.data) || !{_ENDLESS.format('evaluation.data')}",
                "never end; give each source an end", field="evaluation.data.streams"),
            Cel(f"!has(self.evaluation) || !has(self.evaluation.data) || {_ENDLESS.format('evaluation.data')} || "
                f"!{_TOPICS.format('evaluation.data')}",
                "have a topic, which only training follows; evaluation needs files", field="evaluation.data.streams"),
        ],
        "_stopping_needs_evaluation": [
            Cel("!has(self.training.early_stopping) || (has(self.evaluation) && has(self.evaluation.every_s))",
                "needs evaluation.every_s", field="training.early_stopping"),
        ],
    },
}
"""By specification and the name of its rule."""

FIELDS: Mapping[tuple[type[Spec], str], Sequence[Cel]] = {
    (Training, "lr_schedule"): [
        Cel("self.map(p, p.step).isSorted() && self.all(p, self.exists_one(q, q.step == p.step))",
            "steps must ascend"),
    ],
}
"""What validators of single fields ask."""

def of_kind(kind: type[Spec]) -> list[Cel]:
    """The rules of a specification, those that it has from others included."""
    tables = [RULES[base] for base in reversed(kind.__mro__) if base in RULES]
    merged: dict[str, Rules] = {}
    for table in tables:
        merged |= table
    return [item for rules in merged.values() if not isinstance(rules, Mesh) for item in rules]


def of_field(owner: type[Any], name: str) -> Sequence[Cel]:
    """The rules of a single field."""
    return FIELDS.get((owner, name), ())
