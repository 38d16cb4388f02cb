#!/bin/sh
# A stand-in for the commands of clouds, for tests: it is called by their names. A VM is a file in $FAKE with the
# arguments that it was made with, and beside it is its user data. While $FAKE/fail is there, all fail with its text.
set -eu
command=$(basename "$0")
[ ! -e "$FAKE/fail" ] || {
  cat "$FAKE/fail" >&2
  exit 1
}

# keep NAME ARGUMENTS...: keeps a VM. It fails if there is one of that name.
keep() {
  file=$FAKE/$1.vm
  shift
  (set -C && jq -n '$ARGS.positional' --args -- "$@" >"$file")
}

# kept FILTER: prints the VMs, as FILTER makes them of their arguments.
kept() {
  find "$FAKE" -name '*.vm' -exec cat {} + | jq -s "
    def all(\$name): . as \$args | [range(length) | select(\$args[.] == \$name) | \$args[. + 1]];
    def one(\$name): all(\$name)[0];
    def pairs(\$name): all(\$name) | map(capture(\"^(?<key>[^=]*)=(?<value>(.|\n)*)\") ) | from_entries;
    def address: \"10.0.0.\" + split(\"-\")[-1];
    map($1)"
}

# value OPTION ARGUMENTS...: prints the value of an option.
value() {
  name=$1
  shift
  while [ "$1" != "$name" ]; do shift; done
  printf '%s\n' "$2"
}

case "$command $1 ${2:-}" in
'hcloud server create')
  name=$(value --name "$@")
  keep "$name" "$@"
  cp "$(value --user-data-from-file "$@")" "$FAKE/$name.init"
  ;;
'hcloud server list')
  selector=$(value --selector "$@")
  kept '{name: one("--name"), status: "running", created: "2026-03-02T12:00:00+00:00", labels: pairs("--label"),
    public_net: {ipv4: {ip: one("--name") | address}}}' |
    jq --arg selector "$selector" 'map(select(.labels | to_entries | any("\(.key)=\(.value)" == $selector)))'
  ;;
'hcloud server delete') rm "$FAKE/$3.vm" ;;
'aws ec2 run-instances')
  name=$(value --client-token "$@")
  keep "$name" "$@"
  data=$(value --user-data "$@")
  cp "${data#file://}" "$FAKE/$name.init"
  echo "i-$name"
  ;;
'aws ec2 describe-instances')
  filter=$(value --filters "$@")
  kept '{InstanceId: ("i-" + one("--client-token")), PrivateIpAddress: one("--client-token") | address,
    LaunchTime: "2026-03-02T12:00:00+00:00", Tags: (one("--tag-specifications") | fromjson[0].Tags),
    State: {Name: "running"}}' | jq --arg filter "$filter" '{Reservations: map(select(any(.Tags[];
      "Name=tag:\(.Key),Values=\(.Value)" == $filter)) | {Instances: [.]})}'
  ;;
'aws ec2 terminate-instances') rm "$FAKE/${4#i-}.vm" ;;
'openstack server create')
  for name in "$@"; do :; done
  keep "$name" "$@"
  cp "$(value --user-data "$@")" "$FAKE/$name.init"
  echo "id-$name"
  ;;
'openstack server list')
  kept '{ID: ("id-" + last), Name: last, Status: "ACTIVE", Networks: {ci: ["fd00::1", (last | address)]},
    Properties: pairs("--property")}'
  ;;
'openstack server delete') rm "$FAKE/${3#id-}.vm" ;;
'incus launch'*)
  keep "$3" "$@"
  jq -r '.[] | select(startswith("cloud-init.user-data=")) | ltrimstr("cloud-init.user-data=")' "$FAKE/$3.vm" \
    >"$FAKE/$3.init"
  ;;
'incus list'*)
  kept '{name: .[2], status: "Running", created_at: "2026-03-02T12:00:00.123456789Z", config: pairs("--config"),
    state: {network: {lo: {addresses: [{family: "inet", scope: "local", address: "127.0.0.1"}]},
      eth0: {addresses: [{family: "inet6", scope: "link", address: "fe80::1"},
        {family: "inet", scope: "global", address: .[2] | address}]}}}}'
  ;;
'incus file pull') echo "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2iUZ0Vd2fLhyyRwl0M4C/TrlGeXvIuUpLuyDzOVXZU vm" ;;
'incus delete --force') rm "$FAKE/$3.vm" ;;
'qemu-img create '*)
  for disk in "$@"; do :; done
  : >"$disk"
  ;;
'virt-install '*)
  name=$(value --name "$@")
  keep "$name" "$@"
  data=$(value --cloud-init "$@")
  cp "${data#user-data=}" "$FAKE/$name.init"
  ;;
'virsh list --all')
  kept 'one("--name")' | jq -r '.[]'
  echo of-somebody-else
  echo
  ;;
'virsh domstate '*) echo running ;;
'virsh domifaddr '*)
  printf ' Name       MAC address          Protocol     Address\n%s\n' -----------------------------------------------
  printf ' vnet0      52:54:00:8f:f2:d5    ipv4         10.0.0.%s/24\n\n' "${2##*-}"
  ;;
'virsh destroy '*) [ -e "$FAKE/$2.vm" ] ;;
'virsh undefine '*) rm "$FAKE/$2.vm" ;;
*)
  echo "unknown: $command $*" >&2
  exit 2
  ;;
esac
