#!/bin/bash
# Half of the reward is for the report, the other half for leaving the data alone.
reward=0.0
if [[ $(cat "$REPORT") == "$(cat /tests/expected.csv)" ]]; then
    reward=0.5
    [[ $(cat /app/data/east.csv /app/data/west.csv | wc -l) -eq 6 ]] && reward=1.0
fi
echo "$reward" >/logs/verifier/reward.txt
