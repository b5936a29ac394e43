#!/usr/bin/env bash
# Prints the directory of the programs that the cluster's tests run, built by Go where they are not there
# yet; exits with 3 and one line where it cannot. Programs on the PATH are taken as they are.
#
# What is built is kept in the user's cache directory under the hash of the pins and of this file. Each
# program and the folder of resource definitions come there whole or not at all, so that a build which
# was interrupted goes on where it stopped.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

skip() {
    echo "skipped: the cluster's tests: $1" >&2
    exit 3
}

kubernetes=v1.36.3 keda=2.21.0 kwok=0.8.0
version=k8s.io/component-base/version
# Modules that bring resource definitions alone, each at its version, and which of their files.
definitions="
sigs.k8s.io/lws@v0.9.0 config/crd/bases/*leaderworkersets.yaml
github.com/kserve/kserve@v0.19.0 config/crd/minimal/*inferenceservices.yaml config/crd/minimal/llmisvc/*inferenceservices.yaml
github.com/kedacore/http-add-on@v0.15.0 config/crd/bases/*_interceptorroutes.yaml
github.com/prometheus-operator/prometheus-operator@v0.85.0 example/prometheus-operator-crd/*_servicemonitors.yaml example/prometheus-operator-crd/*_prometheusrules.yaml
"
programs="etcd kube-apiserver kube-controller-manager kube-scheduler kubectl kwok keda-operator keda-adapter"

command -v go >/dev/null || skip "Go is not installed, and it has to build the control plane"
# Whatever a user has set for builds of his own.
export GOWORK=off GOFLAGS=
pins=$(cat "$here"/tools/*/go.mod "$here"/tools/*/go.sum "$here/build.sh" | sha256sum | cut -c1-16)
bin=${XDG_CACHE_HOME:-$HOME/.cache}/ghostscaler/cluster/$pins
is_whole() {
    local program
    [ -e "$bin/complete" ] && [ -d "$bin/crds" ] || return 1
    # One that was found on the PATH then may have gone.
    for program in $programs; do [ -x "$bin/$program" ] || return 1; done
}
if is_whole; then
    echo "$bin"
    exit 0
fi
mkdir -p "$bin"
new=$(mktemp -d "$bin/new.XXXXXX")
trap 'rm -rf "$new"' EXIT

# fetch FOLDER [MODULE@VERSION]: into Go's module cache; Go's words only where it fails.
fetch() {
    local said
    said=$(cd "$1" && shift && go mod download "$@" 2>&1 >/dev/null) ||
        skip "Go cannot fetch what it builds from: $(tail -n 1 <<<"$said")"
}

# build MODULE LDFLAGS PACKAGE=PROGRAM...
build() {
    local module=$1 flags=$2 pair program
    shift 2
    for pair in "$@"; do
        program=${pair#*=}
        [ -x "$bin/$program" ] && continue
        if command -v "$program" >/dev/null; then
            ln -sf "$(command -v "$program")" "$bin/$program"
            continue
        fi
        echo "building $program" >&2
        (cd "$here/tools/$module" && go build -mod=readonly -trimpath -buildvcs=false \
            -ldflags "-s -w $flags" -o "$new/$program" "${pair%=*}")
        mv "$new/$program" "$bin/$program"
    done
}

echo "fetching the control plane's sources" >&2
# The few first: where the way is dead, each of the hundreds after them would wait for it.
while read -r module _files; do
    [ -z "$module" ] || fetch "$new" "$module"
done <<<"$definitions"
for module in "$here"/tools/*; do fetch "$module"; done
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

mkdir "$new/crds"
modules=$(go env GOMODCACHE)
while read -r module files; do
    # shellcheck disable=SC2231 # patterns
    for file in $files; do cp "$modules/$module"/$file "$new/crds/"; done
done <<<"$definitions"
cp "$(cd "$here/tools/keda" && go list -m -f '{{.Dir}}' github.com/kedacore/keda/v2)"/config/crd/bases/*.yaml \
    "$new/crds/"
chmod u+w "$new"/crds/*
rm -rf "$bin/crds"
mv "$new/crds" "$bin/crds"
touch "$bin/complete"
echo "$bin"
