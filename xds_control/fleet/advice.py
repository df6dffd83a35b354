"""What speaks against settings of the lifecycle that are allowed."""

from __future__ import annotations

from xds_control.policy.lifecycle import LifecyclePolicy


def warnings(policy: LifecyclePolicy) -> list[str]:
    """Sentences about settings that are allowed but tend to do harm. Empty for the default."""
    found: list[str] = []
    ejection, suspicion = policy.ejection, policy.suspicion
    if ejection.max_share > 0.8:
        found.append(
            f"lifecycle.ejection.max_share {ejection.max_share:g}: one bad minute of something shared can empty a pool"
        )
    if ejection.max_share == 0.0:
        found.append("lifecycle.ejection.max_share 0: nothing is ever ejected, broken endpoints only become suspect")
    if ejection.consecutive_errors < 3:
        found.append(
            f"lifecycle.ejection.consecutive_errors {ejection.consecutive_errors}: a single bad request can eject"
        )
    if ejection.base_s < 2.0:
        found.append(
            f"lifecycle.ejection.base_s {ejection.base_s:g}: a broken endpoint is back before it can have recovered"
        )
    if suspicion.heartbeat_s < 5.0:
        found.append(
            f"lifecycle.suspicion.heartbeat_s {suspicion.heartbeat_s:g} is near the time between two scrapes: "
            "one late page makes an endpoint suspect"
        )
    if policy.draining.timeout_s < 30.0:
        found.append(f"lifecycle.draining.timeout_s {policy.draining.timeout_s:g}: long answers are cut off at a drain")
    if policy.warm_up.prompts and not policy.trust_at_start:
        found.append(
            "lifecycle.trust_at_start is off: at each restart of control every endpoint warms up before it is ready"
        )
    return found
