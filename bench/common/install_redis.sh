#!/usr/bin/env bash
# Installs Redis for the peers that need it, if that is allowed (root and apt). Without it these peers report an error.
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "Installing redis-server …"
  apt-get update -qq >/dev/null 2>&1
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server >/dev/null 2>&1 && exit 0
fi
echo "No redis-server: the peers that need it report an error."
