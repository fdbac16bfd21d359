"""gRPC face of jobmaster: what it answers itself (`servicers`), and what it has another jobmaster answer (`routed`)."""

from services.jobmaster.rpc.front import Front
from services.jobmaster.rpc.routed import Desk, RoutedJobs, RoutedRuns
from services.jobmaster.rpc.servicers import SERVICE_NAMES, JobsServicer, RunsServicer, registrations

__all__ = [
    "SERVICE_NAMES", "Desk", "Front", "JobsServicer", "RoutedJobs", "RoutedRuns", "RunsServicer", "registrations",
]  # fmt: skip
