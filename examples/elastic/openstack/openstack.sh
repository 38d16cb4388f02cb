#!/bin/sh
# Servers of OpenStack as VMs, by openstack. It follows the documentation of python-openstackclient 6. Not run here: a
# test runs it with a stand-in for openstack.
#
# config: image, type (the flavor), authorized_key, args, such as [--network, ci, --security-group, ssh]. The cloud and
# the credentials are those of the client: OS_CLOUD or OS_AUTH_URL and others.
#
# Names are not unique in OpenStack: a request that is sent again finds its servers by `server list`, which has a server
# as soon as `server create` has answered. A server in the state ERROR is listed as one that is being made: the manager
# deletes it after three times the ready-timeout.
#
# Host keys: made here, given to the server by its user data (see common.sh), and the public part is a property.
. "$(dirname "$0")/../common.sh"
title=OpenStack
later='quota|over ?limit|too many requests|HTTP 429|HTTP 50[0234]|no valid host|unable to establish connection'

vms() {
  run openstack server list --long --limit -1 -f json >"$tmp/servers"
  jq --arg group "$group" 'map(select(.Properties["stepmux-group"] == $group) | {
    id: .ID, name: .Name, host_keys: [.Properties["stepmux-host-key"]],
    address: ([.Networks[][] | select(contains(":") | not)][0] // [.Networks[][]][0] // ""),
    state: ({ACTIVE: "running", SHUTOFF: "stopped", SUSPENDED: "stopped", PAUSED: "stopped", DELETED: "deleting",
      SOFT_DELETED: "deleting"}[.Status] // "creating")
  } | if .state == "running" and .address == "" then .state = "creating" else . end)' "$tmp/servers"
}

make() {
  name=$1 image=$(setting image) type=$(setting type) args=$(arguments)
  with_host_key "$name"
  eval "set -- $args"
  run openstack server create --image "$image" --flavor "$type" --property "stepmux-group=$group" \
    --property "stepmux-request=$(field .request)" --property "stepmux-host-key=$host_key" \
    --user-data "$tmp/$name.init" "$@" -f value -c id "$name"
}

remove() { run openstack server delete "$1" >/dev/null; }

main "$@"
