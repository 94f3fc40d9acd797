#!/usr/bin/env bash
# Prints the path of a helm built from this Go module; builds it first where it is absent (two minutes on two cores).
#
# Kept in the playground's cache folder, keyed by go.sum and Go's version, so that a fresh clone finds it again.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [[ -n ${MUSTER_CACHE:-} ]]; then
  cache=$MUSTER_CACHE
elif [[ -n ${XDG_CACHE_HOME:-} ]]; then
  cache=$XDG_CACHE_HOME/muster
else
  cache=${HOME:?set MUSTER_CACHE, XDG_CACHE_HOME or HOME: the built helm needs a folder}/.cache/muster
fi
command -v go >/dev/null || {
  echo "Go is not installed: helm is built from e2e/tools; install Go 1.26 or newer from https://go.dev/dl" >&2
  exit 1
}

key=$({ cat "$here/go.mod" "$here/go.sum" && cd "$here" && go env GOVERSION; } | sha256sum | cut -c1-16)
helm=$cache/tools/helm-$key
if [[ ! -x $helm ]]; then
  echo "building helm (about two minutes the first time)" >&2
  mkdir -p "$cache/tools"
  # Renamed into place when whole: an interrupted build leaves nothing that looks finished.
  partial=$helm.$$
  trap 'rm -f "$partial"' EXIT
  (cd "$here" && go build -p 2 -ldflags='-s -w' -o "$partial" helm.sh/helm/v4/cmd/helm) >&2
  mv "$partial" "$helm"
fi
echo "$helm"
