package source

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// program returns a source whose program is a shell script, with the operation as $1.
func program(t *testing.T, script string, edit ...func(*ExecConfig)) *Exec {
	t.Helper()
	cfg := ExecConfig{Command: []string{"/bin/sh", "-c", script, "source"}, Group: "small"}
	for _, change := range edit {
		change(&cfg)
	}
	e, err := NewExec(cfg)
	require.NoError(t, err)
	return e
}

// answers returns a source that prints a text.
func answers(t *testing.T, text string) *Exec {
	t.Helper()
	return program(t, "cat >/dev/null; cat <<'END'\n"+text+"\nEND")
}

const hostKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2iUZ0Vd2fLhyyRwl0M4C/TrlGeXvIuUpLuyDzOVXZU vm"

// A program with an answer for each operation, which also repeats its request.
func TestASourceTalksToItsProgramInJSON(t *testing.T) {
	dir := t.TempDir()
	e := program(t, `cat >`+dir+`/$1; case $1 in
info) echo '{"v":1,"name":"a cloud","version":"2","max":7,"capabilities":["suspend"]}';;
list) echo '{"v":1,"instances":[{"id":"vm-1","state":"running","address":"10.0.0.1","port":22,"user":"ci",
	"labels":{"a":"b"},"created":"2026-03-02T12:00:00Z","host_keys":["`+hostKey+`"],"identity_file":"/k","capacity":3,
	"protected":true,"more":1},{"id":"vm-2","state":"creating"}]}';;
create) echo '{"v":1,"accepted":2,"ids":["vm-3"]}';;
delete) echo '{"v":1,"deleted":["vm-1"]}';;
esac`, func(cfg *ExecConfig) { cfg.Settings = json.RawMessage(`{"zone":"a"}`) })
	request := func(op string) string {
		text, err := os.ReadFile(filepath.Join(dir, op))
		require.NoError(t, err)
		return string(text)
	}
	info, err := e.Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, Info{Name: "a cloud", Version: "2", Max: 7}, info)
	require.JSONEq(t, `{"v":1,"config":{"zone":"a"}}`, request("info"))

	list, err := e.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, []VM{{
		ID: "vm-1", State: Running, Address: "10.0.0.1", Port: 22, User: "ci", Labels: map[string]string{"a": "b"},
		Created: time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC), HostKeys: []string{hostKey}, IdentityFile: "/k", Capacity: 3,
		Protected: true,
	}, {ID: "vm-2", State: Creating}}, list)
	require.JSONEq(t, `{"v":1,"group":"small"}`, request("list"))

	accepted, ids, err := e.Create(t.Context(), Request{ID: "u-u", Count: 3, UserData: "x"})
	require.NoError(t, err)
	require.Equal(t, 2, accepted)
	require.Equal(t, []string{"vm-3"}, ids)
	require.JSONEq(t, `{"v":1,"group":"small","count":3,"request":"u-u","labels":{},"user_data":"x"}`, request("create"))

	deleted, err := e.Delete(t.Context(), []string{"vm-1", "vm-2"}, "not needed")
	require.NoError(t, err)
	require.Equal(t, []string{"vm-1"}, deleted)
	require.JSONEq(t, `{"v":1,"group":"small","ids":["vm-1","vm-2"],"reason":"not needed"}`, request("delete"))
}

