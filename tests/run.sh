#!/usr/bin/env bash
# Tests, in parallel and in random order.
#   tests/run.sh          all but those marked `long`, on the embedded PostgreSQL
#   tests/run.sh --rest   those marked `long`, and tests/store and tests/flow on the oldest supported PostgreSQL
# Missing servers are installed if that is allowed (root and apt). Further arguments go to pytest.
set -uo pipefail
cd "$(dirname "$0")/.."

rest=false
if [ "${1:-}" = --rest ]; then
  rest=true
  shift
fi

has_postgres() { ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; }
has() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1; }

missing=()
has_postgres || missing+=(postgresql)
has chromium || missing+=(chromium)
has pgbouncer || missing+=(pgbouncer)
has faketime || missing+=(faketime)
has ip || missing+=(iproute2)
has nft || missing+=(nftables)
has prometheus || missing+=(prometheus)
has zsh || missing+=(zsh)
has fish || missing+=(fish)
has redis-server || missing+=(redis-server)
has redis-sentinel || missing+=(redis-sentinel)
has rabbitmq-server || missing+=(rabbitmq-server)
has etcd || missing+=(etcd-server)
has nats-server || missing+=(nats-server)
# Kafka: bench/common/brokers.py downloads it with Maven.
has mvn || missing+=(maven)
has java || missing+=(default-jre-headless)
# Node, for a real OpenID provider: tests/people/openid.py installs it with npm.
has npm || missing+=(nodejs npm)
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && has apt-get; then
    echo "Installing ${missing[*]} …"
    # Another apt-get may hold a lock, as in a machine's first minutes: wait for it. The option does not cover the lock
    # of the lists, so `update` is retried. A failed update is no reason to stop: the lists may exist already.
    wait=(-o DPkg::Lock::Timeout=300)
    output=$(mktemp)
    for _ in $(seq 60); do
      apt-get "${wait[@]}" update -qq >"$output" 2>&1 && break
      grep -q "Could not get lock" "$output" || break
      sleep 5
    done
    if ! DEBIAN_FRONTEND=noninteractive apt-get "${wait[@]}" install -y -qq --no-install-recommends "${missing[@]}" \
        >>"$output" 2>&1; then
      cat "$output"
      echo "Could not install ${missing[*]}: the tests that need them are skipped."
    fi
    rm -f "$output"
  else
    echo "Missing, and not installed without root and apt: ${missing[*]}. The tests that need them are skipped."
  fi
fi

# Every worker imports every test: without cached bytecode each rewrites the assertions of all of them (16 s of a processor
# for each of them). The first run on a checkout does this once, on two processors, before the workers start.
unset PYTHONDONTWRITEBYTECODE
if [ ! -d tests/words/__pycache__ ]; then
  echo "Compiling the tests …"
  python -m compileall -q src
  python -m pytest --collect-only -q tests/[a-e]*/ tests/faults tests/ui >/dev/null 2>&1 &
  python -m pytest --collect-only -q tests/flow tests/[g-t]*/ tests/words >/dev/null 2>&1
  wait
fi

if ! $rest; then
  python -m pytest -n 4 --maxschedchunk 8 -q -m "not long" "$@"
  exit
fi

failed=0
python -m pytest -n 4 --maxschedchunk 1 -q -m long "$@" || failed=1
if has_postgres; then
  echo
  echo "On the system's PostgreSQL:"
  ONDOT_TEST_POSTGRES=system python -m pytest -n 3 -q -m "not long" tests/store tests/flow "$@" || failed=1
else
  echo "This machine has no system PostgreSQL: store and flow were tested on the embedded one only."
fi
exit $failed
