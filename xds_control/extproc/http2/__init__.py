"""A small HTTP/2 server for gRPC: what an Envoy needs to call us, at a fraction of the CPU of a general one."""
