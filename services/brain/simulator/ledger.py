"""What jobs held, used and trained over time."""

from services.brain.simulator.run import Phase, Run


class Ledger:
    """Of all jobs of one simulation: (from, to, cores, bytes) each."""

    def __init__(self) -> None:
        self.held: list[tuple[float, float, float, float]] = []
        """By one job."""
        self.used: list[tuple[float, float, float, float]] = []
        """By one job, while it trained."""

    def advance(self, run: Run, now: float) -> None:
        """Accounts for the time since the job was last looked at."""
        since, run.updated = run.updated, now
        held = now - since
        if held <= 0 or run.allocation is None:
            return
        run.deaths.spend(held * run.processes)
        run.slowness.spend(held * run.worker_pods.count)
        resources = run.worker_pods.size, run.ps_pods.size
        cpu = run.worker_pods.count * resources[0].cpu + run.ps_pods.count * resources[1].cpu
        memory = run.worker_pods.count * resources[0].memory_bytes + run.ps_pods.count * resources[1].memory_bytes
        for pods, count in run.retiring:
            if pods is not run.worker_pods and pods is not run.ps_pods:
                cpu += count * pods.size.cpu
                memory += count * pods.size.memory_bytes
        self.held.append((since, now, cpu, memory))
        begin = max(since, run.train_from)
        if run.phase is Phase.RUNNING and now > begin and run.rate:
            trained = (now - begin) * run.rate * run.slow
            run.done += trained
            run.trained += trained
            self.used.append((begin, now, run.use.cpu, run.use.memory_bytes))


def roll_back(run: Run, now: float, every_s: float) -> None:
    """To its last checkpoint."""
    since = (now - run.saved_from) % every_s if now > run.saved_from else 0.0
    gone = min(run.done, run.rate * run.slow * max(0.0, min(since, now - run.train_from)))
    run.done -= gone
    run.lost += gone
