#!/bin/bash
sort words.txt | uniq -c | sort -rn | awk '$1 > 1 { print $1, $2 }' >"$TALLY"
