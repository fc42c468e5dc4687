"""`make demo`: from nothing to an answer of a model whose stages share one GPU."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from e2e.cluster import ClusterError, Progress
from e2e.deploy import ROOT, Target, forwarded, install, target, wait_for

EXAMPLE = ROOT / "examples" / "tiny-omni.yaml"
NAME, SPACE = "tiny-omni", "default"
QUESTION = "Say something, tiny model."
READY_SECONDS = 600.0


def main() -> int:
    """Exit 0 when an answer came through all stages."""
    console, progress = Console(highlight=False), Progress()
    try:
        on = target(progress)
        install(on, progress)
        say(console, f"kubectl apply -f {EXAMPLE.relative_to(ROOT)}")
        console.print(on.kubectl("apply", "-f", str(EXAMPLE)).strip())
        watch_start(on, progress)
        show(console, on)
        ask(console, on)
        say(console, "Try it yourself")
        console.print(f"export KUBECONFIG={shown(on.kubeconfig)} PATH={shown(on.kubectl_path.parent)}:$PATH")
        console.print("kubectl get omnimodels -o wide; kubectl describe omnimodel tiny-omni")
        console.print("kubectl apply -f examples/qwen3-omni-h100-overbooked.yaml   # refused")
        console.print("make cluster-down                                           # removes all of it")
    except ClusterError as error:
        console.print(f"[red]error:[/red] {error}")
        return 1
    return 0


def say(console: Console, title: str) -> None:
    console.print()
    console.rule(f"[bold]{title}", align="left")


def shown(path: Path) -> str:
    """Relative to the repository where it is inside."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def status(on: Target) -> dict[str, Any]:
    found: dict[str, Any] = on.get("omnimodel", NAME, SPACE).get("status") or {}
    return found


def watch_start(on: Target, progress: Progress) -> None:
    """Until the model is Ready, saying which stage is in which state."""
    with progress.step("starting the stages, one at a time on each GPU") as step:

        def ready() -> bool:
            now = status(on)
            step.show(", ".join(f"{row['name']} {row['state']}" for row in now.get("stages") or []))
            conditions = {row["type"]: row for row in now.get("conditions") or []}
            if conditions.get("Accepted", {}).get("status") == "False":
                raise ClusterError("the OmniModel was refused", "see its message", [conditions["Accepted"]["message"]])
            return bool(conditions.get("Ready", {}).get("status") == "True")

        wait_for("the OmniModel is Ready", ready, READY_SECONDS, lambda: on.kubectl("describe", "omnimodel", NAME))


def show(console: Console, on: Target) -> None:
    say(console, "kubectl get omnimodel -o wide")
    console.print(on.kubectl("get", "omnimodel", NAME, "-n", SPACE, "-o", "wide").strip(), soft_wrap=True)
    say(console, "kubectl get pods")
    console.print(on.kubectl("get", "pods", "-n", SPACE, "-l", f"omnimodel.io/name={NAME}").strip())
    say(console, "Which GPU each stage has")
    table = Table(box=None)
    for column in ("stage", "state", "GPU memory", "GPU"):
        table.add_column(column, no_wrap=True)
    for row in status(on).get("stages") or []:
        gpus = ", ".join(row.get("gpuUuids") or []) or "none (CPU)"
        table.add_row(row["name"], row["state"], row.get("gpuMemory", ""), gpus)
    console.print(table)


def ask(console: Console, on: Target) -> None:
    say(console, "POST /v1/chat/completions")
    with forwarded(on, SPACE, NAME, 8000) as url:
        console.print(f"[dim]> {QUESTION}")
        console.print(json.dumps(complete(url, QUESTION), indent=2, ensure_ascii=False), markup=False)
        say(console, "The same, streamed")
        words = []
        for chunk in stream(url, QUESTION):
            words.append(chunk["choices"][0]["delta"].get("content") or "")
            console.print(words[-1], end="", markup=False)
        console.print(f"\n[dim]{len(words)} chunks, each through all four stages")


def complete(url: str, text: str, tokens: int = 16) -> dict[str, Any]:
    """The answer's JSON."""
    with urllib.request.urlopen(_request(url, text, tokens, False), timeout=120) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def stream(url: str, text: str, tokens: int = 16) -> Iterator[dict[str, Any]]:
    """The chunks of the streamed answer, as they come."""
    with urllib.request.urlopen(_request(url, text, tokens, True), timeout=120) as answer:
        for line in answer:
            data = line.decode().strip().removeprefix("data: ")
            if data and data != "[DONE]":
                yield json.loads(data)


def _request(url: str, text: str, tokens: int, streamed: bool) -> urllib.request.Request:
    body = {
        "model": NAME,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "stream": streamed,
    }
    headers = {"Content-Type": "application/json"}
    return urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)


if __name__ == "__main__":
    sys.exit(main())
