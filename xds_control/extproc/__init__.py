"""The ext_proc service: a pure state machine per stream, and its gRPC edge."""