func TestAWrongAnswerIsAnErrorThatNamesProgramOperationAndExit(t *testing.T) {
	list := func(e *Exec) error { _, err := e.List(t.Context()); return err }
	create := func(e *Exec) error { _, _, err := e.Create(t.Context(), Request{ID: "u", Count: 2}); return err }
	remove := func(e *Exec) error { _, err := e.Delete(t.Context(), []string{"a", "b"}, ""); return err }
	info := func(e *Exec) error { _, err := e.Info(t.Context()); return err }
	vms := func(text string) string { return `{"v":1,"instances":[` + text + `]}` }
	for name, test := range map[string]struct {
		do           func(*Exec) error
		answer, want string
	}{
		"nothing": {list, "", "the answer is empty"},
		"garbage": {list, "\x1b[2Jhello", "no answer in JSON: invalid character '\\x1b'"},
		"a list":  {list, "[]", "no answer in JSON"},
		"null":    {list, "null", `the answer needs "v":1`},
		"two answers": {
			list, vms("") + vms(""),
			"no answer in JSON: invalid character '{' after top-level value",
		},
		"cut":             {list, `{"v":1,"instances":[`, "no answer in JSON: unexpected end"},
		"another version": {list, `{"v":2,"instances":[]}`, `the answer needs "v":1, the version of the contract`},
		"no version":      {list, `{"instances":[]}`, `the answer needs "v":1`},
		"no VMs":          {list, `{"v":1}`, `the answer has no "instances": no VMs are "instances":[]`},
		"null VMs":        {list, `{"v":1,"instances":null}`, `the answer has no "instances"`},
		"VMs as a text":   {list, `{"v":1,"instances":"a"}`, "instances must be a list"},
		"no id":           {list, vms(`{"state":"running"}`), `the id "" cannot be used`},
		"terminal codes": {
			list, vms(`{"id":"a\u001b[2Jb","state":"running"}`), `the id "a\x1b[2Jb" cannot be used: it has 1 to 128 of A-Z`,
		},
		"a long id": {list, vms(`{"id":"` + strings.Repeat("x", 100_000) + `"}`), "a VM has 100009 bytes"},
		"same VM": {
			list, vms(`{"id":"a","state":"creating"},{"id":"a","state":"stopped"}`),
			"it lists the VM a twice",
		},
		"bad state": {
			list, vms(`{"id":"a","state":"on"}`),
			`VM a: state "on": use creating, running, deleting or stopped`,
		},
		"no address": {list, vms(`{"id":"a","state":"running"}`), "VM a: it is running and has no address"},
		"address of another": {
			list, vms(`{"id":"a","state":"running","address":"x"},{"id":"b","state":"running","address":"x"}`),
			"the VMs a and b have the same address x",
		},
		"address with a port": {
			list, vms(`{"id":"a","state":"running","address":"x:22"}`),
			`address "x:22": use a host name`,
		},
		"address with an escape": {
			list, vms(`{"id":"a","state":"creating","address":"x\u009b"}`),
			`address "x\u009b"`,
		},
		"an option": {
			list, vms(`{"id":"a","state":"creating","user":"a b"}`),
			`user "a b": use the name of an account`,
		},
		"port": {
			list, vms(`{"id":"a","state":"creating","port":65536}`),
			"port 65536: use 1 to 65535",
		},
		"capacity": {
			list, vms(`{"id":"a","state":"creating","capacity":-1}`),
			"capacity -1: use 1 to 1000",
		},
		"key file": {
			list, vms(`{"id":"a","state":"creating","identity_file":"k"}`),
			`identity_file "k": use an absolute path`,
		},
		"label": {
			list, vms(`{"id":"a","state":"creating","labels":{"a":"\u202e"}}`),
			`label "a": name and value are printable`,
		},
		"host key": {
			list, vms(`{"id":"a","state":"creating","host_keys":["SHA256:x"]}`),
			`host key "SHA256:x": use the form of`,
		},
		"many host keys": {
			list, vms(`{"id":"a","state":"creating","host_keys":[` + strings.Repeat(`"",`, 16) + `""]}`),
			"17 host keys",
		},
		"created":           {list, vms(`{"id":"a","state":"creating","created":"now"}`), "cannot parse"},
		"too many VMs":      {list, vms(strings.Repeat("{},", 10_000) + "{}"), "it lists more than 10000 VMs"},
		"negative count":    {create, `{"v":1,"accepted":-1}`, "accepted is -1: 2 VMs were asked for"},
		"too many accepted": {create, `{"v":1,"accepted":3}`, "accepted is 3: 2 VMs were asked for"},
		"nothing accepted":  {create, `{"v":1}`, `the answer has no "accepted"`},
		"too many ids":      {create, `{"v":1,"accepted":1,"ids":["a","b"]}`, "there are 2 ids for 1 accepted VMs"},
		"same id":           {create, `{"v":1,"accepted":2,"ids":["a","a"]}`, "it names the VM a twice"},
		"bad id":            {create, `{"v":1,"accepted":2,"ids":["-a"]}`, `the id "-a" cannot be used`},
		"no deleted":        {remove, `{"v":1}`, `the answer has no "deleted"`},
		"another deleted":   {remove, `{"v":1,"deleted":["c"]}`, `it has deleted "c", which was not asked for`},
		"negative max":      {info, `{"v":1,"max":-3}`, "max -3 is negative"},
		"a text as max":     {info, `{"v":1,"max":"3"}`, "cannot unmarshal string"},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.do(answers(t, test.answer))
			require.ErrorContains(t, err, test.want)
			require.Regexp(t, `^operation (list|create|delete|info) of the source: run /bin/sh: exit status 0, and`, err.Error())
			require.Less(t, len(err.Error()), 700)
			require.NotContains(t, err.Error(), "\x1b")
		})
	}
}

