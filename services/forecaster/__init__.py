"""forecaster: traffic rates and what they will be.

Owns: series of rates, and what was said of them before, in SQLite or PostgreSQL.
Answers (gRPC): recmesh.forecaster.v1.Forecaster, externalscaler.ExternalScaler.
Events in: rate.observed, rates.observed.
Events out: forecast.updated, for the series it is told to watch.
"""
