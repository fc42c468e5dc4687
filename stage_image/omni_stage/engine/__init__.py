"""The engine process of a stage pod: sglang-omni's own stage, with its pods' addresses and a relay between them."""
