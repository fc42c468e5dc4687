"""The operator's process: watch → key → queue → reconcile. The only importer of `kopf`."""
