"""What one may tell a demo engine over HTTP while it runs."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Status = Annotated[int, msgspec.Meta(ge=200, le=599)]


class Faults(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=False):
    """The disturbances in force. The defaults are a healthy engine.

    slow: every step takes this many times as long, > 0.
    kv_fill: share of the KV cache held for nobody, so usage is at least this.
    fail_rate, fail_status: that share of generation requests is answered with that status in OpenAI's error form.
    cut_rate: that share of answers ends in a closed connection halfway.
    hang: "engine" = requests are taken and nothing comes, metrics stand still; "http" = no path answers.
    sleep: vLLM's sleep level; 1 and 2 stop the engine.
    health_status, metrics_status: status of those two paths.
    """

    slow: Annotated[float, msgspec.Meta(gt=0.0, le=1000.0)] = 1.0
    kv_fill: Share = 0.0
    fail_rate: Share = 0.0
    fail_status: Annotated[int, msgspec.Meta(ge=400, le=599)] = 500
    cut_rate: Share = 0.0
    hang: Literal["off", "engine", "http"] = "off"
    sleep: Annotated[int, msgspec.Meta(ge=0, le=2)] = 0
    health_status: Status = 200
    metrics_status: Status = 200


class Command(Faults):
    """A POST to /demo/control: any fields of Faults, and these acts. Fields that are absent stay as they are.

    heal: back to a healthy engine, before the other fields apply. kv_release: the same as kv_fill 0.
    reset_prefix_cache: forget cached prefixes. restart: counters, prefix cache and start time begin anew.
    """

    heal: bool = False
    kv_release: bool = False
    reset_prefix_cache: bool = False
    restart: bool = False


_command = msgspec.json.Decoder(Command)
_given = msgspec.json.Decoder(dict[str, object])
_names = tuple(Faults.__struct_fields__)


def apply(faults: Faults, body: bytes) -> tuple[Faults, Command]:
    """The faults after a command, and the command for its acts. Raises msgspec.ValidationError or DecodeError."""
    command = _command.decode(body)
    given = _given.decode(body)
    base = Faults() if command.heal else faults
    changes = {name: getattr(command, name) for name in _names if name in given}
    if command.kv_release:
        changes["kv_fill"] = 0.0
    return msgspec.structs.replace(base, **changes), command
