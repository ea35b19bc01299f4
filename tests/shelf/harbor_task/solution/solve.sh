#!/bin/bash
while IFS=';' read -r name number; do
    echo "$name $number"
done < <(cat /app/data/*.csv) | sort | {
    last= sum=0
    while read -r name number; do
        [[ $last && $name != "$last" ]] && echo "$last;$sum" && sum=0
        last=$name sum=$((sum + number))
    done
    echo "$last;$sum"
} >"$REPORT"
