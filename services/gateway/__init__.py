"""gateway: the public face of a mesh.

Owns      the model registry, the serving of registered models, uploaded user code
REST      /v1 (jobs, code, datasets, models, webhooks, forecasts, plans, mesh), /v2 (Open Inference Protocol),
          / (ops page), /docs
gRPC      recmesh.gateway.v1.Models (jobmaster registers here), inference.GRPCInferenceService
Events    out: model.registered, model.ready, model.failed, model.unloaded, model.measured,
           model.scaling_decided, model.scaled, rates.observed, audit.recorded, webhook.disabled;
          in: jobs' events, for lists and live views; all facts, for webhooks; label.post, model.register
Topics    out: prediction.logged, label.posted (docs/reference/loop.md)
State     JetStream KV (model versions, webhooks), the storage folder (models, code)
Calls     jobmaster, shardsvc, ckptcache, brain, forecaster

One version of a model serves at a time. Each gateway process loads what the registry says was ready; the
state in the registry is the last that any of them reported.
"""
