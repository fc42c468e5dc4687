"""omni-operator: serves omni-modal models whose pipeline stages share GPUs."""
