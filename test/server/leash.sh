#!/bin/sh
# SPDX-License-Identifier: MIT
# leash.sh DIR: waits until its standard input ends, which is when whoever started it is done with the server in DIR or
# is dead; then ends the processes whose pids are in DIR/pid and DIR/*.pid, if they still run in DIR, and removes the
# folder.
dir=$1
while read -r _; do :; done

for file in "$dir/pid" "$dir"/*.pid; do
  if pid=$(cat "$file" 2>/dev/null) && [ "$(readlink "/proc/$pid/cwd")" = "$dir" ]; then
    kill -KILL "$pid" 2>/dev/null
    tries=0
    while [ "$(readlink "/proc/$pid/cwd")" = "$dir" ] && [ $tries -lt 500 ]; do
      tries=$((tries + 1))
      sleep 0.02
    done
  fi
done
tries=0
# What the server has started ends by itself, soon, and may still write.
until rm -rf -- "$dir" 2>/dev/null || [ $tries -ge 100 ]; do
  tries=$((tries + 1))
  sleep 0.05
done
