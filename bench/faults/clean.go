package faults

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// cleanLooks is how many checks in a row must find nothing: one check can miss a process that another one is just
// starting.
const cleanLooks = 5

// requireClean waits until no process and no file of the round's builds is left. since is when the last build ended.
func (r *rig) requireClean(since time.Time) {
	bound := cleanBound
	if r.spec.late {
		bound = lateCleanBound
	}
	r.requireCleanWithin(cmp.Or(r.opts.Clean, bound), since)
}

func (r *rig) requireCleanWithin(bound time.Duration, since time.Time) {
	var alive []process
	var left []string
	clean := 0
	await(bound, func() bool {
		alive, left = r.alive(), r.left()
		if len(alive) == 0 && len(left) == 0 {
			clean++
		} else {
			clean = 0
		}
		return clean == cleanLooks
	})
	for _, p := range alive {
		r.find(Finding{What: Orphan, Build: fmt.Sprint(p.pid), Text: p.String()})
	}
	for _, path := range left {
		r.find(Finding{What: Leftover, Build: path, Text: describe(path)})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.CleanMS = max(r.result.CleanMS, millis(time.Since(since)))
}

// alive returns the processes that should have ended: all of the round's but this one and the sshds that listen.
func (r *rig) alive() []process {
	all := below(processes(), os.Getppid())
	return slices.DeleteFunc(all, func(p process) bool {
		listens := slices.ContainsFunc(r.vms, func(m *machine) bool { return p.pid == m.listener() })
		return p.pid == os.Getpid() || listens || p.state == "Z"
	})
}

// left returns the files that should have been removed. A script whose removal was refused by a fault may stay.
func (r *rig) left() []string {
	var found []string
	for _, m := range r.vms {
		for _, path := range m.left() {
			if r.plan.Kind != "tmp-readonly" || !strings.HasPrefix(filepath.Base(path), "stepmux-script.") {
				found = append(found, path)
			}
		}
	}
	return found
}

// describe tells of a file when it was changed, and which process has locked it.
func describe(path string) string {
	fi, err := os.Lstat(path)
	if err != nil {
		return path + ", which is gone now"
	}
	text := fmt.Sprintf("%s (%v, changed %v ago", path, fi.Mode(), time.Since(fi.ModTime()).Round(time.Millisecond))
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		// "1: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF" (proc_locks(5)); the number after the device is the inode's.
		locks, _ := os.ReadFile("/proc/locks")
		for line := range strings.Lines(string(locks)) {
			fields := strings.Fields(line)
			if len(fields) > 5 && fields[1] == "FLOCK" && strings.HasSuffix(fields[5], fmt.Sprintf(":%d", st.Ino)) {
				text += ", locked by process " + fields[4]
			}
		}
	}
	return text + ")"
}
