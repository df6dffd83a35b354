"""A gRPC xDS server: pure subscription state machines over a snapshot cache of opaque bytes."""
