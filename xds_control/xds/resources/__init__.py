"""The Envoy resources that xds-control serves, built from policy and snapshots.

Resources built once per policy use `envoy-data-plane` (typed dataclasses, newest filters);
ClusterLoadAssignments, built per push, use upb messages (100 times cheaper at 1000 endpoints).
"""
