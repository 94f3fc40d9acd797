#!/usr/bin/env bash
# Runs a command against a kind cluster of its own: e2e/kind/run.sh make e2e
#
#   kind create ──▶ KUBECONFIG=<temporary file> COMMAND ──▶ kind delete, also on failure (KEEP=1 leaves it)
#
# KIND_IMAGE chooses the Kubernetes version, such as kindest/node:v1.36.1. Muster needs 1.30 or newer.
set -euo pipefail

(($# > 0)) || { echo "usage: e2e/kind/run.sh COMMAND…" >&2; exit 2; }
for program in docker kind; do
  command -v "$program" >/dev/null || { echo "$program is not installed: a kind cluster needs docker and kind" >&2; exit 1; }
done

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
name=muster-e2e-$$
folder=$(mktemp -d)
export KUBECONFIG=$folder/kubeconfig

finish() {
  if [[ -n ${KEEP:-} ]]; then
    echo "left running: export KUBECONFIG=$KUBECONFIG; end it with: kind delete cluster --name $name" >&2
  else
    kind delete cluster --name "$name" || true
    rm -rf "$folder"
  fi
}
trap finish EXIT

kind create cluster --name "$name" --config "$here/cluster.yaml" --wait 3m ${KIND_IMAGE:+--image "$KIND_IMAGE"}
"$@"
