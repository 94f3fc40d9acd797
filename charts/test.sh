#!/usr/bin/env bash
# Tests the chart without a cluster: charts/test.sh HELM
#
# Lints it, renders it with every optional part on, and holds its schema to refusing typos with the name of the key.
set -euo pipefail

helm=${1:?usage: charts/test.sh HELM}
chart=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/muster
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

render() {
  "$helm" template muster "$chart" --namespace muster-system "$@" 2>&1
}

# refused WORD FLAGS…: rendering must fail with a message that holds the word.
refused() {
  local word=$1 answer
  shift
  if answer=$(render "$@"); then
    fail "accepted: $*"
  elif [[ $answer != *"$word"* ]]; then
    fail "refused without naming '$word': $*: $answer"
  fi
}

# holds WORD FLAGS…: rendering must succeed and hold the text.
holds() {
  local word=$1 answer
  shift
  if ! answer=$(render "$@"); then
    fail "refused: $*: $answer"
  elif [[ $answer != *"$word"* ]]; then
    fail "nothing says '$word': $*"
  fi
}

"$helm" lint --strict "$chart"

refused replicaz --set replicaz=3
refused tga --set image.tga=v1
refused nmae --set serviceAccount.nmae=other
refused cocurrency --set placement.cocurrency=8
refused concurrency --set placement.concurrency=0
refused duration --set lease.duration=15
refused format --set log.format=xml

holds "system:serviceaccount:muster-system:muster'"
holds "system:serviceaccount:muster-system:other'" --set serviceAccount.name=other
holds "priorityClassName: system-cluster-critical" --set priorityClassName=system-cluster-critical
holds "image: \"example.com/muster:v9\"" --set image.repository=example.com/muster --set image.tag=v9
holds "key: gpu" --set 'tolerations[0].key=gpu' --set 'tolerations[0].operator=Exists'
holds "pool: system" --set nodeSelector.pool=system
holds "helm.sh/resource-policy: keep"

count() {
  render "$@" | grep -c "^kind: CustomResourceDefinition$" || true
}
crds=$(find "$chart/files/crds/" -name '*.yaml' | wc -l)
[[ $(count) == "$crds" && $crds -gt 0 ]] || fail "$(count) CustomResourceDefinitions rendered of $crds"
[[ $(count --set crds.install=false) == 0 ]] || fail "crds.install=false renders CustomResourceDefinitions"

((failures == 0)) || exit 1
echo "chart: all as it should be"
