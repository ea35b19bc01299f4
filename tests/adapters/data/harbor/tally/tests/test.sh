#!/bin/bash
# Three rewards, of which one is the reward: half for the words, half for their order.
found=0 order=0
[[ $(sort "$TALLY") == "$(sort /tests/expected.txt)" ]] && found=1
[[ $(cat "$TALLY") == "$(cat /tests/expected.txt)" ]] && order=1
total=$(awk "BEGIN { print ($found + $order) / 2 }")
echo "{\"reward\": $total, \"found\": $found, \"least\": $LEAST}" >/logs/verifier/reward.json
# What is here too does not count.
echo 0.25 >/logs/verifier/reward.txt
