"""forecaster: traffic rates and what they will be.

Owns: series of rates, in SQLite or PostgreSQL.
Answers (gRPC): recmesh.forecaster.v1.Forecaster. Events in: rate.observed.
Events out: forecast.updated, for the series it is told to watch.
"""
