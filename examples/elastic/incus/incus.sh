#!/bin/sh
# Instances of Incus as VMs, by incus. It follows the manual of Incus 6. Not run here: a test runs it with a stand-in
# for incus.
#
# config: image, authorized_key, args, such as [--vm, --profile, ci]. The image needs cloud-init and an sshd, such as
# one that was published from an instance of images:debian/12/cloud in which openssh-server is installed.
#
# Host keys: each instance makes its own, and `list` pulls the public part from it. Until that is there, the VM is
# listed as one that is being made.
. "$(dirname "$0")/../common.sh"
title=Incus
later='limit|no space left|not enough|cannot allocate memory|connection refused|connect: no such file'

vms() {
  run incus list "user.stepmux-group=$group" --format json >"$tmp/instances"
  jq -r --arg group "$group" '.[] | select(.config["user.stepmux-group"] == $group and .status == "Running").name' \
    "$tmp/instances" >"$tmp/running"
  : >"$tmp/keys"
  while read -r name; do
    key=$(incus file pull "$name/etc/ssh/ssh_host_ed25519_key.pub" - 2>/dev/null </dev/null) || continue
    printf '%s %s\n' "$name" "$key" >>"$tmp/keys"
  done <"$tmp/running"
  jq --arg group "$group" --rawfile keys "$tmp/keys" '
    ($keys | split("\n") | map(split(" ") | select(length > 2) | {key: .[0], value: "\(.[1]) \(.[2])"}) | from_entries)
      as $keys |
    map(select(.config["user.stepmux-group"] == $group) | {
      id: .name, name: .name, created: .created_at,
      address: ([.state.network // {} | .[].addresses[] | select(.family == "inet" and .scope == "global")][0].address
        // ""),
      host_keys: (if $keys[.name] then [$keys[.name]] else [] end),
      state: ({Running: "running", Stopped: "stopped", Frozen: "stopped", Stopping: "deleting"}[.status] // "creating")
    } | if .state == "running" and (.address == "" or .host_keys == []) then .state = "creating" else . end)
  ' "$tmp/instances"
}

make() {
  name=$1 image=$(setting image) args=$(arguments)
  cloud_init "$name"
  eval "set -- $args"
  run incus launch "$image" "$name" --config "user.stepmux-group=$group" \
    --config "user.stepmux-request=$(field .request)" --config "cloud-init.user-data=$(cat "$tmp/$name.init")" "$@" \
    </dev/null >/dev/null || {
    code=$?
    incus delete --force "$name" >&2 || true # it may be made, and not started
    return "$code"
  }
  echo "$name"
}

remove() { run incus delete --force "$1" >/dev/null; }

main "$@"
