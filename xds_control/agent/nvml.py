"""Reads the GPUs of this machine through NVML. What a GPU does not support is absent, never zero.

Calls block, some for 20 ms: one thread owns a reader and does all its calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml

from xds_control.errors import XdsControlError
from xds_control.signals.gpu import GpuState

_PERMANENT = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
_LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
_DRIVER = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    }
)
_WHOLE_GPU = 0xFFFFFFFF
_ALL_LINKS = 0xFFFFFFFF
_KIB = 1024

ENUMERATE_S = 10.0
SLOW_S = 2.0


class DriverUnavailable(XdsControlError):
    """There is no driver to talk to now: none is installed, it is being replaced, or it went away."""

    code = "gpu-driver-unavailable"
    grpc_status = "UNAVAILABLE"
    http_status = 503


class _Lost(Exception):
    """This GPU does not answer any more."""


@dataclass(slots=True)
class _Device:
    """One GPU or MIG device as it was found."""

    handle: Any
    uuid: str
    name: str
    index: int | None
    parent: _Device | None = None
    instance: int | None = None
    absent: set[str] = field(default_factory=set)
    lost: bool = False
    error: str = ""
    events: bool = False
    slow_at: float = -1e9
    links_at: float = 0.0
    links: tuple[int, int] | None = None
    nvlink: tuple[float, float] | None = None
    pcie: tuple[float | None, float | None] = (None, None)
    pids: tuple[int, ...] = ()
    remap_failures: int | None = None


@dataclass(slots=True)
class _Xid:
    last: int = 0
    count: int = 0


class NvmlReader:
    """open, then read again and again, with wait in between; close at the end.

    processes: whether to list the processes of each GPU. clock: monotonic seconds, for tests.
    """

    def __init__(self, *, processes: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._processes = processes
        self._clock = clock
        self._devices: list[_Device] = []
        self._events: Any = None
        self._xids: dict[str, _Xid] = {}
        self._enumerated = -1e9
        self._open = False
        self.driver = ""

    def open(self) -> None:
        """Loads the library and finds the GPUs. Raises DriverUnavailable."""
        if self._open:
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            _unload()
            raise DriverUnavailable(f"NVML cannot be started: {error}") from error
        self._open = True
        try:
            self.driver = _text(pynvml.nvmlSystemGetDriverVersion())
            self._enumerate()
        except pynvml.NVMLError as error:
            self.close()
            raise DriverUnavailable(f"NVML does not answer: {error}") from error

    def close(self) -> None:
        """Lets go of the driver, so that it can be replaced."""
        if not self._open:
            return
        self._open = False
        self._devices = []
        self._free_events()
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            self.driver = f"shutdown failed: {error}"
        _unload()

    def read(self) -> list[GpuState]:
        """The state of every GPU and MIG device now. Raises DriverUnavailable: then open again, later."""
        if not self._open:
            raise DriverUnavailable("NVML is not open")
        now = self._clock()
        try:
            if now - self._enumerated >= ENUMERATE_S or pynvml.nvmlDeviceGetCount() != self._gpu_count():
                self._enumerate()
            self._slow(now)
            return [self._state(device) for device in self._devices]
        except pynvml.NVMLError as error:
            if error.value not in _DRIVER:
                raise DriverUnavailable(f"NVML does not answer: {error}") from error
            self.close()
            raise DriverUnavailable(f"the driver went away: {error}") from error

    def wait(self, seconds: float) -> bool:
        """Waits so long, or until an Xid or ECC error happens: True then, and the next `read` shows it."""
        if self._events is None:
            time.sleep(seconds)
            return False
        try:
            event = pynvml.nvmlEventSetWait_v2(self._events, max(1, round(seconds * 1000)))
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return False
            if error.value in _DRIVER:
                return True
            # A lost GPU makes each wait fail at once: do not spin.
            time.sleep(seconds)
            return True
        self._note(event)
        return True

    def _gpu_count(self) -> int:
        return sum(1 for device in self._devices if device.parent is None)

    def _enumerate(self) -> None:
        """Finds GPUs and MIG devices; those that are known keep what was learned about them."""
        known = {device.uuid: device for device in self._devices}
        by_index = {device.index: device for device in self._devices if device.parent is None}
        found: list[_Device] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
            except pynvml.NVMLError as error:
                if error.value in _DRIVER:
                    raise
                device = by_index.get(index)
                if device is not None:
                    device.lost, device.error = True, str(error)
                    found.append(device)
                continue
            device = known.get(uuid) or _Device(handle, uuid, "", index)
            device.handle, device.index, device.lost, device.error = handle, index, False, ""
            found.append(device)
            try:
                device.name = device.name or _text(self._ask(device, "name", pynvml.nvmlDeviceGetName, handle) or "")
                found.extend(self._mig(device, known))
            except _Lost as lost:
                device.lost, device.error = True, str(lost)
        self._devices = found
        self._enumerated = self._clock()
        self._register()

    def _mig(self, gpu: _Device, known: dict[str, _Device]) -> list[_Device]:
        mode = self._ask(gpu, "mig", pynvml.nvmlDeviceGetMigMode, gpu.handle)
        if not mode or mode[0] != 1:
            return []
        devices: list[_Device] = []
        for place in range(self._ask(gpu, "mig count", pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu.handle) or 0):
            try:
                handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, place)
                uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
            except pynvml.NVMLError as error:
                if error.value in _DRIVER:
                    raise
                continue  # an empty place
            device = known.get(uuid) or _Device(handle, uuid, gpu.name, None)
            device.handle, device.parent, device.lost, device.error = handle, gpu, False, ""
            device.instance = self._ask(device, "instance", pynvml.nvmlDeviceGetGpuInstanceId, handle)
            devices.append(device)
        return devices

    def _register(self) -> None:
        """Asks for the events of GPUs that have none yet. Without any, `wait` just waits."""
        for device in self._devices:
            if device.parent is not None or device.events or device.lost:
                continue
            try:
                device.events = self._register_one(device)
            except _Lost as lost:
                device.lost, device.error = True, str(lost)

    def _register_one(self, device: _Device) -> bool:
        wanted = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError
        supported = self._ask(device, "event types", pynvml.nvmlDeviceGetSupportedEventTypes, device.handle)
        if supported is not None:
            wanted &= supported
        if not wanted & pynvml.nvmlEventTypeXidCriticalError:
            return False
        if self._events is None:
            self._events = self._ask(device, "event set", pynvml.nvmlEventSetCreate)
        if self._events is None:
            return False
        self._ask(device, "events", pynvml.nvmlDeviceRegisterEvents, device.handle, wanted, self._events)
        return "events" not in device.absent

    def _free_events(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            try:
                pynvml.nvmlEventSetFree(events)
            except pynvml.NVMLError:
                return  # the driver that made it is gone, and the set with it

    def _note(self, event: Any) -> None:
        """Counts an Xid for its GPU, or for the MIG device that it hit."""
        if not event.eventType & pynvml.nvmlEventTypeXidCriticalError:
            return
        try:
            uuid = _text(pynvml.nvmlDeviceGetUUID(event.device))
        except pynvml.NVMLError:
            # The GPU fell off the bus with this event: the address of its handle is left.
            uuid = next((one.uuid for one in self._devices if _same_handle(one.handle, event.device)), "")
        gpu = next((one for one in self._devices if one.uuid == uuid and one.parent is None), None)
        if gpu is None:
            return
        instance = int(event.gpuInstanceId)
        hit = [one for one in self._devices if one.parent is gpu and one.instance == instance]
        if instance == _WHOLE_GPU or not hit:
            hit = [gpu, *(one for one in self._devices if one.parent is gpu)]
        for device in hit:
            xid = self._xids.setdefault(device.uuid, _Xid())
            xid.last, xid.count = int(event.eventData), xid.count + 1

    def _ask(self, device: _Device, what: str, call: Callable[..., Any], *args: Any) -> Any:
        """One call. None when it is not supported (remembered) or has nothing now. Raises _Lost, or NVMLError for a
        driver that is gone."""
        if what in device.absent:
            return None
        try:
            return call(*args)
        except pynvml.NVMLError as error:
            if error.value in _DRIVER:
                raise
            if error.value in _LOST:
                raise _Lost(str(error)) from error
            if error.value in _PERMANENT:
                device.absent.add(what)
            elif error.value == pynvml.NVML_ERROR_UNKNOWN:
                device.error = f"{what}: {error}"
            return None

    def _slow(self, now: float) -> None:
        """What takes long or changes seldom, of one GPU at each read."""
        due = [device for device in self._devices if not device.lost and now - device.slow_at >= SLOW_S]
        if not due:
            return
        device = min(due, key=lambda one: one.slow_at)
        device.slow_at = now
        handle = device.handle
        try:
            if self._processes:
                running = self._ask(device, "processes", pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
                device.pids = tuple(sorted(one.pid for one in running)) if running is not None else ()
            if device.parent is not None:
                return
            rows = self._ask(device, "remapped rows", pynvml.nvmlDeviceGetRemappedRows, handle)
            device.remap_failures = None if rows is None else int(rows[3])
            sent = self._ask(
                device, "pcie tx", pynvml.nvmlDeviceGetPcieThroughput, handle, pynvml.NVML_PCIE_UTIL_TX_BYTES
            )
            got = self._ask(
                device, "pcie rx", pynvml.nvmlDeviceGetPcieThroughput, handle, pynvml.NVML_PCIE_UTIL_RX_BYTES
            )
            device.pcie = (
                None if got is None else float(got * _KIB),
                None if sent is None else float(sent * _KIB),
            )
            self._nvlink(device, now)
        except _Lost as lost:
            device.lost, device.error = True, str(lost)

    def _nvlink(self, device: _Device, now: float) -> None:
        fields = [
            (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS),
            (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS),
        ]
        values = self._ask(device, "nvlink", pynvml.nvmlDeviceGetFieldValues, device.handle, fields)
        if values is None or any(one.nvmlReturn != pynvml.NVML_SUCCESS for one in values):
            device.links = device.nvlink = None
            return
        links = (int(values[0].value.ullVal), int(values[1].value.ullVal))
        before, since = device.links, now - device.links_at
        device.links, device.links_at = links, now
        if before is None or since <= 0 or links[0] < before[0] or links[1] < before[1]:
            device.nvlink = None
        else:
            device.nvlink = ((links[0] - before[0]) * _KIB / since, (links[1] - before[1]) * _KIB / since)

    def _state(self, device: _Device) -> GpuState:
        parent = device.parent
        xid = self._xids.get(device.uuid)
        if xid is None and (device.events or (parent is not None and parent.events)):
            xid = _Xid()
        identity = {
            "uuid": device.uuid,
            "name": device.name,
            "parent_uuid": parent.uuid if parent is not None else "",
            "index": device.index,
            "xid_last": None if xid is None else xid.last,
            "xid_count": None if xid is None else xid.count,
        }
        if device.lost or (parent is not None and parent.lost):
            error = device.error or (parent.error if parent is not None else "")
            return GpuState(**identity, lost=True, error=error)  # type: ignore[arg-type]
        device.error = ""
        try:
            measured = self._measure(device)
        except _Lost as lost:
            device.lost, device.error = True, str(lost)
            return GpuState(**identity, lost=True, error=device.error)  # type: ignore[arg-type]
        return GpuState(**identity, **measured, error=device.error)  # type: ignore[arg-type]

    def _measure(self, device: _Device) -> dict[str, Any]:
        handle = device.handle
        out: dict[str, Any] = {"pids": device.pids}
        memory = self._ask(device, "memory v2", pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
        if memory is None:
            memory = self._ask(device, "memory", pynvml.nvmlDeviceGetMemoryInfo, handle)
        if memory is not None:
            if memory.total:
                out["mem_total_bytes"], out["mem_used_bytes"] = int(memory.total), int(memory.used)
                out["mem_free_bytes"] = int(memory.free)
            else:
                out["unified_memory"] = True
        if device.parent is not None:
            return out
        has_mig = any(one.parent is device for one in self._devices)
        utilisation = self._ask(device, "utilisation", pynvml.nvmlDeviceGetUtilizationRates, handle)
        if utilisation is not None and not has_mig:  # a GPU in MIG mode answers zero for "not known"
            out["util"], out["mem_bw_util"] = utilisation.gpu / 100, utilisation.memory / 100
        temperature = self._ask(
            device, "temperature", pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU
        )
        if temperature is None:
            temperature = self._ask(
                device, "temperature v", pynvml.nvmlDeviceGetTemperatureV, handle, pynvml.NVML_TEMPERATURE_GPU
            )
        out["temp_c"] = None if temperature is None else float(temperature)
        power = self._ask(device, "power", pynvml.nvmlDeviceGetPowerUsage, handle)
        out["power_w"] = None if power is None else power / 1000
        limit = self._ask(device, "power limit", pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        out["power_limit_w"] = None if limit is None else limit / 1000
        reasons = self._ask(device, "clock reasons", pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        if reasons is None:
            reasons = self._ask(device, "throttle reasons", pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        out["throttle_reasons"] = reasons
        out["ecc_uncorrected"] = self._ask(
            device,
            "ecc",
            pynvml.nvmlDeviceGetTotalEccErrors,
            handle,
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        )
        out["remap_failures"] = device.remap_failures
        out["pcie_rx_bytes_s"], out["pcie_tx_bytes_s"] = device.pcie
        if device.nvlink is not None:
            out["nvlink_rx_bytes_s"], out["nvlink_tx_bytes_s"] = device.nvlink
        return out


def _text(value: Any) -> str:
    """Very old bindings answer bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _same_handle(a: Any, b: Any) -> bool:
    import ctypes

    return ctypes.cast(a, ctypes.c_void_p).value == ctypes.cast(b, ctypes.c_void_p).value


def _unload() -> None:
    """Makes the binding load the library anew: after a driver upgrade the file is another one."""
    if getattr(pynvml, "_nvmlLib_refcount", 0) > 0:
        return  # someone else in this process uses it
    pynvml.nvmlLib = None
    cache = getattr(pynvml, "_nvmlGetFunctionPointer_cache", None)
    if isinstance(cache, dict):
        cache.clear()
