"""One request on its way through the picker: what it needs, who may serve it, who has how much of it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from xds_control.inspect.facts import RequestFacts
from xds_control.policy.picker import ProfilePolicy
from xds_control.routing.affinity import ranks
from xds_control.routing.kv_index import prompt_keys
from xds_control.routing.prefix_index import Levels, Path, indices, pack
from xds_control.routing.slot import INFINITE, Columns, Floats
from xds_control.routing.slots import PoolSlots

_LEVELS = 12
_FEW = 6
_put_vector = struct.Struct("=6d").pack_into


class Job:
    """Working state of one pick. prompt, output: tokens. work: the prompt's tokens as the time that reading them takes
    counts them. need: KV tokens with margin. length: prompt plus the output
    that the client allows. allowed: endpoints as bits."""

    __slots__ = (
        "allowed",
        "columns",
        "facts",
        "hit_tokens",
        "keys",
        "length",
        "levels",
        "lora",
        "model",
        "name",
        "need",
        "now",
        "output",
        "packed",
        "path",
        "pinned",
        "profile",
        "prompt",
        "ranked",
        "second",
        "slots",
        "tie_key",
        "totals",
        "work",
    )

    def __init__(
        self,
        slots: PoolSlots,
        facts: RequestFacts,
        name: str,
        profile: ProfilePolicy,
        allowed: int,
        now: float,
        model: str,
    ) -> None:
        self.slots = slots
        self.facts = facts
        self.name = name
        self.profile = profile
        self.columns: Columns = slots.columns[profile.cost]
        self.allowed = allowed
        self.now = now
        prompt = facts.prompt_tokens
        if slots.calibration != 1.0:
            prompt = max(1, int(prompt * slots.calibration))
        self.prompt = prompt
        self.work = prompt * (1.0 + slots.bend * prompt)
        limit = facts.max_output_tokens
        output = facts.expected_output_tokens or int(slots.rates.now.output)
        self.output = output if limit is None or limit > output else max(1, limit)
        self.length = self.prompt + (limit or 1)
        self.need = (self.prompt + self.output) * (1.0 + profile.cost.kv_margin)
        self.model = model or facts.model
        self.lora = facts.lora or (self.model if self.model in slots.loras else "")
        self.keys: Sequence[int] = ()
        self.totals: Sequence[int] = ()
        self.packed = b""
        self.levels: Levels = []
        self.path: Path = []
        self.hit_tokens = 0
        self.tie_key: int | None = facts.session_key or None
        self.pinned: int | None = None
        self.second = -1  # the next best slot, where the choice was clear
        self.ranked: list[int] | None = None  # slots by falling score, where scorers decide

    def match_exact(self, token_ids: Sequence[int]) -> None:
        """Looks token ids up in the exact index. Endpoints that publish their blocks are known by these alone."""
        slots = self.slots
        live = self.allowed & slots.kv.live
        by_size: dict[int, int] = {}
        for slot in slots.of_bits(live):
            size = slots.kv.block_size(slot.index)
            if size:
                by_size[size] = by_size.get(size, 0) | 1 << slot.index
        found: dict[int, int] = {}
        for size, bits in by_size.items():
            for blocks, holders in slots.kv.match(prompt_keys(token_ids, size, self.lora), bits):
                found[blocks * size] = found.get(blocks * size, 0) | holders
        known = 0
        for bits in by_size.values():
            known |= bits
        for tokens, bits in self.levels:
            found[tokens] = found.get(tokens, 0) | bits & ~known
        # Nested again: who holds more holds less as well.
        levels: Levels = []
        holders = 0
        for tokens in sorted(found, reverse=True):
            holders |= found[tokens]
            if holders:
                levels.insert(0, (tokens, holders))
        self.levels = levels
        self.hit_tokens = levels[-1][0] if levels else 0

    def match(self, keys: Sequence[int], totals: Sequence[int]) -> None:
        """Looks the prompt's blocks up in the index."""
        if len(keys) != len(totals):
            count = min(len(keys), len(totals))
            keys, totals = keys[:count], totals[:count]
        calibration = self.slots.calibration
        if calibration != 1.0:
            totals = [int(tokens * calibration) for tokens in totals]
        self.keys, self.totals = keys, totals
        self.packed = pack(keys)
        levels = self.slots.index.match(keys, self.packed, self.allowed, self.path)
        if len(levels) > _LEVELS:
            # Many short steps: the longest matches stay exact, those between count as the shortest.
            levels = levels[:1] + levels[1 - _LEVELS :]
        deepest = levels[-1][0] if levels else 0
        self.levels = [(totals[blocks - 1], bits) for blocks, bits in levels]
        self.hit_tokens = totals[deepest - 1] if deepest else 0
        if self.tie_key is None:
            # What comes after the shared part is what tells request groups apart: every picker finds the same key.
            self.tie_key = keys[deepest] if deepest < len(keys) else keys[-1]

    def price(self) -> Floats:
        """Total cost of every slot in seconds, infinite where it may not go. The array is the pool's own scratch."""
        slots, columns = self.slots, self.columns
        vector, costs, levels = slots.vector, slots.costs, self.levels
        prompt = self.prompt
        bend = slots.bend
        done = 0.0
        if levels and levels[0][1] == slots.eligible_bits:
            # What everybody holds, such as a common system prompt, is one subtraction.
            tokens = min(levels[0][0], prompt - 1)
            done = tokens * (1.0 + bend * tokens)
            levels = levels[1:]
        _put_vector(slots.vector_data, 0, self.work - done, self.output, prompt + self.output, 1.0, 1.0, -self.now)
        # Where the backlog is done it ends now, so that the product gives the wait.
        clock = slots.clock
        clock[...] = self.now
        np.maximum(columns.ready, clock, out=columns.ready)
        columns.matrix.dot(vector, out=costs)
        if self.need > slots.kv_floor:
            np.add(costs, slots.kv_wait(self.need), out=costs)
        if levels:
            per_token, spare = columns.per_token, slots.spare
            most = prompt - 1
            for tokens, bits in levels:
                if tokens > most:
                    tokens = most
                gain = tokens * (1.0 + bend * tokens) - done
                if gain <= 0.0:
                    continue
                done += gain
                if bits & (bits - 1) == 0:
                    i = bits.bit_length() - 1
                    costs[i] -= per_token[i] * gain
                elif bits.bit_count() <= _FEW:
                    for i in slots.places(bits):
                        costs[i] -= per_token[i] * gain
                else:
                    np.multiply(per_token, gain, out=spare)
                    np.multiply(spare, slots.inside(bits), out=spare)
                    np.subtract(costs, spare, out=costs)
        if self.allowed != slots.eligible_bits:
            costs[slots.outside(self.allowed)] = INFINITE
        if self.lora and slots.loras:
            costs += slots.lora_cost(self.lora, self.profile.cost)
        return costs

    def matched(self, index: int) -> int:
        """Prompt tokens that a slot is believed to hold."""
        for tokens, bits in reversed(self.levels):
            if bits >> index & 1:
                return min(tokens, self.prompt - 1)
        return 0

    def matched_all(self) -> Floats:
        """The same of every slot. The array is scratch."""
        slots = self.slots
        matched = slots.matched
        matched.fill(0.0)
        for tokens, bits in self.levels:
            matched[slots.places(bits)] = min(tokens, self.prompt - 1)
        return matched

    def unread(self, matched: int) -> float:
        """What a slot that holds so many tokens of it would have to read, as its time counts it."""
        return self.work - matched * (1.0 + self.slots.bend * matched) if matched else self.work

    def unread_all(self) -> Floats:
        """The same of every slot. The array is scratch."""
        if not self.levels:
            return np.full(self.slots.size, self.work)
        matched = self.matched_all()
        return self.work - matched * (1.0 + self.slots.bend * matched)

    def rendezvous(self, places: Sequence[int], key: int) -> list[int]:
        """These slots from the key's home down."""
        found = ranks(self.slots.seeds[list(places)], key)
        return [places[int(i)] for i in found.argsort()[::-1]]

    def candidates(self) -> list[int]:
        """Slots that may serve it."""
        return indices(self.allowed)