func TestAVMMayHaveTheAddressOfOneThatLeaves(t *testing.T) {
	list, err := answers(t, `{"v":1,"instances":[{"id":"a","state":"deleting","address":"x"},
		{"id":"b","state":"stopped","address":"x"},{"id":"c","state":"running","address":"x"},
		{"id":"d","state":"running","address":"x","port":23},{"id":"e","state":"running","address":"::1"}]}`,
	).List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 5)
}

func TestTheExitCodeOfAProgramCounts(t *testing.T) {
	t.Parallel()
	_, err := program(t, "echo quota is used up >&2; exit 75").List(t.Context())
	require.ErrorIs(t, err, ErrTryLater)
	require.EqualError(t, err, "operation list of the source: the source asks to try again later: run /bin/sh: "+
		`exit status 75; it said: "quota is used up"`)
	_, _, err = program(t, "echo '{\"v\":1,\"accepted\":1}'; exit 1").Create(t.Context(), Request{Count: 1})
	require.NotErrorIs(t, err, ErrTryLater)
	require.EqualError(t, err, "operation create of the source: run /bin/sh: exit status 1")
	_, err = program(t, "kill -KILL $$").Delete(t.Context(), []string{"a"}, "")
	require.EqualError(t, err, "operation delete of the source: run /bin/sh: signal: killed")
}

// A program that prints without end is ended, and its output is not kept.
func TestTheOutputOfAProgramIsBounded(t *testing.T) {
	t.Parallel()
	_, err := program(t, "cat /dev/zero").List(t.Context())
	require.ErrorContains(t, err, "the program prints too much: more than 16777216 bytes")
	_, err = program(t, "cat /dev/zero").Info(t.Context())
	require.ErrorContains(t, err, "more than 1048576 bytes")
	_, err = program(t, `echo '{"v":1,"instances":[]}'; head -c 10000000 /dev/zero >&2`).List(t.Context())
	require.NoError(t, err, "its log may be long")
}

// A program that does not end is killed with the processes that it has started.
func TestAProgramThatHangsIsKilledWithItsChildren(t *testing.T) {
	t.Parallel()
	pid := filepath.Join(t.TempDir(), "pid")
	e := program(t, "tail -f /dev/null & echo $! >"+pid+".new; mv "+pid+".new "+pid+"; wait", func(cfg *ExecConfig) {
		cfg.opTime, cfg.createTime = 300*time.Millisecond, 400*time.Millisecond
	})
	_, err := e.List(t.Context())
	require.EqualError(t, err,
		"operation list of the source: run /bin/sh: the program has not ended after 300ms")
	_, _, err = e.Create(t.Context(), Request{Count: 1})
	require.ErrorContains(t, err, "after 400ms")
	text, err := os.ReadFile(pid)
	require.NoError(t, err)
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !sshtest.Runs(child) }, time.Minute, time.Millisecond)
}

// A program that leaves a process behind with its output open has no answer: more could come.
func TestAProgramThatForksAndLeavesHasNoAnswer(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "end")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	_, err := program(t, `echo '{"v":1,"instances":[]}'; setsid cat `+fifo+" &").List(t.Context())
	require.ErrorContains(t, err, "operation list of the source: run /bin/sh: it ended, but something it started holds")
	end, err := os.OpenFile(fifo, os.O_WRONLY, 0) // waits for the reader, which then ends
	require.NoError(t, err)
	require.NoError(t, end.Close())
}

func TestAProgramEndsWithTheContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	ready := filepath.Join(t.TempDir(), "ready")
	require.NoError(t, syscall.Mkfifo(ready, 0o600))
	done := make(chan error, 1)
	e := program(t, "echo >"+ready+"; tail -f /dev/null")
	go func() {
		_, err := e.List(ctx)
		done <- err
	}()
	_, err := os.ReadFile(ready)
	require.NoError(t, err)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}

