#!/bin/sh
# Submit, watch and stop jobs by events with the `nats` command: jobs.sh submit FILE | watch JOB | stop JOB.
# NATS_URL is the server; NATS_TOKEN its token, where it wants one (it goes into the address, which every version of `nats` takes
# from the environment, and no list of processes shows). Names of jobs that are no more than letters, digits, - and _.
set -eu

NATS_URL=${NATS_URL:-nats://127.0.0.1:4222}
[ -z "${NATS_TOKEN:-}" ] || NATS_URL=$(printf %s "$NATS_URL" | sed "s#://#://$NATS_TOKEN@#g")
export NATS_URL

send() {  # EVENT ENTITY BODY
  id=$(cat /proc/sys/kernel/random/uuid)
  nats pub --jetstream --quiet --no-templates \
    -H "ce-specversion:1.0" -H "ce-id:$id" -H "ce-source:/examples/events/cli" -H "ce-type:dev.recmesh.$1.v1" \
    -H "ce-subject:$2" -H "content-type:application/json" -H "Nats-Msg-Id:/examples/events/cli/$id" \
    "recmesh.v1.jobmaster.$1.$2" "$3"
}

case "${1:-} ${2:-}" in
  "submit "?*)
    name=$(sed -n 's/.*"name"[ ]*:[ ]*"\([^"]*\)".*/\1/p' "$2" | head -n 1)
    send job.submit "$name" "{\"spec\": $(cat "$2")}"
    echo "asked for $name: watch it, or see why not with: jobs.sh watch $name" ;;
  "watch "?*)
    nats sub --all "recmesh.v1.*.*.*.$2" ;;
  "stop "?*)
    send job.stop "$2" '{"reason": "by events"}' ;;
  *)
    echo "jobs.sh submit FILE | watch JOB | stop JOB" >&2
    exit 64 ;;
esac
