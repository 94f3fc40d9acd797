//! Simulated kubelets over any kube client, and an in-memory Kubernetes API; knows nothing of Muster.
