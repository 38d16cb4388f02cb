#!/bin/sh
# Containers of the Docker daemon of this machine as VMs: `exec: /etc/stepmux/elastic/docker/docker.sh`. A test runs it.
# Dockerfile and start.sh make the image, and manager.yml uses it. It needs the docker command, and jq (common.sh).
#
# config: image, network (a bridge that was made for them: docker network create stepmux), authorized_key, args.
#
# Host keys: each container makes its own when it starts, and `list` reads it there. A container that ends is removed,
# and so is not listed any more. user_data is not used: what a VM needs goes to the image.
#
# A container is no machine: who is root in it, or may use the daemon's socket, may get to its host.
. "$(dirname "$0")/../common.sh"
title=docker
later='cannot connect to the docker daemon|no space left|cannot allocate memory|no available ipv4|toomanyrequests'
network=$(setting network)

vms() {
  run docker ps --all --no-trunc --filter "label=stepmux-group=$group" --format '{{json .}}' >"$tmp/containers"
  run docker network inspect "$network" >"$tmp/network"
  jq -r 'select(.State == "running").Names' "$tmp/containers" >"$tmp/running"
  : >"$tmp/keys"
  while read -r name; do # the file is not there before the container has made its key
    key=$(docker exec "$name" cat /etc/ssh/ssh_host_ed25519_key.pub 2>/dev/null </dev/null) || continue
    printf '%s %s\n' "$name" "$key" >>"$tmp/keys"
  done <"$tmp/running"
  jq -s --rawfile keys "$tmp/keys" --slurpfile network "$tmp/network" '
    ($keys | split("\n") | map(split(" ") | select(length > 2) | {key: .[0], value: "\(.[1]) \(.[2])"}) | from_entries)
      as $keys |
    ($network[0][0].Containers // {} | map({key: .Name, value: (.IPv4Address | split("/")[0])}) | from_entries)
      as $addresses |
    map(.Names as $name | {
      id: $name, name: $name, port: 22, address: ($addresses[$name] // ""),
      created: (.CreatedAt | split(" ") | "\(.[0])T\(.[1])\(.[2][:3]):\(.[2][3:])"),
      host_keys: (if $keys[$name] then [$keys[$name]] else [] end),
      state: ({running: "running", created: "creating", restarting: "creating", paused: "stopped"}[.State] //
        "deleting")
    } | if .state == "running" and (.address == "" or .host_keys == []) then .state = "creating" else . end)
  ' "$tmp/containers"
}

make() {
  image=$(setting image) key=$(setting authorized_key) args=$(arguments)
  eval "set -- \"$1\" $args"
  name=$1
  shift
  run docker run --detach --rm --init --name "$name" --hostname "$name" --network "$network" \
    --label "stepmux-group=$group" --label "stepmux-request=$(field .request)" --env "AUTHORIZED_KEY=$key" \
    "$@" "$image" >/dev/null || {
    code=$?
    docker rm --force --volumes "$name" >&2 || true # it may be made, and not started
    return "$code"
  }
  echo "$name"
}

remove() { run docker rm --force --volumes "$1" >/dev/null; }

main "$@"
