"""Generated gRPC code (see protos/). Regenerate with `make protos`; CI checks that it is current."""
