"""gRPC face of gateway: decode, call the app, encode. The mesh and the public share one port."""
