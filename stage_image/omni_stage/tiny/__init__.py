"""The tiny pipeline for machines without a GPU: four real stages over a model of a few megabytes."""

ENVIRONMENT = {"SGLANG_EXTERNAL_MODEL_PACKAGE": "omni_stage.tiny.models"}
"""For its engine processes, before SGLang is imported: saves the import of every model that SGLang has."""
PIPELINE = "tiny_omni"
"""Its name in a pod's file."""
