"""Routes: the processor's choice of pool if it made one, else the default pool."""

from __future__ import annotations

from collections.abc import Sequence

from envoy_data_plane.envoy.config.core.v3 import HeaderValue, HeaderValueOption, HeaderValueOptionHeaderAppendAction
from envoy_data_plane.envoy.config.route.v3 import (
    DirectResponseAction,
    HeaderMatcher,
    RetryPolicy,
    RetryPolicyRetryHostPredicate,
    Route,
    RouteAction,
    RouteActionHashPolicy,
    RouteActionHashPolicyHeader,
    RouteActionRequestMirrorPolicy,
    RouteConfiguration,
    RouteMatch,
    VirtualHost,
)
from envoy_data_plane.envoy.extensions.retry.host.previous_hosts.v3 import PreviousHostsPredicate
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher
from envoy_data_plane.google import protobuf as pb

from xds_control.policy import headers
from xds_control.policy.gateway import EnvoyPolicy
from xds_control.policy.pools import PoolPolicy
from xds_control.xds.resources.common import seconds
from xds_control.xds.resources.names import ROUTES

_HASHED = {"session": headers.SESSION, "prefix": headers.PREFIX}


def gateway_routes(
    envoy: EnvoyPolicy,
    pools: Sequence[PoolPolicy],
    default_pool: str | None,
    mirrors: bool = False,
    decision: bool = False,
    token_header: str = "",
) -> RouteConfiguration:
    """One virtual host for everything. default_pool: where requests go that no processor has looked at.

    mirrors: some model route copies requests. Copied ones have a route of their own, because Envoy holds the body of
    every request on a route that mirrors. decision: answers carry the id of the processor's decision.
    token_header: answers carry the session's token in it, and that of its prefill endpoint in `NAME-prefill`.
    """
    routes = [
        Route(
            name=f"pool-{pool.name}",
            match=RouteMatch(
                prefix="/",
                headers=[HeaderMatcher(name=headers.POOL, string_match=StringMatcher(exact=pool.name))],
            ),
            route=_action(envoy, cluster=pool.name, hashed=_HASHED[pool.hash_key]),
        )
        for pool in pools
        if pool.hashes
    ]
    if mirrors:
        present = [HeaderMatcher(name=name, present_match=True) for name in (headers.POOL, headers.MIRROR)]
        action = _action(envoy, cluster_header=headers.POOL, hashed=headers.SESSION)
        action.request_mirror_policies = [RouteActionRequestMirrorPolicy(cluster_header=headers.MIRROR)]
        routes.insert(0, Route(name="mirrored", match=RouteMatch(prefix="/", headers=present), route=action))
    routes.append(
        Route(
            name="chosen-pool",
            match=RouteMatch(prefix="/", headers=[HeaderMatcher(name=headers.POOL, present_match=True)]),
            route=_action(envoy, cluster_header=headers.POOL),
        )
    )
    if default_pool is None:
        routes.append(
            Route(
                name="no-default-pool", match=RouteMatch(prefix="/"), direct_response=DirectResponseAction(status=404)
            )
        )
    else:
        routes.append(
            Route(name="default-pool", match=RouteMatch(prefix="/"), route=_action(envoy, cluster=default_pool))
        )
    told = [(headers.DECISION, headers.META_ID)] if decision else []
    if token_header:
        told += [(token_header, headers.META_TOKEN), (f"{token_header}-prefill", headers.META_PREFILL_TOKEN)]
    return RouteConfiguration(
        name=ROUTES,
        response_headers_to_add=[_told(name, key) for name, key in told],
        virtual_hosts=[
            VirtualHost(
                name="gateway",
                domains=["*"],
                routes=routes,
                retry_policy=_retries(envoy),
                request_body_buffer_limit=envoy.body_limit_bytes,
            )
        ],
    )


def _told(name: str, key: str) -> HeaderValueOption:
    """Envoy adds it itself, from the metadata that the processor wrote: no answer has to pass a processor for it."""
    return HeaderValueOption(
        header=HeaderValue(key=name, value=f"%DYNAMIC_METADATA({headers.NAMESPACE}:{key})%"),
        append_action=HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
    )


def _action(
    envoy: EnvoyPolicy, *, cluster: str | None = None, cluster_header: str | None = None, hashed: str | None = None
) -> RouteAction:
    return RouteAction(
        cluster=cluster,
        cluster_header=cluster_header,
        timeout=seconds(0),
        idle_timeout=seconds(envoy.stream_idle_timeout_s),
        hash_policy=[RouteActionHashPolicy(header=RouteActionHashPolicyHeader(header_name=hashed))] if hashed else [],
    )


def _retries(envoy: EnvoyPolicy) -> RetryPolicy | None:
    retries = envoy.retries
    if not retries.attempts:
        return None
    conditions = list(retries.on)
    if retries.status_codes and "retriable-status-codes" not in conditions:
        conditions.append("retriable-status-codes")
    return RetryPolicy(
        retry_on=",".join(conditions),
        num_retries=retries.attempts,
        retriable_status_codes=list(retries.status_codes),
        retry_host_predicate=[
            RetryPolicyRetryHostPredicate(
                name="envoy.retry_host_predicates.previous_hosts", typed_config=pb.Any.pack(PreviousHostsPredicate())
            )
        ],
        host_selection_retry_max_attempts=5,
    )
