"""What inspection would tell of a simulated request: the real prefix keys over bytes that stand for its blocks."""

from __future__ import annotations

import random

from xds_control.inspect.facts import RequestFacts
from xds_control.inspect.keys import chain, namespace, session_key
from xds_control.policy.inspect import InspectPolicy
from xds_control.sim.request import Request

BYTES_PER_TOKEN = 4
MODEL = "model"


def prompt_bytes(request: Request) -> bytes:
    """Bytes that are equal exactly where prompts are: each block is its key over and over, the rest is its own."""
    parts = [key.to_bytes(8, "little") * (request.block * BYTES_PER_TOKEN // 8) for key in request.keys]
    rest = request.prompt - len(request.keys) * request.block
    if rest > 0:
        own = (request.index + 1).to_bytes(8, "big") * (rest * BYTES_PER_TOKEN // 8 + 1)
        parts.append(own[: rest * BYTES_PER_TOKEN])
    return b"".join(parts)


class Inspection:
    """Facts of requests under one policy.

    error: how far token estimates may be off; 0.05 = ± 5 % at random. factor: and by how much all of them are.
    """

    def __init__(self, policy: InspectPolicy, error: float, factor: float, seed: int) -> None:
        self._policy = policy
        self._error = error
        self._factor = factor
        self._seed = seed
        self._namespace = namespace(MODEL, "", "")

    def facts(self, request: Request) -> RequestFacts:
        """The same for the same request and seed."""
        policy = self._policy
        if request.facts_keys is None:
            data = prompt_bytes(request)
            head = data[: request.head * BYTES_PER_TOKEN]
            keys, ends = chain(
                head,
                data[len(head) :],
                self._namespace,
                policy.prefix_block_bytes,
                policy.prefix_growth,
                policy.prefix_max_keys,
            )
            request.facts_keys, request.facts_ends = tuple(keys), tuple(ends)
        off = 1.0 + self._error * (2.0 * random.Random(self._seed ^ (request.index << 20)).random() - 1.0)
        per_byte = off * self._factor / BYTES_PER_TOKEN
        size = request.prompt * BYTES_PER_TOKEN
        return RequestFacts(
            api="openai.chat",
            model=MODEL,
            body_bytes=size,
            prompt_bytes=size,
            prompt_tokens=max(1, int(size * per_byte)),
            prefix_keys=request.facts_keys,
            prefix_tokens=tuple([int(end * per_byte) for end in request.facts_ends]),
            session_key=session_key(str(request.session)) if request.session else 0,
            session_source="header:x-session-id" if request.session else "",
            stream=True,
        )
