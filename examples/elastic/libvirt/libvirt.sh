#!/bin/sh
# Domains of libvirt on this machine as VMs, by virsh, virt-install and qemu-img. It follows the manuals of virsh 9,
# virt-install 4 and qemu-img 7. Not run here: a test runs it with stand-ins for the three.
#
# config: image (a qcow2 file with cloud-init, such as the generic cloud image of Debian), dir (a directory that QEMU
# can read, such as /var/lib/libvirt/images/stepmux), memory in MiB, cpus, authorized_key, and args for virt-install,
# such as [--network, network=ci]. The manager's user needs the right to use qemu:///system.
#
# The VMs of a group are the domains that have a directory in dir/GROUP, with the disk and the public host key.
#
# Host keys: made here, and given to the VM by its user data, which virt-install puts on a CD for the first boot only.
. "$(dirname "$0")/../common.sh"
export LIBVIRT_DEFAULT_URI="${LIBVIRT_DEFAULT_URI:-qemu:///system}" LC_ALL=C
title=libvirt
later='cannot allocate memory|no space left|failed to connect|cannot acquire state change lock|timed out'
dir=$(setting dir)/$group

vms() {
  run virsh list --all --name >"$tmp/domains"
  : >"$tmp/lines"
  while read -r name; do
    key=$(cat "$dir/${name:-.}/host_key.pub" 2>/dev/null) || continue # of another group, or not ours
    state=$(virsh domstate "$name" </dev/null) || continue            # it has gone since
    address=$(virsh domifaddr "$name" --source lease </dev/null |
      awk '$3 == "ipv4" && !n++ { sub("/.*", "", $4); print $4 }')
    jq -cn --arg id "$name" --arg state "$state" --arg address "$address" --arg key "$key" '{
      id: $id, name: $id, address: $address, host_keys: [$key],
      state: (if $state != "running" then "stopped" elif $address == "" then "creating" else "running" end)
    }' >>"$tmp/lines"
  done <"$tmp/domains"
  jq -s . "$tmp/lines"
}

make() {
  name=$1 image=$(setting image) memory=$(setting memory 2048) cpus=$(setting cpus 2) args=$(arguments)
  with_host_key "$name"
  (umask 022 && mkdir -p "$dir/$name")
  run qemu-img create -q -f qcow2 -b "$image" -F qcow2 "$dir/$name/disk.qcow2" >/dev/null
  printf '%s\n' "$host_key" >"$dir/$name/host_key.pub"
  eval "set -- $args"
  run virt-install --import --noautoconsole --name "$name" --memory "$memory" --vcpus "$cpus" --graphics none \
    --osinfo detect=on,require=off --disk "path=$dir/$name/disk.qcow2,format=qcow2" \
    --cloud-init "user-data=$tmp/$name.init" "$@" >/dev/null || {
    code=$?
    remove "$name" || true
    return "$code"
  }
  echo "$name"
}

remove() {
  virsh destroy "$1" >&2 || true # it may be off
  run virsh undefine "$1" --nvram >/dev/null
  rm -rf "${dir:?}/$1"
}

main "$@"
