"""The resource: what users write, what the operator reports, and the names and words both use."""
