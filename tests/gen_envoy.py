"""Generates the configurations under envoy/ from the policies under examples/. `--check` fails when they are stale.

python -m tests.gen_envoy [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from xds_control.policy.load import load_policy
from xds_control.routing.forwarded import forwarded_headers
from xds_control.xds.resources.bootstrap import as_json, eds_only_bootstrap, managed_bootstrap

REPOSITORY = Path(__file__).resolve().parent.parent
TARGET = REPOSITORY / "envoy"
EXAMPLES = REPOSITORY / "examples"


def generate() -> dict[str, str]:
    """File name → contents."""
    box = load_policy(EXAMPLES / "one-box.yaml")
    sidecar = load_policy(EXAMPLES / "sidecar.yaml")
    duplex = load_policy(EXAMPLES / "endpoint-picker.yaml")
    return {
        "managed.json": as_json(managed_bootstrap(box.envoy, box.control.xds)),
        "eds-only.json": as_json(eds_only_bootstrap(box, box.control.xds, forwarded_headers(box))),
        "sidecar.json": as_json(eds_only_bootstrap(sidecar, sidecar.control.xds, forwarded_headers(sidecar))),
        "endpoint-picker.json": as_json(eds_only_bootstrap(duplex, duplex.control.xds, forwarded_headers(duplex))),
    }


def main() -> int:
    made = generate()
    TARGET.mkdir(exist_ok=True)
    stale = [name for name, text in made.items() if not (TARGET / name).exists() or (TARGET / name).read_text() != text]
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"envoy/{name} is not what the examples generate: run `make envoy`")
        return 1 if stale else 0
    for name, text in made.items():
        (TARGET / name).write_text(text)
    print(f"{len(made)} files, {len(stale)} changed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
