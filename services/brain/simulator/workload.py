"""Jobs of a trace on the models of a truth."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from services.brain.simulator.job import Job, TraceJob
from services.brain.simulator.truth import Truth, rate_of

FAVOURITE = 0.8
"""Probability that a job is of its owner's usual model: owners resubmit."""

ALIASES = {"recommendation": "ncf", "cifar10": "resnext-110", "imagenet": "resnet-50", "resnet50": "resnet-50",
           "resnet-18": "resnext-110", "resnet50_cifar10": "resnext-110", "vgg16": "vgg-16", "lm": "wlm",
           "transformer": "seq2seq", "translation": "seq2seq", "inception3": "inception-bn"}  # fmt: skip
"""Names that traces and truths have for a like model, where the truth has no model of the trace's own name."""


def jobs_of(
    trace: Sequence[TraceJob],
    truth: Truth,
    *,
    rng: np.random.Generator,
    models: Sequence[str] = (),
    longest_s: float = 0.0,
    spread: float = 0.0,
) -> list[Job]:
    """A job trains as many samples as its user's own size trains in the duration that the trace gives.

    So `static` without queueing or faults takes just as long as the trace says. A model that the trace names is kept
    where the truth has it; else a job gets its owner's usual one, or any of `models` (default: all of the truth).
    `longest_s` cuts durations; 0 leaves them. `spread` is the standard deviation of the logarithm of a job's own speed.
    """
    offered = tuple(models) or truth.models
    usual: dict[str, str] = {}
    jobs = []
    for entry in trace:
        model = _model(entry, offered, usual, rng)
        facts = truth.facts(model)
        asked = facts.asked(entry.workers)
        duration = min(entry.duration_s, longest_s) if longest_s else entry.duration_s
        speed = math.exp(rng.normal(0.0, spread))
        jobs.append(
            Job(
                job_id=entry.job_id,
                arrival_s=entry.arrival_s,
                facts=facts,
                asked=asked,
                samples=duration * rate_of(truth, model, asked) * speed,
                owner=entry.owner,
                deadline_s=entry.deadline_s,
                priority=entry.priority,
                speed=speed,
                bounds=facts.bounds,
            )
        )
    return jobs


def _model(entry: TraceJob, offered: Sequence[str], usual: dict[str, str], rng: np.random.Generator) -> str:
    named = next((name for name in (entry.model, ALIASES.get(entry.model, "")) if name in offered), "")
    any_one = offered[int(rng.integers(len(offered)))]
    keeps = rng.random() < FAVOURITE
    if named:
        return named
    return usual.setdefault(entry.owner, any_one) if keeps else any_one


def paced(jobs: Sequence[Job], truth: Truth, *, capacity_cpu: float, load: float) -> list[Job]:
    """The same jobs, with all gaps between arrivals stretched alike so that what users ask for fills `load` of the
    cluster's cores on average from first to last arrival: Σ duration · cores asked = load · capacity · span.

    A deadline keeps its distance from the arrival.
    """
    span = jobs[-1].arrival_s - jobs[0].arrival_s
    work = sum(
        job.samples / job.speed / rate_of(truth, job.facts.model, job.asked) * job.asked.resources.cpu for job in jobs
    )
    if span <= 0 or work <= 0:
        return list(jobs)
    stretch = work / (load * capacity_cpu) / span
    paced_jobs = []
    for job in jobs:
        arrival = jobs[0].arrival_s + (job.arrival_s - jobs[0].arrival_s) * stretch
        deadline = None if job.deadline_s is None else job.deadline_s - job.arrival_s + arrival
        paced_jobs.append(replace(job, arrival_s=arrival, deadline_s=deadline))
    return paced_jobs
