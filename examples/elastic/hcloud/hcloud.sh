#!/bin/sh
# Servers of Hetzner Cloud as VMs, by hcloud. It follows the manual of hcloud 1.5x (docs/reference/manual in its
# repository). Not run here: a test runs it with a stand-in for hcloud.
#
# config: image, type, authorized_key, args, such as [--location, nbg1, --ssh-key, ci]. With an --ssh-key no password is
# mailed. With [--without-ipv4, --without-ipv6, --network, ci] the address is the private one. The token is in
# HCLOUD_TOKEN.
#
# Host keys: made here, given to the server by its user data (see common.sh), and the public part is a label. A label
# takes 63 of A-Z a-z 0-9 _ . - and so has the 43 characters in which two ed25519 keys differ, with - for + and _ for /.
. "$(dirname "$0")/../common.sh"
title='Hetzner Cloud'
later='limit_exceeded|resource_unavailable|service_error|maintenance|locked|conflict|placement_error|timeout'
later="$later|connection refused|no such host"
same='ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI' # how all such keys begin

vms() {
  run hcloud server list --selector "stepmux-group=$group" --output json >"$tmp/servers"
  jq --arg same "$same" 'map({
    id: .name, name: .name, created: .created, address: (.public_net.ipv4.ip // .private_net[0].ip // ""),
    host_keys: [$same + (.labels["stepmux-key"][1:-1] | gsub("-"; "+") | gsub("_"; "/"))],
    state: ({running: "running", deleting: "deleting", stopping: "stopped", off: "stopped"}[.status] // "creating")
  } | if .state == "running" and .address == "" then .state = "creating" else . end)' "$tmp/servers"
}

make() {
  name=$1 image=$(setting image) type=$(setting type) args=$(arguments)
  with_host_key "$name"
  label=k$(printf '%s' "${host_key#"$same"}" | tr +/ -_)k
  eval "set -- $args"
  run hcloud server create --name "$name" --image "$image" --type "$type" --label "stepmux-group=$group" \
    --label "stepmux-request=$(field .request)" --label "stepmux-key=$label" \
    --user-data-from-file "$tmp/$name.init" "$@" >/dev/null
  echo "$name"
}

remove() { run hcloud server delete "$1" >/dev/null; }

main "$@"
