# shellcheck shell=sh
# The contract of docs/elastic.md, for the programs beside this file, which source it. It needs jq 1.6 and ssh-keygen.
# A program has $group, sets title, and later: a regular expression of the errors of its cloud after which a call may
# work another time. It defines
#
#   vms           prints the VMs of $group as the contract does, each with the name that it was made with
#   make NAME     makes the VM NAME, and prints its id
#   remove ID     deletes a VM
#
# and calls main. It finds in config, besides its own keys:
#
#   authorized_key  the public key that may log in
#   args            more arguments for the command that makes a VM
#
# The names of a request's VMs follow from its identity. So the same request finds those that are there.
set -eu
umask 077
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM
mkdir "$tmp/done"
request=$(cat)

# field FILTER: prints a part of the request, as text.
field() { printf '%s' "$request" | jq -r "$1"; }
group=$(field '.group // ""')

# setting KEY [DEFAULT]: prints a key of config. Without a default it has to be there.
setting() {
  printf '%s' "${STEPMUX_SOURCE_CONFIG:?}" | jq -er --arg key "$1" '.[$key] // empty' && return
  [ $# -gt 1 ] || { echo "config needs the key $1" >&2; return 2; }
  printf '%s\n' "$2"
}

# arguments: prints the list args of config, quoted for eval.
arguments() { printf '%s' "$STEPMUX_SOURCE_CONFIG" | jq -r '.args // [] | @sh'; }

# run COMMAND...: runs a command. If it fails and its error has $later, all of this program ends with 75.
run() {
  code=0
  said=$("$@" 2>&1 >&3 3>&-) || code=$?
  [ -z "$said" ] || printf '%s\n' "$said" >&2
  if [ "$code" -ne 0 ] && printf '%s\n' "$said" | grep -qiE "$later"; then
    : >"$tmp/later"
    code=75
  fi
  return "$code"
} 3>&1

# cloud_init NAME [KEY]: writes the user data of a VM for cloud-init to $tmp/NAME.init. KEY is the file of its private
# host key, beside which is KEY.pub. The user data of the request come after ours, as a second part.
cloud_init() {
  key=$(setting authorized_key '')
  {
    echo '#cloud-config'
    jq -n --arg key "$key" 'if $key == "" then {} else {ssh_authorized_keys: [$key]} end' >"$tmp/$1.keys"
    [ $# -eq 1 ] || jq --rawfile private "$2" --rawfile public "$2.pub" \
      '.ssh_keys = {ed25519_private: $private, ed25519_public: $public}' "$tmp/$1.keys" >"$tmp/$1.host"
    [ $# -eq 1 ] || mv "$tmp/$1.host" "$tmp/$1.keys"
    cat "$tmp/$1.keys"
  } >"$tmp/$1.init"
  [ "$(field 'has("user_data")')" = true ] || return 0
  mv "$tmp/$1.init" "$tmp/$1.first"
  {
    printf 'Content-Type: multipart/mixed; boundary="=%s="\nMIME-Version: 1.0\n' "$1"
    printf '\n--=%s=\nContent-Type: text/plain; charset="utf-8"\n\n' "$1"
    cat "$tmp/$1.first"
    printf '\n--=%s=\nContent-Type: text/plain; charset="utf-8"\n\n' "$1"
    field .user_data
    printf '\n--=%s=--\n' "$1"
  } >"$tmp/$1.init"
}

# with_host_key NAME: writes the user data of a VM that gets a host key from us. The public part is in $host_key.
#
# The private part is in the user data, and nowhere else. A build that may ask the cloud for the user data of its VM can
# read it: do not let builds reach the address 169.254.169.254.
with_host_key() {
  ssh-keygen -q -t ed25519 -N '' -C '' -f "$tmp/$1.key"
  host_key=$(cut -d' ' -f1,2 "$tmp/$1.key.pub")
  cloud_init "$1" "$tmp/$1.key"
}

# each COMMAND: calls a command with each line of its input, ten at once. What is done is in $tmp/done.
each() {
  n=0
  while read -r line; do
    "$1" "$line" </dev/null &
    n=$((n + 1))
    [ $((n % 10)) -ne 0 ] || wait
  done
  wait
}

one_made() {
  id=$(jq -r --arg name "$1" '.[] | select(.name == $name).id' "$tmp/vms")
  [ -n "$id" ] || id=$(make "$1")
  printf '%s\n' "$id" >"$tmp/$1.id"
  mv "$tmp/$1.id" "$tmp/done/$1"
}

one_removed() {
  if jq -e --arg id "$1" 'any(.id == $id)' "$tmp/vms" >/dev/null; then remove "$1"; fi
  printf '%s\n' "$1" >"$tmp/done/$1"
}

# done_ids: prints the ids that are done, as JSON. If none of those that were asked for is, it fails.
done_ids() {
  find "$tmp/done" -type f -exec cat {} + >"$tmp/ids"
  jq -Rn '[inputs]' "$tmp/ids"
  if [ -s "$tmp/ids" ] || [ ! -s "$tmp/names" ]; then return 0; fi
  [ ! -e "$tmp/later" ] || return 75
  return 1
}

main() {
  case $1 in
  info) jq -n --arg name "$title" '{v: 1, name: $name}' ;;
  list)
    vms >"$tmp/vms"
    jq '{v: 1, instances: .}' "$tmp/vms"
    ;;
  create)
    vms >"$tmp/vms"
    field '(.request | gsub("[^0-9a-z]"; "")[:16]) as $id | "\(.group)-\($id)-\(range(.count) + 1)"' >"$tmp/names"
    each one_made <"$tmp/names"
    ids=$(done_ids)
    jq -n --argjson ids "$ids" '{v: 1, accepted: ($ids | length), ids: $ids}'
    ;;
  delete)
    vms >"$tmp/vms"
    field '.ids[]' >"$tmp/names"
    each one_removed <"$tmp/names"
    ids=$(done_ids)
    jq -n --argjson ids "$ids" '{v: 1, deleted: $ids}'
    ;;
  *)
    echo "unknown operation $1" >&2
    return 2
    ;;
  esac
}
