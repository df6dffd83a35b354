"""Answers of the admin service from what a backend holds (pure: `now` is monotonic, `wall` unix seconds)."""

from __future__ import annotations

from collections.abc import Container

from xds_control.admin import views
from xds_control.admin.backend import Backend, BadRequest, NotReady, Unknown, UnknownEndpoint
from xds_control.admin.keys import EVENT_KINDS, NOTABLE
from xds_control.fleet.snapshot import EndpointSnapshot, Snapshot, State
from xds_control.policy.validate import nearest
from xds_control.proto import admin_pb2 as pb


class Queries:
    """Builds the answers. Everything raises NotReady before the first snapshot, Unknown and UnknownEndpoint for names
    that do not exist, BadRequest for what makes no sense."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def fleet(self) -> Snapshot:
        """The newest snapshot."""
        snapshot = self._backend.snapshot()
        if snapshot is None:
            raise NotReady("control has made no snapshot yet; try again in a moment")
        return snapshot

    def status(self, now: float) -> pb.GetStatusResponse:
        """How control itself is."""
        facts = self._backend.status()
        snapshot = self._backend.snapshot()
        clients = self._backend.xds_clients()
        rate = 0.0
        for pool in snapshot.pools if snapshot is not None else ():
            stats = self._backend.pool_stats(pool, now, long=False)
            rate += 0.0 if stats is None else stats.requests_per_s
        states = views.states_of(snapshot)
        return pb.GetStatusResponse(
            version=facts.version,
            epoch="" if snapshot is None else snapshot.epoch,
            uptime_s=max(0.0, now - facts.started_at),
            ready=facts.ready,
            problems=facts.problems,
            policy_version=facts.policy_version,
            shadow_version=facts.shadow_version,
            snapshot_version=0 if snapshot is None else snapshot.version,
            snapshot_age_s=0.0 if snapshot is None else max(0.0, now - snapshot.at),
            ticks=facts.ticks,
            tick_s=facts.tick_s,
            pools=0 if snapshot is None else len(snapshot.pools),
            endpoints=sum(states.values()),
            endpoint_states=states,
            xds_clients=len(clients),
            xds_clients_behind=sum(views.behind(one) for one in clients),
            processors=len(self._backend.processors()),
            agents=facts.agents,
            requests_per_s=rate,
            log_level=facts.log_level,
        )

    def pools(self, request: pb.ListPoolsRequest, now: float) -> pb.ListPoolsResponse:
        """Pools by name."""
        snapshot = self.fleet()
        _known_pool(snapshot, request.pool)
        weights = self._backend.weights()
        return pb.ListPoolsResponse(
            pools=[
                views.pool_message(pool, weights.get(name), self._backend.pool_stats(name, now, long=True))
                for name, pool in sorted(snapshot.pools.items())
                if request.pool in ("", name)
            ]
        )

    def endpoints(self, request: pb.ListEndpointsRequest, now: float) -> pb.ListEndpointsResponse:
        """Endpoints by pool and address."""
        snapshot = self.fleet()
        _known_pool(snapshot, request.pool)
        unknown = set(request.states) - {state.value for state in State}
        if unknown:
            raise BadRequest(f"{min(unknown)!r} is no state; states are {', '.join(State)}")
        address = ""
        if request.endpoint:
            address = views.find_endpoint(snapshot, request.endpoint, request.pool)[1].endpoint.address
        maker = EndpointMaker(self._backend, now, request.explain, request.all_sources, True, request.long_window)
        response = pb.ListEndpointsResponse(epoch=snapshot.epoch, snapshot_version=snapshot.version)
        for name, pool in sorted(snapshot.pools.items()):
            if request.pool not in ("", name):
                continue
            shares = views.weight_shares(pool)
            for one in pool.endpoints:
                if address in ("", one.endpoint.address):
                    made = maker.make(name, one, shares[one.endpoint.address])
                    if not request.states or made.state in request.states:
                        response.endpoints.append(made)
        return response

    def events(self, request: pb.ListEventsRequest, now: float, wall: float) -> pb.ListEventsResponse:
        """What happened, oldest first."""
        limit = request.limit or 100
        filtered = bool(request.endpoint or request.pool or request.kind)
        events = self._backend.events(request.after, 1_000_000 if filtered else limit)
        newest = events[-1].sequence if events else request.after
        if request.kind and request.kind not in EVENT_KINDS:
            raise BadRequest(f"{request.kind!r} is no kind of event; kinds are {', '.join(EVENT_KINDS)}")
        address = self._address(request.endpoint, {event.endpoint for event in events})
        self._check_pool(request.pool, {event.pool for event in events})
        chosen = [
            event
            for event in events
            if address in ("", event.endpoint) and request.pool in ("", event.pool) and request.kind in ("", event.kind)
        ]
        return pb.ListEventsResponse(
            events=[views.event_message(event, now, wall) for event in chosen[-limit:]], newest=newest
        )

    def _address(self, endpoint: str, past: Container[str]) -> str:
        """The address of a named endpoint; the text itself when it is not in the fleet any more, but in the past.

        Raises UnknownEndpoint when it is in neither.
        """
        snapshot = self._backend.snapshot()
        if not endpoint or snapshot is None:
            return endpoint
        try:
            return views.find_endpoint(snapshot, endpoint)[1].endpoint.address
        except UnknownEndpoint:
            if endpoint in past:
                return endpoint
            raise

    def _check_pool(self, pool: str, past: Container[str]) -> None:
        snapshot = self._backend.snapshot()
        if snapshot is not None and pool and pool not in past:
            _known_pool(snapshot, pool)

    async def requests(self, request: pb.ListRequestsRequest) -> pb.ListRequestsResponse:
        """Requests that the processors keep, newest first."""
        unknown = set(request.notable) - set(NOTABLE)
        if unknown:
            raise BadRequest(f"{min(unknown)!r} is no reason to keep a request; reasons are {', '.join(NOTABLE)}")
        wanted = pb.ListRequestsRequest()
        wanted.CopyFrom(request)
        wanted.endpoint = self._address(request.endpoint, _Everything())
        found = await self._backend.requests(wanted)
        if not found.requests:
            self._check_pool(request.pool, ())
            self._address(request.endpoint, ())
        return found

    async def audit(self, request: pb.ListAuditRequest) -> pb.ListAuditResponse:
        """Who did what, newest first."""
        wanted = pb.ListAuditRequest(limit=request.limit, endpoint=self._address(request.endpoint, _Everything()))
        found = await self._backend.audit(wanted)
        if not found.entries:
            self._address(request.endpoint, ())
        return found

    def snapshots(self, request: pb.ListSnapshotsRequest, now: float, wall: float) -> pb.ListSnapshotsResponse:
        """Kept snapshots, oldest first; those in which the named endpoint or pool moved."""
        limit = request.limit or 50
        history = self._backend.history()
        entries = history.entries(since=request.since)
        moves = [move for entry in entries for move in entry.moves]
        address = self._address(request.endpoint, {move.address for move in moves})
        self._check_pool(request.pool, {move.pool for move in moves})
        made = [views.snapshot_message(entry, now, wall, address, request.pool) for entry in entries]
        if address or request.pool:
            made = [one for one in made if one.moves]
        return pb.ListSnapshotsResponse(snapshots=made[-limit:])

    def compare(self, request: pb.CompareSnapshotsRequest) -> pb.CompareSnapshotsResponse:
        """What moved between two kept snapshots."""
        newer = request.newer or self.fleet().version
        try:
            moves = self._backend.history().between(request.older, newer)
        except KeyError as error:
            raise Unknown(f"snapshot {error.args[0]} is not kept (any more)") from error
        return pb.CompareSnapshotsResponse(moves=[views.move_message(move) for move in moves])

    def clients(self) -> pb.ListClientsResponse:
        """The connected xDS clients."""
        return pb.ListClientsResponse(clients=[views.client_message(one) for one in self._backend.xds_clients()])

    def processors(self, now: float) -> pb.ListProcessorsResponse:
        """The processors by name."""
        snapshot = self._backend.snapshot()
        newest = 0 if snapshot is None else snapshot.version
        facts = sorted(self._backend.processors(), key=lambda one: one.name)
        return pb.ListProcessorsResponse(processors=[views.processor_message(one, newest, now) for one in facts])


class EndpointMaker:
    """Makes endpoint messages with the parts that were asked for."""

    def __init__(
        self, backend: Backend, now: float, explain: bool, all_sources: bool, traffic: bool, long: bool
    ) -> None:
        self._backend = backend
        self._now = now
        self._weights = backend.weights() if explain else {}
        self._all_sources = all_sources
        self._traffic = traffic
        self._long = long

    def make(self, pool: str, one: EndpointSnapshot, share: float) -> pb.Endpoint:
        """One endpoint; share: of the weights at its priority."""
        backend, now, address = self._backend, self._now, one.endpoint.address
        weights = self._weights.get(pool)
        weight = weights.by_address.get(address) if weights is not None else None
        return views.endpoint_message(
            pool,
            one,
            share,
            now,
            life=backend.life(address),
            stats=backend.stats(address, now, long=self._long) if self._traffic else None,
            raw=backend.raw_signals(address, now) if self._all_sources else None,
            explanation=weight.explanation if weight is not None else None,
        )


class Watch:
    """What one Watch stream has been told."""

    def __init__(self, backend: Backend, request: pb.WatchRequest) -> None:
        self._backend = backend
        self._request = request
        self._snapshot: Snapshot | None = None
        self._address = ""
        if request.HasField("after_event"):
            self._event = request.after_event
        else:
            newest = backend.events(0, 1)
            self._event = newest[-1].sequence if newest else 0

    def next(self, now: float, wall: float) -> pb.WatchResponse | None:
        """The next message; None when nothing changed. Raises UnknownEndpoint or Unknown at the first."""
        request, snapshot = self._request, self._backend.snapshot()
        if snapshot is None:
            raise NotReady("control has made no snapshot yet; try again in a moment")
        before = self._snapshot
        full = before is None or before.epoch != snapshot.epoch
        if full:
            _known_pool(snapshot, request.pool)
            if request.endpoint:
                self._address = views.find_endpoint(snapshot, request.endpoint, request.pool)[1].endpoint.address
        message = pb.WatchResponse(
            epoch=snapshot.epoch,
            snapshot_version=snapshot.version,
            at_unix_s=wall,
            policy_version=snapshot.policy_version,
            full=full,
        )
        if not request.events_only and (request.traffic or before is not snapshot):
            self._endpoints(message, snapshot, None if full else before, now)
        for event in self._backend.events(self._event, 1000):
            self._event = event.sequence
            if request.pool in ("", event.pool) and (not request.endpoint or event.endpoint == self._address):
                message.events.append(views.event_message(event, now, wall))
        self._snapshot = snapshot
        if full or message.endpoints or message.removed or message.events:
            return message
        return None

    def _endpoints(self, message: pb.WatchResponse, snapshot: Snapshot, before: Snapshot | None, now: float) -> None:
        request = self._request
        maker = EndpointMaker(self._backend, now, request.explain, False, request.traffic, False)
        old_pools = before.pools if before is not None else {}
        for name, pool in sorted(snapshot.pools.items()):
            if request.pool not in ("", name):
                continue
            old_pool = old_pools.get(name)
            if old_pool is pool and not request.traffic:
                continue
            old = {one.endpoint.address: _shown(one) for one in old_pool.endpoints} if old_pool is not None else {}
            # A weight that moved moves everybody's share.
            moved = request.traffic or {a: shown[:2] for a, shown in old.items()} != {
                one.endpoint.address: _shown(one)[:2] for one in pool.endpoints
            }
            shares = views.weight_shares(pool)
            for one in pool.endpoints:
                address = one.endpoint.address
                if request.endpoint and address != self._address:
                    continue
                if moved or old.get(address) != _shown(one):
                    message.endpoints.append(maker.make(name, one, shares[address]))
        kept = {one.endpoint.address for pool in snapshot.pools.values() for one in pool.endpoints}
        for name, pool in old_pools.items():
            if request.pool in ("", name):
                message.removed.extend(
                    one.endpoint.address for one in pool.endpoints if one.endpoint.address not in kept
                )


class _Everything:
    """A past in which every name occurs."""

    def __contains__(self, _: object) -> bool:
        return True


def _shown(one: EndpointSnapshot) -> tuple[object, ...]:
    """What a watcher hears of when it changes; signals move at every tick and are not among it."""
    return (one.weight, one.priority, one.state, one.health, one.pickable, one.capacity, one.gates)


def _known_pool(snapshot: Snapshot, pool: str) -> None:
    if pool and pool not in snapshot.pools:
        raise Unknown(
            f"there is no pool {pool!r}; pools are {', '.join(sorted(snapshot.pools))}{nearest(pool, snapshot.pools)}"
        )
