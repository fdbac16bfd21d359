"""gateway: the public face of a mesh.

Owns      the model registry, the serving of registered models, uploaded user code
REST      /v1 (jobs, code, datasets, models, forecasts, plans, mesh), /v2 (Open Inference Protocol),
          / (ops page), /docs
gRPC      recmesh.gateway.v1.Models (jobmaster registers here), inference.GRPCInferenceService
Events    out: model.registered, model.ready, model.failed, model.unloaded, rate.observed;
          in: jobs' events, for lists and live views
State     JetStream KV (model versions), the storage folder (models, code)
Calls     jobmaster, shardsvc, ckptcache, brain, forecaster

One version of a model serves at a time. Each gateway process loads what the registry says was ready; the
state in the registry is the last that any of them reported.
"""
