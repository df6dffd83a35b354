"""A gRPC client that finds its servers by xDS: reads numbers from stdin, makes so many calls, prints who answered.

Runs in a process of its own, as gRPC reads its xDS bootstrap (GRPC_XDS_BOOTSTRAP) only once.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

import grpc


def main(target: str) -> None:
    with grpc.insecure_channel(target) as channel:
        ask: Any = channel.unary_unary("/test.Who/Ask")
        for line in sys.stdin:
            answers: Counter[str] = Counter()
            for _ in range(int(line)):
                try:
                    answers[ask(b"", wait_for_ready=True, timeout=15).decode()] += 1
                except grpc.RpcError as problem:
                    answers[f"{problem.code().name}: {problem.details()}"] += 1
            print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
