"""The Kubernetes manifests: they parse, fit together, and what they hand to Envoy is accepted by a real one."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.envoy.data_planes import ISTIO, bootstrap
from tests.envoy.static_envoy import envoy_binary
from xds_control.extproc.epp import LIVENESS, READY_NAMES
from xds_control.policy import headers as names
from xds_control.policy.load import parse_policy
from xds_control.policy.processes import HEALTH, LISTEN

ROOT = Path(__file__).resolve().parents[2]
PICKER = ROOT / "deploy" / "kubernetes" / "endpoint-picker.yaml"
GATEWAYS = sorted((ROOT / "envoy" / "gateway-api").glob("*.yaml"))
Document = dict[str, Any]


def documents(path: Path) -> list[Document]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def find(everything: list[Document], kind: str, name: str | None = None) -> Document:
    found = [one for one in everything if one["kind"] == kind and name in (None, one["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} of kind {kind} named {name}"
    return found[0]


def accepted(config: Any, folder: Path) -> None:
    path = folder / "envoy.yaml"
    path.write_text(yaml.safe_dump(config))
    command = [envoy_binary(), "--mode", "validate", "-c", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def gateway(folder: Path) -> Any:
    """A small bootstrap to merge fragments into."""
    return bootstrap(ISTIO, gateway=10001, admin=10002, picker=10003, health=10004, ports=[10005])


@pytest.mark.parametrize("path", [PICKER, *GATEWAYS], ids=lambda path: path.stem)
def test_every_document_says_what_it_is(path: Path) -> None:
    found = documents(path)
    assert found
    for one in found:
        assert one["apiVersion"]
        assert one["kind"]
        assert one["metadata"]["name"]
        assert len({(d["kind"], d["metadata"]["name"]) for d in found}) == len(found)


def test_the_picker_listens_where_service_probes_and_pool_look() -> None:
    everything = documents(PICKER)
    policy = parse_policy(find(everything, "ConfigMap")["data"]["policy.yaml"])
    deployment = find(everything, "Deployment")
    pod = deployment["spec"]["template"]
    container = pod["spec"]["containers"][0]
    service = find(everything, "Service", "chat-picker")
    pool = find(everything, "InferencePool")["spec"]
    engines = find(everything, "Service", "vllm-llama")

    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert policy.processors.listen == LISTEN["endpoint-picker"] == f"0.0.0.0:{ports['ext-proc']}"
    assert policy.processors.health == HEALTH["endpoint-picker"] == f"0.0.0.0:{ports['health']}"
    assert policy.control.http == f"0.0.0.0:{ports['metrics']}"
    assert container["readinessProbe"]["grpc"] == {"port": ports["health"], "service": "readiness"}
    assert "readiness" in READY_NAMES
    assert container["livenessProbe"]["grpc"] == {"port": ports["health"], "service": LIVENESS}

    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert {one["port"]: one["targetPort"] for one in service["spec"]["ports"]}[9002] == "ext-proc"
    assert pool["endpointPickerRef"]["name"] == service["metadata"]["name"]
    assert pool["endpointPickerRef"]["port"]["number"] == 9002
    # The pool's pods are those behind the name that the policy looks up.
    assert pool["selector"]["matchLabels"] == engines["spec"]["selector"]
    assert engines["spec"]["clusterIP"] == "None"
    (endpoint,) = policy.pools[0].endpoints
    target = pool["targetPorts"][0]["number"]
    assert endpoint.address == f"vllm-llama.default.svc.cluster.local:{target}"

    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
    assert set(mounts.values()) == set(volumes)
    assert volumes[mounts["/etc/xds-control"]]["configMap"]["name"] == find(everything, "ConfigMap")["metadata"]["name"]
    assert container["args"][container["args"].index("--policy") + 1] == "/etc/xds-control/policy.yaml"
    assert deployment["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


@pytest.mark.parametrize("path", GATEWAYS, ids=lambda path: path.stem)
def test_routes_lead_to_what_is_deployed(path: Path) -> None:
    deployed = {(one["kind"], one["metadata"]["name"]) for one in documents(PICKER)}
    everything = documents(path)
    here = {(one["kind"], one["metadata"]["name"]) for one in everything}
    route = find(everything, "HTTPRoute")["spec"]
    assert [("Gateway", parent["name"]) for parent in route["parentRefs"]] == [("Gateway", "inference")]
    assert ("Gateway", "inference") in here
    for rule in route["rules"]:
        for backend in rule["backendRefs"]:
            assert (backend.get("kind", "Service"), backend["name"]) in deployed
    for one in everything:
        spec = one.get("spec", {})
        for target in [*spec.get("targetRefs", []), *([spec["targetRef"]] if "targetRef" in spec else [])]:
            assert (target["kind"], target["name"]) in here


def test_istio_trusts_the_pickers_own_certificate_and_removes_reserved_headers(tmp_path: Path) -> None:
    everything = documents(ROOT / "envoy" / "gateway-api" / "istio.yaml")
    rule = find(everything, "DestinationRule")["spec"]
    assert rule["host"] == "chat-picker.default.svc.cluster.local"
    assert rule["trafficPolicy"]["tls"] == {"mode": "SIMPLE", "insecureSkipVerify": True}
    (patch,) = find(everything, "EnvoyFilter")["spec"]["configPatches"]
    value = patch["patch"]["value"]["typed_config"]
    removed = value["early_header_mutation_extensions"][0]["typed_config"]["mutations"]
    assert [one["remove"] for one in removed] == list(names.RESERVED_REQUEST_HEADERS)
    config = gateway(tmp_path)
    (network_filter,) = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"]
    network_filter["typed_config"].update(value)
    accepted(config, tmp_path)


def test_envoy_gateway_reads_the_header_that_clients_may_not_send(tmp_path: Path) -> None:
    everything = documents(ROOT / "envoy" / "gateway-api" / "envoy-gateway.yaml")
    removed = find(everything, "ClientTrafficPolicy")["spec"]["headers"]["earlyRequestHeaders"]["remove"]
    assert removed == list(names.RESERVED_REQUEST_HEADERS)
    balancer = find(everything, "BackendTrafficPolicy")["spec"]["loadBalancer"]
    assert balancer["endpointOverride"]["extractFrom"] == [{"header": names.DESTINATION}]
    (ext_proc,) = find(everything, "EnvoyExtensionPolicy")["spec"]["extProc"]
    # Full duplex and failing open exclude each other there.
    assert (ext_proc["failOpen"], ext_proc["processingMode"]["request"]["body"]) == (True, "Buffered")
    assert set(ext_proc["metadata"]["writableNamespaces"]) == {names.LB_NAMESPACE, names.NAMESPACE}
    (sink,) = find(everything, "EnvoyProxy")["spec"]["telemetry"]["accessLog"]["settings"][0]["sinks"]
    assert sink["als"]["backendRefs"] == ext_proc["backendRefs"]

    (patch,) = find(everything, "EnvoyPatchPolicy")["spec"]["jsonPatches"]
    assert patch["operation"]["path"] == "/load_balancing_policy"
    config = gateway(tmp_path)
    pool = config["static_resources"]["clusters"][0]
    pool["load_balancing_policy"] = patch["operation"]["value"]
    accepted(config, tmp_path)
