"""The front pod of a replica: sglang-omni's own OpenAI server and coordinator, over stages in pods of their own."""
