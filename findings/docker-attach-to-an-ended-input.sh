#!/usr/bin/env bash
# Docker 20.10.24: an attach with standard input succeeds although the container's standard input has ended.
#
# A container that was created with StdinOnce gets the end of its input when the first attach ends its own.
# Guess: the daemon refuses a later attach that asks for the input, since it has nothing to connect it to.
# Comes: it accepts the attach without an error and drops what is written. Without StdinOnce the second one arrives.
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "skip: needs root"; exit 77; }
for tool in dockerd docker busybox; do
    command -v "$tool" >/dev/null || { echo "skip: needs $tool"; exit 77; }
done
version=$(dockerd --version)
[[ $version == *" 20.10.24"* ]] || { echo "skip: needs Docker 20.10.24"; exit 77; }
work=$(mktemp -d)
daemon=
trap '[ -z "$daemon" ] || { kill "$daemon"; wait "$daemon" || true; }; rm -rf "$work"' EXIT
cd "$work"
dockerd --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/pid" --host "unix://$work/socket" \
    --bridge none --iptables=false --ip6tables=false --storage-driver vfs >log 2>&1 &
daemon=$!
export DOCKER_HOST="unix://$work/socket"
for _ in {1..300}; do
    ! docker version >/dev/null 2>&1 || break
    kill -0 "$daemon" 2>/dev/null || { daemon=; echo "skip: no daemon starts here: $(tail -1 log)"; exit 77; }
    sleep 0.1
done
echo "Docker $(docker version --format '{{.Server.Version}}')"
# An image of BusyBox and its libraries.
mkdir -p root/bin
cp "$(command -v busybox)" root/bin/busybox
for name in sh sleep; do ln -s busybox "root/bin/$name"; done
for library in $( (ldd root/bin/busybox 2>/dev/null || true) | grep -o '/[^ ]*' || true); do
    mkdir -p "root${library%/*}"
    cp -L "$library" "root$library"
done
tar -C root -c . | docker import - test >/dev/null

loop='while :; do if read x; then echo "got $x"; else sleep 1; fi; done'
attach() { # CONTAINER TEXT
    local code=0
    echo "$2" | timeout -s KILL 5 docker attach --sig-proxy=false "$1" >said 2>&1 || code=$?
    # docker waits for output until it is killed (137), unless the daemon refuses.
    [ "$code" = 137 ] && echo "attach with $2: accepted" || echo "attach with $2: $(head -1 said)"
}
{
    for once in true false; do
        if [ "$once" = true ]; then
            container=$(docker create --interactive --network none test sh -c "$loop")
            docker start "$container" >/dev/null
        else
            container=$(docker run --detach --interactive --network none test sh -c "$loop")
        fi
        docker inspect --format 'StdinOnce {{.Config.StdinOnce}}' "$container"
        attach "$container" one
        attach "$container" two
        echo "the container: $(docker logs "$container" | paste -sd ' ')"
        docker rm --force "$container" >/dev/null
    done
} 2>errors | tee output
diff -u - output <<'END'
StdinOnce true
attach with one: accepted
attach with two: accepted
the container: got one
StdinOnce false
attach with one: accepted
attach with two: accepted
the container: got one got two
END
