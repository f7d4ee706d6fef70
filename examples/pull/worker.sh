#!/bin/sh
# SPDX-License-Identifier: MIT
# A pull worker. For each message PROGRAM runs with the message (a JSON array of one) on its standard input:
# exit 0 is done, 75 is tried again later, 65 will never work; of anything else nobody knows what it did. It has a
# minute, then the message is unknown, too. SEMEL_TOKEN is the route's token.
# usage: worker.sh URL PROGRAM [ARG...]        such as: worker.sh http://127.0.0.1:8091/mailer ./send-mail
set -u
url=$1 stop= && shift
trap 'stop=1' TERM INT
ask() { # the token goes by standard input, so that no other user sees it in the list of processes
    printf 'header = "Authorization: Bearer %s"\n' "$SEMEL_TOKEN" | curl -fsS --max-time 60 -X POST -K - "$@"
}
while [ -z "$stop" ]; do
    msg=$(ask "$url/take?lease=60s&wait=20s") || { sleep 1; continue; }
    token=$(printf '%s\n' "$msg" | sed -n '1s/^\[{"token":"\([0-9]*\)".*/\1/p')
    [ -n "$token" ] || continue
    printf '%s\n' "$msg" | "$@"
    case $? in 0) result=done ;; 75) result=transient ;; 65) result=permanent ;; *) result=unknown ;; esac
    ask -d "{\"token\":\"$token\",\"result\":\"$result\"}" "$url/settle" || echo "token $token was lost" >&2
done
