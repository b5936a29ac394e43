#!/bin/sh
# Installs what the tests use from Debian's archive. Idempotent; never fails the tests, which skip
# what is not there.
set -u

skip() {
    echo "skipped: $1"
    exit 0
}

missing=""
command -v prometheus >/dev/null && command -v promtool >/dev/null || missing="prometheus"
command -v haproxy >/dev/null || missing="$missing haproxy"
set -- /usr/lib/*/faketime/libfaketime.so.1
[ -e "$1" ] || missing="$missing libfaketime"
[ -n "$missing" ] || exit 0
command -v apt-get >/dev/null || skip "$missing: not installed and there is no apt-get"
[ "$(id -u)" = 0 ] || skip "$missing: not installed and installing it needs root"

# Debian starts a service as soon as it is installed; the tests start their own, on their own port.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
fi

export DEBIAN_FRONTEND=noninteractive
apt="apt-get -qq -o DPkg::Lock::Timeout=120"
# shellcheck disable=SC2086 # a list
install() { $apt install -y --no-install-recommends $missing >/dev/null 2>&1; }
install || { $apt update >/dev/null 2>&1 && install; } ||
    skip "$missing: could not be installed from Debian's archive"

if [ -d /run/systemd/system ]; then
    for service in $missing; do
        systemctl disable --now "$service.service" >/dev/null 2>&1 || true
    done
fi
