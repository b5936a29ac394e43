#!/usr/bin/env bash
# Prints the directory of the programs that the cluster's tests run, built by Go where they are not there
# yet; exits with 3 and one line where it cannot. Programs on the PATH are taken as they are.
#
# What is built is kept in the user's cache directory under the hash of the pins and of this file.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

skip() {
    echo "skipped: the cluster's tests: $1" >&2
    exit 3
}

kubernetes=v1.36.3 keda=2.21.0 kwok=0.8.0 prometheus_operator=v0.85.0
version=k8s.io/component-base/version

command -v go >/dev/null || skip "Go is not installed, and it has to build the control plane"
export GOWORK=off
pins=$(cat "$here"/tools/*/go.mod "$here"/tools/*/go.sum "$here/build.sh" | sha256sum | cut -c1-16)
bin=${XDG_CACHE_HOME:-$HOME/.cache}/ghostscaler/cluster/$pins
if [ -e "$bin/complete" ]; then
    echo "$bin"
    exit 0
fi
mkdir -p "$bin"

# build MODULE LDFLAGS PACKAGE=PROGRAM...
build() {
    local module=$1 flags=$2 pair
    shift 2
    for pair in "$@"; do
        [ -x "$bin/${pair#*=}" ] && continue
        if command -v "${pair#*=}" >/dev/null; then
            ln -s "$(command -v "${pair#*=}")" "$bin/${pair#*=}"
            continue
        fi
        echo "building ${pair#*=}" >&2
        (cd "$here/tools/$module" && go build -mod=readonly -trimpath -buildvcs=false \
            -ldflags "-s -w $flags" -o "$bin/${pair#*=}" "${pair%=*}")
    done
}

for module in "$here"/tools/*; do
    (cd "$module" && go mod download) >&2 || skip "the modules of ${module##*/} cannot be had"
done
build etcd "" go.etcd.io/etcd/server/v3=etcd
# Without these the API server would call itself v0.0.0, and KEDA refuses that.
build kubernetes "-X $version.gitVersion=$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=36" \
    k8s.io/kubernetes/cmd/kube-apiserver=kube-apiserver \
    k8s.io/kubernetes/cmd/kube-controller-manager=kube-controller-manager \
    k8s.io/kubernetes/cmd/kube-scheduler=kube-scheduler \
    k8s.io/kubernetes/cmd/kubectl=kubectl
build kwok "-X sigs.k8s.io/kwok/pkg/consts.Version=$kwok" sigs.k8s.io/kwok/cmd/kwok=kwok
build keda "-X github.com/kedacore/keda/v2/version.Version=$keda" \
    github.com/kedacore/keda/v2/cmd/operator=keda-operator \
    github.com/kedacore/keda/v2/cmd/adapter=keda-adapter

rm -rf "$bin/crds" && mkdir "$bin/crds"
crds() { cp "$1"/*.yaml "$bin/crds/" && chmod u+w "$bin"/crds/*; }
crds "$(cd "$here/tools/keda" && go list -m -f '{{.Dir}}' github.com/kedacore/keda/v2)/config/crd/bases"
operator=$(GOFLAGS=-mod=mod go mod download -json \
    "github.com/prometheus-operator/prometheus-operator@$prometheus_operator" |
    sed -n 's/^\t"Dir": "\(.*\)",$/\1/p') || true
if [ -n "$operator" ]; then
    crds "$operator/example/prometheus-operator-crd"
fi
touch "$bin/complete"
echo "$bin"
