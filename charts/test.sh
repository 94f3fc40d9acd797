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

# object KIND NAME FLAGS…: what is rendered of this object, without comments.
object() {
  local kind=$1 name=$2
  shift 2
  render "$@" | grep -v '^ *#' | awk -v RS='(^|\n)---\n' -v kind="$kind" -v name="$name" \
    '$0 ~ "(^|\n)kind: " kind "\n" && $0 ~ "\n  name: " name "\n"'
}

# The proof of the fence names these: see crates/controllers/src/proof.rs.
for binding in muster-fence muster-fence-plans muster-fence-objects muster-fence-gangs; do
  [[ $(object ValidatingAdmissionPolicyBinding $binding) == *"policyName: muster-fence"* ]] ||
    fail "no binding $binding of the policy muster-fence"
done
# Without a Lease a binding may refuse only what nobody else writes.
for binding in muster-fence-objects muster-fence-gangs; do
  [[ $(object ValidatingAdmissionPolicyBinding $binding) == *"parameterNotFoundAction: Allow"* ]] ||
    fail "without a Lease $binding refuses everybody's writes"
done
# Every policy that judges an account judges the one that is configured.
judged=$(render --set serviceAccount.name=other | grep -c "system:serviceaccount:muster-system:other'" || true)
policies=$(render | grep -c "^kind: ValidatingAdmissionPolicy$" || true)
[[ $judged == "$policies" ]] || fail "$judged of $policies policies judge the configured account"
holds "request.namespace != 'elsewhere'" --namespace elsewhere

# Roles of users: no statuses, no Gangs, and only what a namespace's own roles may carry is aggregated.
for role in muster-view muster-edit muster-queue-admin; do
  rendered=$(object ClusterRole $role)
  [[ -n $rendered ]] || fail "no ClusterRole $role"
  [[ $rendered != *"/status"* && $rendered != *'"*"'* ]] || fail "$role grants statuses or everything"
done
[[ $(object ClusterRole muster-view) == *'aggregate-to-view: "true"'* ]] || fail "muster-view is not in view"
[[ $(object ClusterRole muster-edit) == *'aggregate-to-edit: "true"'* ]] || fail "muster-edit is not in edit"
[[ $(object ClusterRole muster-edit) != *gangs* ]] || fail "muster-edit lets users write Gangs"
[[ $(object ClusterRole muster-queue-admin) != *aggregate-to* ]] ||
  fail "muster-queue-admin is given to admins of namespaces"

count() {
  render "$@" | grep -c "^kind: CustomResourceDefinition$" || true
}
crds=$(find "$chart/files/crds/" -name '*.yaml' | wc -l)
[[ $(count) == "$crds" && $crds -gt 0 ]] || fail "$(count) CustomResourceDefinitions rendered of $crds"
[[ $(count --set crds.install=false) == 0 ]] || fail "crds.install=false renders CustomResourceDefinitions"

((failures == 0)) || exit 1
echo "chart: all as it should be"
