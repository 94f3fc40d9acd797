//! A local Kubernetes with simulated GPU nodes: the demo, and a backend of the end-to-end suite.
