"""The edge to the Kubernetes API: one snapshot in, server-side applies out. The only importer of `kubernetes`."""