func TestTheEnvironmentOfAProgramIsChosen(t *testing.T) {
	t.Setenv("STEPMUX_TOKEN", "secret")
	t.Setenv("CLOUD_TOKEN", "cloud")
	t.Setenv("OTHER", "other")
	file := filepath.Join(t.TempDir(), "env")
	env := func(pass []string) string {
		_, err := program(t, `env >`+file+`; echo '{"v":1}'`, func(cfg *ExecConfig) {
			cfg.PassEnv, cfg.Settings = pass, json.RawMessage(`{"a":[1]}`)
		}).Info(t.Context())
		require.NoError(t, err)
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		return string(text)
	}
	all := env(nil)
	require.NotContains(t, all, "secret")
	require.Contains(t, all, "CLOUD_TOKEN=cloud\n")
	require.Contains(t, all, ConfigVar+`={"a":[1]}`+"\n")
	few := env([]string{"CLOUD_TOKEN", "STEPMUX_TOKEN"})
	require.NotContains(t, few, "secret")
	require.NotContains(t, few, "OTHER")
	require.Contains(t, few, "CLOUD_TOKEN=cloud\n")
	require.Contains(t, few, "PATH=")
	require.NotContains(t, env([]string{}), "CLOUD_TOKEN")
}

func TestTheLogOfAProgramIsShortAndSafe(t *testing.T) {
	var log bytes.Buffer
	_, err := program(t, `printf 'a\033[2Jb\nc' >&2; echo '{"v":1}'`, func(cfg *ExecConfig) {
		cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}).Info(t.Context())
	require.NoError(t, err)
	require.Contains(t, log.String(), `msg="source says" group=small op=info text="a [2Jb c"`)
}

func TestASourceThatCannotRunIsRefusedAtOnce(t *testing.T) {
	sh := []string{"/bin/sh"}
	for want, cfg := range map[string]ExecConfig{
		"the command is empty":     {Group: "a"},
		"/no/such":                 {Group: "a", Command: []string{"/no/such"}},
		"the group has no name":    {Command: sh},
		"config must be a mapping": {Group: "a", Command: sh, Settings: json.RawMessage("[]")},
		"config has 70008 bytes": {
			Group: "a", Command: sh, Settings: json.RawMessage(`{"a": "` + strings.Repeat("x", 69_999) + `"}`),
		},
	} {
		_, err := NewExec(cfg)
		require.ErrorContains(t, err, want)
	}
}

func FuzzReadList(f *testing.F) {
	f.Add([]byte(`{"v":1,"instances":[{"id":"a","state":"running","address":"10.0.0.1","labels":{"a":"b"}}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var list struct {
			head
			Instances vmList
		}
		err := read(text, &list)
		if err == nil {
			err = checkVMs(list.Instances)
		}
		if err == nil {
			for _, vm := range list.Instances {
				require.True(t, isShown(vm.ID+vm.User) && len(vm.ID) > 0)
			}
		} else {
			require.Less(t, len(err.Error()), 1000)
		}
	})
}

// BenchmarkList is the list of 1,000 VMs, without the time of the program.
func BenchmarkList(b *testing.B) {
	var all []string
	for i := range 1000 {
		all = append(all, fmt.Sprintf(`{"id":"vm-%d","state":"running","address":"10.0.%d.%d","port":22,"user":"ci",`+
			`"labels":{"size":"small","zone":"a"},"created":"2026-03-02T12:00:00Z","host_keys":["%s"]}`,
			i, i/250, i%250+1, hostKey))
	}
	file := filepath.Join(b.TempDir(), "list")
	require.NoError(b, os.WriteFile(file, []byte(`{"v":1,"instances":[`+strings.Join(all, ",")+"]}"), 0o600))
	e, err := NewExec(ExecConfig{Command: []string{"/bin/sh", "-c", "cat " + file}, Group: "g"})
	require.NoError(b, err)
	var before, after syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &before))
	b.ReportAllocs()
	for b.Loop() {
		list, err := e.List(b.Context())
		if err != nil || len(list) != 1000 {
			b.Fatal(len(list), err)
		}
	}
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &after))
	used := time.Duration(after.Utime.Nano() - before.Utime.Nano() + after.Stime.Nano() - before.Stime.Nano())
	b.ReportMetric(float64(used.Microseconds())/1000/float64(b.N), "cpu-ms/op")
}
