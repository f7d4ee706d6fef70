#!/bin/sh
# SPDX-License-Identifier: MIT
# leash.sh DIR: waits until its standard input ends, which is when whoever started it is done with the server in DIR or
# is dead; then ends the server by its pid, if it is still that server, and removes the folder.
dir=$1
while read -r _; do :; done

if pid=$(cat "$dir/pid" 2>/dev/null) && [ "$(readlink "/proc/$pid/cwd")" = "$dir" ]; then
  kill -KILL "$pid" 2>/dev/null
  tries=0
  while [ "$(readlink "/proc/$pid/cwd")" = "$dir" ] && [ $tries -lt 500 ]; do
    tries=$((tries + 1))
    sleep 0.02
  done
fi
exec rm -rf -- "$dir"
