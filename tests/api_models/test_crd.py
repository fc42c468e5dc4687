"""The CRD is generated from the models, is committed as generated, and says something about every field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
import yaml
from pydantic import Field

from omni_operator.api.crd import SchemaError, crd, structural
from omni_operator.api.reference import reference
from omni_operator.api.v1alpha1 import Resource
from tests.conftest import ROOT


def test_committed_crd_is_what_the_models_generate() -> None:
    committed = yaml.safe_load((ROOT / "crds" / "omnimodel.io_omnimodels.yaml").read_text())
    assert committed == crd(), "run `make generate`"


def test_chart_has_the_same_crd() -> None:
    chart = (ROOT / "charts" / "omni-operator" / "files" / "omnimodel.io_omnimodels.yaml").read_text()
    assert chart == (ROOT / "crds" / "omnimodel.io_omnimodels.yaml").read_text(), "run `make generate`"


def test_committed_reference_is_what_the_models_generate() -> None:
    assert (ROOT / "docs" / "omnimodel.md").read_text() == reference(), "run `make generate`"


def fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from fields(field, f"{path}.{name}")
        yield from fields(field.get("items", {}), f"{path}.{name}[]")


def test_every_field_is_described_and_none_has_a_default_but_what_scaling_needs() -> None:
    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for part in ("spec", "status"):
        found = list(fields(schema["properties"][part], part))
        assert len(found) > 20
        assert [path for path, field in found if not field.get("description")] == []
        assert [path for path, field in found if "default" in field] == ["spec.replicas"] * (part == "spec")


def test_columns_and_subresources() -> None:
    version = crd()["spec"]["versions"][0]
    plain = [column["name"] for column in version["additionalPrinterColumns"] if "priority" not in column]
    assert plain == ["Ready", "Reason", "Stages", "GPUs", "Age"]
    assert set(version["subresources"]) == {"status", "scale"}


class Exclusive(Resource):
    x: Annotated[int, Field(gt=0)]


class Either(Resource):
    x: int | str


class FreeForm(Resource):
    x: dict[str, Any]


class Pair(Resource):
    x: tuple[int, str]


@pytest.mark.parametrize(
    ("model", "word"),
    [(Exclusive, "exclusiveMinimum"), (Either, "choice"), (FreeForm, "preserve-unknown"), (Pair, "prefixItems")],
)
def test_what_a_structural_schema_cannot_say_is_an_error_with_its_path(model: type[Resource], word: str) -> None:
    with pytest.raises(SchemaError, match=word) as error:
        structural(model)
    assert f"{model.__name__}.x" in str(error.value)
