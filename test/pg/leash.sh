#!/bin/sh
# SPDX-License-Identifier: MIT
# leash.sh DIR: waits until its standard input ends, which is when whoever started it is done with the server in DIR or
# is dead; then ends the server by its pid, whatever state it is in, and removes the folder.
dir=$1
while read -r _; do :; done

file=$dir/data/postmaster.pid
if pid=$(head -n 1 "$file" 2>/dev/null) && [ -n "$pid" ]; then
  segment=$(sed -n '7s/.* //p' "$file" 2>/dev/null)
  if [ "$(readlink "/proc/$pid/cwd")" = "$dir/data" ]; then
    kill -QUIT "$pid" 2>/dev/null
    tries=0
    while kill -0 "$pid" 2>/dev/null && [ -e "$file" ] && [ $tries -lt 500 ]; do
      tries=$((tries + 1))
      sleep 0.02
    done
  fi
  # A server that was killed has left a segment of shared memory behind.
  [ ! -e "$file" ] || [ -z "$segment" ] || ipcrm -m "$segment" 2>/dev/null
fi
[ ! -d "$dir/small" ] || umount -l "$dir/small" 2>/dev/null # a file system that a test has made
exec rm -rf -- "$dir"
