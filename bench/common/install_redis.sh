#!/usr/bin/env bash
# Redis for the peers that need it, where that is allowed (root and apt). Without it they say so, and the rest runs.
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "Installing redis-server …"
  apt-get update -qq >/dev/null 2>&1
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server >/dev/null 2>&1 && exit 0
fi
echo "no redis-server: the peers that need it say so"
