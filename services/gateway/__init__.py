"""gateway: the public face of a mesh.

Owns      the model registry, the serving of registered models, uploaded user code
REST      /v1 (jobs, code, datasets, models, forecasts, plans, mesh), /v2 (Open Inference Protocol), / (ops page), /docs
gRPC      recmesh.gateway.v1.Models (jobmaster registers here), inference.GRPCInferenceService
Events    out: model.registered, model.ready, model.failed, model.unloaded, rate.observed; in: job events, for live views
State     JetStream KV (model versions), the storage folder (models, code)
Calls     jobmaster, shardsvc, ckptcache, brain, forecaster
"""
