#!/usr/bin/env bash
# All tests, in parallel and in random order: everything on the embedded PostgreSQL, then what speaks SQL once more on
# the oldest one that is supported. Servers that the machine lacks are installed when that is allowed (root and apt).
set -uo pipefail
cd "$(dirname "$0")/.."

lacking=()
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || lacking+=(postgresql)
command -v chromium >/dev/null 2>&1 || lacking+=(chromium)
PATH="$PATH:/usr/sbin:/sbin" command -v pgbouncer >/dev/null 2>&1 || lacking+=(pgbouncer)
command -v faketime >/dev/null 2>&1 || lacking+=(faketime)
PATH="$PATH:/usr/sbin:/sbin" command -v ip >/dev/null 2>&1 || lacking+=(iproute2)
PATH="$PATH:/usr/sbin:/sbin" command -v nft >/dev/null 2>&1 || lacking+=(nftables)
if [ ${#lacking[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing ${lacking[*]} …"
    # Another apt-get may hold a lock, as in a machine's first minutes: wait for it. The option does not cover the lock
    # of the lists, so `update` is tried again. An update that fails is no reason to stop: the lists may be there.
    wait=(-o DPkg::Lock::Timeout=300)
    said=$(mktemp)
    for _ in $(seq 60); do
      apt-get "${wait[@]}" update -qq >"$said" 2>&1 && break
      grep -q "Could not get lock" "$said" || break
      sleep 5
    done
    if ! DEBIAN_FRONTEND=noninteractive apt-get "${wait[@]}" install -y -qq --no-install-recommends "${lacking[@]}" \
        >>"$said" 2>&1; then
      cat "$said"
      echo "could not install ${lacking[*]}: the tests that need them say so"
    fi
    rm -f "$said"
  else
    echo "not here, and not installed for want of root and apt: ${lacking[*]}"
  fi
fi

failed=0
python -m pytest -n 4 --maxschedchunk 8 -q "$@" || failed=1

if ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; then
  echo
  echo "Once more on the machine's own PostgreSQL:"
  ONDOT_TEST_POSTGRES=system python -m pytest -n 3 -q tests/store tests/flow "$@" || failed=1
else
  echo "no PostgreSQL of the machine's own: store and flow were tested on the embedded one only"
fi
exit $failed
