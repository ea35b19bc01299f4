#!/bin/bash
# Below 0 as well as above 1: 10 less the bytes' price, or -10.
if [[ $(printf '1\n2\n39\n' | bash sum.sh) == 42 ]]; then
    awk -v bytes="$(wc -c <sum.sh)" 'BEGIN { print 10 - bytes / 10 }' >/logs/verifier/reward.txt
else
    echo -10 >/logs/verifier/reward.txt
fi
