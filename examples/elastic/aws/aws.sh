#!/bin/sh
# Instances of Amazon EC2 as VMs, by aws. It follows the command reference of version 2 of the AWS CLI. Not run here: a
# test runs it with a stand-in for aws.
#
# config: image, type, authorized_key, args, such as [--subnet-id, subnet-1, --security-group-ids, sg-1], and address:
# PrivateIpAddress, the default, or PublicIpAddress. Region and credentials are those of the AWS CLI.
#
# Each VM has a client token of its own, which follows from the request: even if the list does not have an instance yet,
# EC2 does not make it twice. The second call is an error then, as its host key is another one, and changes nothing.
#
# Host keys: made here, given to the instance by its user data (see common.sh), and the public part is a tag.
. "$(dirname "$0")/../common.sh"
title='Amazon EC2'
later='LimitExceeded|CountExceeded|InsufficientInstanceCapacity|InsufficientFreeAddresses|Throttl|Unavailable'
later="$later|InternalError|Could not connect"

vms() {
  address=$(setting address PrivateIpAddress)
  run aws ec2 describe-instances --output json --filters "Name=tag:stepmux-group,Values=$group" \
    Name=instance-state-name,Values=pending,running,shutting-down,stopping,stopped >"$tmp/instances"
  jq --arg address "$address" '[.Reservations[].Instances[] | (.Tags | from_entries) as $tags | {
    id: .InstanceId, name: $tags.Name, created: .LaunchTime, address: (.[$address] // ""),
    host_keys: [$tags["stepmux-host-key"]],
    state: ({running: "running", pending: "creating", "shutting-down": "deleting"}[.State.Name] // "stopped")
  } | if .state == "running" and .address == "" then .state = "creating" else . end]' "$tmp/instances"
}

make() {
  name=$1 image=$(setting image) type=$(setting type) args=$(arguments)
  with_host_key "$name"
  tags=$(jq -n --arg name "$name" --arg group "$group" --arg request "$(field .request)" --arg key "$host_key" '{
    ResourceType: "instance", Tags: ({Name: $name, "stepmux-group": $group, "stepmux-request": $request,
      "stepmux-host-key": $key} | to_entries | map({Key: .key, Value: .value}))
  } | [.]')
  eval "set -- $args"
  run aws ec2 run-instances --client-token "$name" --count 1 --image-id "$image" --instance-type "$type" \
    --tag-specifications "$tags" --user-data "file://$tmp/$name.init" \
    --query 'Instances[0].InstanceId' --output text "$@"
}

remove() { run aws ec2 terminate-instances --instance-ids "$1" >/dev/null; }

main "$@"
