"""Names of environment variables, so that a misspelt one is told of: nobody reads it, and a default holds in its place.

Services know nothing of each other's settings and all get the same variables, so the names of all stand here; a test
holds them to what is read.
"""

from collections.abc import Iterable
from difflib import get_close_matches

PREFIX = "RECMESH_"
_APART = ("RECMESH_BENCH_", "RECMESH_TEST_", "RECMESH_TOPICS_")
"""Of benchmarks and tests; and those that a job's specification names (`recmesh/spec/stream.py`)."""
_ALIKE = 0.75
"""Names that share less are no misspelling of each other."""

SETTINGS = frozenset("""
    ACCELERATORS API_KEY BACKUP_WORKERS BACKUP_WORTH_S BRAIN_RPC CHECKPOINT_FLUSH_THREADS CHECKPOINT_KEEP
    CHECKPOINT_MAX_AGE_S CHECKPOINT_MEMORY_BYTES CHECKPOINT_MEMORY_SNAPSHOTS CHECKPOINT_PEERS
    CHECKPOINT_REPLICA_BYTES_PER_S CHECKPOINT_REPLICA_MEMORY_BYTES CKPTCACHE_RPC CORES CPU_MAX CPU_MIN DASHBOARDS
    DATABASE_URL DATA_DIR DEATHS_TO_QUARANTINE DRAIN_S EFFECT_S EXECUTORS_COOLDOWN_S EXECUTORS_GROW_AFTER_S
    EXECUTORS_HIGH EXECUTORS_LOW FEED_WINDOW_S FORECASTER_RPC FORECAST_DEAR_SHARE FORECAST_EVERY_S FORECAST_HORIZON
    FORECAST_MODELS FORECAST_PROCESSES FORECAST_SHOWN_S FORECAST_WATCH GATEWAY_INFER_QUEUE GATEWAY_INFER_TIMEOUT_S
    GATEWAY_LOAD_TIMEOUT_S GATEWAY_MAX_BODY_BYTES GATEWAY_MAX_CODE_BYTES GATEWAY_MAX_CODE_MEMBERS
    GATEWAY_MAX_CODE_UNPACKED_BYTES GATEWAY_MAX_INFER_BYTES GATEWAY_MAX_INFER_TIMEOUT_S GATEWAY_RATE_STEP_S
    GATEWAY_RPC HEARTBEAT_S HOT_PAUSE_S HOT_RATIO HOT_WAIT_SHARE HOT_WINDOW_S HTTP_ADDRESS JOBMASTER_RPC
    KEDA_ADDRESS KEDA_CACHE_S KEDA_INSECURE KEDA_STREAMS KEDA_TLS_CA KEDA_TLS_CERT KEDA_TLS_KEY LEADER_TTL_S
    LEASE_TTL_S LOG_LEVEL MAX_LIVE_JOBS MEMORY_CEILING_BYTES MEMORY_COOLDOWN_S MEMORY_FACTOR MEMORY_HORIZON_S
    MEMORY_LEAD_S MEMORY_RESERVE MEMORY_SETTLE_S MOVE_SLOTS NATS_DIR NATS_TOKEN NATS_URL NODE OTLP_ENDPOINT PLANNER
    PLAN_DEADLINE_S PLAN_EPSILON PLAN_HORIZON_S PLAN_INTERVAL_S PLAN_RHO PLAN_SETTLE_S PLAN_TOLERANCE PLAN_WINDOW_S
    PROFILES_PER_JOB PROFILE_DAYS PUBLIC_API_KEY QUOTAS RATE_DAYS RATE_IDLE_DAYS RATE_POINTS RATE_SEASON_S
    RATE_SERIES RATE_TIERS REPLACEMENT_S RESIZE_WINDOW_S RETRY_CEILING_S ROLLBACK_S RPC_ADDRESS SEED SERVICE
    SHARDSVC_RPC SHM_DIR SILENCE_S SNAPSHOT_TIMEOUT_S STALL_S START_GRACE_S STORAGE_URI STRAGGLER_ABOVE
    STRAGGLER_BATCHES STRAGGLER_BELOW STRAGGLER_COOLDOWN_S STRAGGLER_WINDOW_S SWEEP_S TLS_CA TLS_CERT TLS_KEY
    TLS_SERVER_NAME VALKEY_CONNECTIONS VALKEY_URL WARM_START_JOBS WARM_START_LIKENESS WARM_START_WEIGHT WARM_UP_S
""".split())    # fmt: skip
"""Settings of services, without the prefix."""

OTHERS = frozenset("""
    CHAOS CHAOS_BREAK CHAOS_PROXY CKPTCACHE DATA DATA_ADDRESS HOME IN_HAND JOBMASTER JOB_ID NOTICE_S PS_ADDRESS
    READY_FILE ROLE ROLE_INDEX TOKEN URL WORK_DIR
""".split())    # fmt: skip
"""What else is read: by commands, by roles of jobs, and where faults are made on purpose."""


def unknown(names: Iterable[str]) -> dict[str, str]:
    """Those of `names` with the prefix that nothing reads, each with the nearest name that something does, or ""."""
    known = sorted(PREFIX + each for each in SETTINGS | OTHERS)
    wrong = sorted(
        each for each in names if each.startswith(PREFIX) and not each.startswith(_APART) and each not in known
    )
    return {each: next(iter(get_close_matches(each, known, n=1, cutoff=_ALIKE)), "") for each in wrong}


def complaint(name: str, nearest: str) -> str:
    """What is told of one of `unknown`."""
    return f"{name} is no setting and does nothing{f'; did you mean {nearest}?' if nearest else ''}"
