#!/bin/sh
# A cloud for tests, as the key exec of a group of VMs: each VM is an sshd of this machine. Its configuration has dir, a
# directory for its state, keys, the file with the authorized keys, and delay, the seconds until a VM runs. While the
# file fail is in dir, all operations fail with its text.
set -eu
setting() { printf %s "$STEPMUX_SOURCE_CONFIG" | sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p"; }
request=$(cat)
field() { printf %s "$request" | sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p"; }
dir=$(setting dir)
mkdir -p "$dir/vms" "$dir/requests"
cd "$dir"
echo "$1 $request" >>calls
if [ -e fail ]; then
  cat fail >&2
  exit 75
fi

# boot ID: makes a VM, which listens after the delay.
boot() {
  mkdir "vms/$1.new"
  ssh-keygen -q -t ed25519 -N '' -C '' -f "vms/$1.new/key"
  mv "vms/$1.new" "vms/$1"
  setsid sh -c '
    cd "$1" && echo $$ >pid && sleep "$2"
    while :; do
      port=$(($(od -An -N2 -tu2 /dev/urandom) % 20000 + 12000))
      echo "$port" >port
      /usr/sbin/sshd -D -e -o "ListenAddress=127.0.0.1:$port" -h "$1/key" -o "AuthorizedKeysFile=$3" -o PidFile=none \
        -o StrictModes=no -o UsePAM=no -o PasswordAuthentication=no -o MaxStartups=100 -o "SetEnv=SHLVL=1" \
        -f /dev/null 2>log || true
    done' sh "$dir/vms/$1" "$(setting delay)" "$(setting keys)" </dev/null >/dev/null 2>&1 9>&- &
}

# halt ID: ends a VM with its connections.
halt() {
  [ -e "vms/$1/pid" ] || return 0
  shell=$(cat "vms/$1/pid")
  kill -STOP "$shell" || true # it starts no other sshd
  for daemon in $(pgrep -P "$shell"); do
    # shellcheck disable=SC2046 # the words are numbers
    kill -KILL $(pgrep -P "$daemon") "$daemon" || true
  done
  kill -KILL "$shell" || true
  rm -rf "vms/$1"
}

# strings: prints words as a list of JSON.
strings() { printf '['; printf '"%s"\n' "$@" | paste -sd, - | tr -d '\n'; printf ']'; }

exec 9>lock
case $1 in
info) echo '{"v":1,"name":"sshd"}' ;;
list)
  all=
  for vm in vms/*[0-9]; do
    [ -e "$vm/port" ] || { [ -d "$vm" ] && all="$all,{\"id\":\"${vm#vms/}\",\"state\":\"creating\"}"; continue; }
    state=creating
    if grep -q 'Server listening' "$vm/log" 2>/dev/null; then state=running; fi
    all="$all,{\"id\":\"${vm#vms/}\",\"state\":\"$state\",\"address\":\"127.0.0.1\",\"port\":$(cat "$vm/port"),"
    all="$all\"host_keys\":[\"$(cut -d' ' -f1,2 "$vm/key.pub")\"]}"
  done
  echo "{\"v\":1,\"instances\":[${all#,}]}"
  ;;
create)
  flock 9
  made=requests/$(field request)
  if [ ! -e "$made" ]; then
    ids= n=$(field count)
    while [ "$n" -gt 0 ]; do
      n=$((n - 1)) next=$(($(cat next 2>/dev/null || echo 0) + 1))
      echo "$next" >next
      ids="$ids vm-$next"
    done
    echo "$ids" >"$made.new"
    mv "$made.new" "$made"
  fi
  # shellcheck disable=SC2013 # words, not lines
  for id in $(cat "$made"); do
    [ -d "vms/$id" ] || [ -e "requests/$id.booted" ] || { : >"requests/$id.booted"; boot "$id"; }
  done
  # shellcheck disable=SC2046 # the words are ids
  set -- $(cat "$made")
  echo "{\"v\":1,\"accepted\":$#,\"ids\":$(strings "$@")}"
  ;;
delete)
  flock 9
  ids=$(printf %s "$request" | sed -n 's/.*"ids":\[\([^]]*\)\].*/\1/p' | tr -d '"' | tr , ' ')
  for id in $ids; do halt "$id"; done
  # shellcheck disable=SC2086 # the words are ids
  echo "{\"v\":1,\"deleted\":$(strings $ids)}"
  ;;
*)
  echo "unknown operation $1" >&2
  exit 2
  ;;
esac
