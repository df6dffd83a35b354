"""Generates xds_control/proto from protos/. `--check` fails when what is committed is not current.

python -m tests.gen_protos [--check]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCES = {
    "fleet": "xds_control/fleet/v1/fleet.proto",
    "admin": "xds_control/admin/v1/admin.proto",
}
TARGET = REPOSITORY / "xds_control" / "proto"


def generate(into: Path) -> dict[str, bytes]:
    """File name → contents of what protoc makes, flattened into one package."""
    import grpc_tools

    include = Path(grpc_tools.__file__).parent / "_proto"
    made: dict[str, bytes] = {}
    for name, source in SOURCES.items():
        path = REPOSITORY / "protos" / source
        if not path.exists():
            continue
        staging = into / name
        flat = staging / "src" / "xds_control" / "proto"
        flat.mkdir(parents=True)
        # protoc names Python modules after the path: stage each file as xds_control/proto/<name>.proto
        (flat / f"{name}.proto").write_text(path.read_text())
        out = staging / "out"
        out.mkdir()
        status = protoc.main(
            [
                "protoc",
                f"-I{staging / 'src'}",
                f"-I{include}",
                f"--python_out={out}",
                f"--pyi_out={out}",
                f"--grpc_python_out={out}",
                str(flat / f"{name}.proto"),
            ]
        )
        if status:
            raise SystemExit(f"protoc failed on {source}")
        for file in sorted((out / "xds_control" / "proto").iterdir()):
            made[file.name] = file.read_bytes()
    return made


def main() -> int:
    check = "--check" in sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        made = generate(Path(scratch))
    stale = [
        name for name, data in made.items() if not (TARGET / name).exists() or (TARGET / name).read_bytes() != data
    ]
    if check:
        for name in stale:
            print(f"xds_control/proto/{name} is not what protos/ generates: run `make protos`")
        return 1 if stale else 0
    for name, data in made.items():
        (TARGET / name).write_bytes(data)
    print(f"{len(made)} files, {len(stale)} changed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
