#!/bin/sh
# Starts Java for Spark without an argument that not every Java accepts. Written by semel.
for argument do
    shift
    [ "$argument" = {dropped} ] || set -- "$@" "$argument"
done
exec {java} "$@"
