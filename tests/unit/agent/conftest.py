"""A machine with GPUs that a test describes: libnvidia-ml.so.1 compiled from nvml_stub.c."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

GIB = 1 << 30


class Machine:
    """The script file of the stub. Values are set by key ("gpu0.temp"); None removes one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[str, object] = {}
        self.events = 0
        self.write()

    def write(self) -> None:
        staged = self.path.with_suffix(".new")
        staged.write_text("".join(f"{key} {value}\n" for key, value in self.values.items()))
        os.replace(staged, self.path)

    def set(self, **values: object) -> None:
        """Keys with `__` for the dot: gpu0__temp=70."""
        for key, value in values.items():
            name = key.replace("__", ".")
            if value is None:
                self.values.pop(name, None)
            else:
                self.values[name] = value
        self.write()

    def gpu(self, index: int, **more: object) -> None:
        """A healthy H100-like GPU."""
        values: dict[str, object] = {
            "uuid": f"GPU-{index:08d}",
            "name": "NVIDIA H100",
            "mem_total": 80 * GIB,
            "mem_used": 70 * GIB,
            "util": 55,
            "mem_util": 40,
            "temp": 61,
            "power": 350_000,
            "power_limit": 700_000,
            "reasons": 0x4,
            "ecc": 0,
            "remap_failure": 0,
            "pcie_tx": 1000,
            "pcie_rx": 2000,
            "events": 10,
            **more,
        }
        for key, value in values.items():
            if value is not None:
                self.values[f"gpu{index}.{key}"] = value
        self.values["count"] = max(int(str(self.values.get("count", 0))), index + 1)
        self.write()

    def xid(self, gpu: int, code: int, instance: int = 0xFFFFFFFF) -> None:
        """One Xid event; code 0 is an ECC event."""
        self.events += 1
        self.set(event=f"{self.events} {gpu} {code} {instance}")


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the NVML stub")
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("nvml_stub.c")
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(library), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return library


@pytest.fixture
def machine(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The stub loaded into this process: the binding's own load by soname finds it."""
    script = tmp_path / "machine"
    monkeypatch.setenv("NVML_STUB", str(script))
    loaded = ctypes.CDLL(str(nvml_library), mode=ctypes.RTLD_GLOBAL)
    ctypes.c_long.in_dll(loaded, "seen_event_for_tests").value = 0
    return Machine(script)
