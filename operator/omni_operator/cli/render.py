"""The manifests that the operator would make, so that a change can be looked at before it is merged.

Owner references are left out: only the cluster knows the OmniModel's uid. Everything else is what the operator applies.

exit code: 0 rendered, 1 one or more not accepted, 2 bad input
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import yaml

from omni_operator.cli.documents import BadInput, Document, Place, read
from omni_operator.cli.judge import is_omnimodel
from omni_operator.cli.paint import say
from omni_operator.cli.sources import STDIN, text_of


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="file with OmniModels, or - for standard input")
    parser.add_argument("-n", "--namespace", default="default", help="namespace, where a manifest has none (default)")
    parser.add_argument("--stage-image", default="omni-stage", help="stage image that the operator was installed with")


def run(arguments: argparse.Namespace) -> int:
    """Prints the manifests of all OmniModels. Raises BadInput."""
    complete = True
    for name in arguments.files:
        source = "standard input" if name == STDIN else name
        documents = [document for document in read(text_of(name), source) if is_omnimodel(document.data)]
        if not documents:
            raise BadInput("holds no OmniModel", Place(source))
        for document in documents:
            complete = _render(document, arguments) and complete
    return 0 if complete else 1


def _render(document: Document, arguments: argparse.Namespace) -> bool:
    from omni_operator.rendering import Settings
    from omni_operator.rendering.plan import Plan, plan_for

    planned = plan_for(_as_served(document, arguments.namespace), Settings(arguments.stage_image))
    if not isinstance(planned, Plan):
        for problem in planned:
            say(f"{document.place(())}: {problem.reason}: {problem}")
        return False
    for manifest in _manifests(planned.rendered):
        sys.stdout.write("---\n" + yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, width=120))
    return True


def _as_served(document: Document, namespace: str) -> dict[str, Any]:
    """The manifest as the API server would hand it out, as far as rendering looks at it."""
    data = document.data
    meta = data.get("metadata")
    if not isinstance(meta, dict) or not isinstance(meta.get("name"), str):
        raise BadInput("metadata.name is missing", document.place(("metadata",)))
    if not isinstance(data.get("spec"), dict):
        raise BadInput("spec is missing", document.place(()))
    served: dict[str, Any] = {**data, "metadata": {"namespace": namespace, "uid": "", "generation": 1, **meta}}
    return served


def _manifests(rendered: Any) -> Iterator[dict[str, Any]]:
    children = [*rendered.shared, *(child for replica in rendered.replicas.values() for child in replica)]
    for child in children:
        manifest = deepcopy(dict(child.manifest))
        manifest["metadata"].pop("ownerReferences", None)
        yield manifest
