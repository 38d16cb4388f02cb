#!/bin/sh
# The start of a container that docker.sh makes: an sshd with a host key of its own, for the user ci.
set -eu
umask 077
mkdir -p /run/sshd /home/ci/.ssh
chmod 755 /run/sshd
printf '%s\n' "$AUTHORIZED_KEY" >/home/ci/.ssh/authorized_keys
chown -R ci:ci /home/ci/.ssh
key=/etc/ssh/ssh_host_ed25519_key
[ -e $key.pub ] || { # docker.sh takes the public one as the sign that the container runs
  ssh-keygen -q -t ed25519 -N '' -C '' -f /tmp/host_key
  mv /tmp/host_key $key
  mv /tmp/host_key.pub $key.pub
}
exec /usr/sbin/sshd -D -e -o HostKey=$key -o PasswordAuthentication=no -o PidFile=none
