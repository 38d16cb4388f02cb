package faults

import (
	"maps"
	"slices"
	"time"
)

// Kind is a kind of fault.
type Kind string

// manager is the program that drives the builds of a round.
type manager int

const (
	library manager = iota // the packages, in the rig's own process
	program                // stepmux run, in a process that can be harmed
)

// kindSpec describes a kind of fault.
type kindSpec struct {
	does    string // what happens, for the report
	manager manager
	routes  []string // those on which there is something to be harmed; nil: all
	proxy   bool     // the manager reaches the VM by a proxy, which does the harm
	private bool     // needs namespaces of the round's own
	tmpfs   bool     // the VM's directory for temporary files is a small file system
	slow    bool     // a build may be held up until the silence of a frozen peer is noticed
	// inherited: scripts meet the fault too; a script that fails by it is a script failure.
	inherited bool
	global    bool // it happens to this whole machine: drawn only if it is asked for, and alone
	late      bool // the VM may learn late that its manager is gone: by sshd's own signs of life
	weight    int  // how often it is drawn; 0 counts as 4
	// linger is how long builds outlive their link. Then no fault of the link loses one.
	linger time.Duration
	// away is the longest time for which the link or the manager is away. If zero, mostAway.
	away     time.Duration
	campaign bool // drawn only by a soak that asks for it
	inject   func(*rig, injection)
	wrapper  string // a shell command that comes before the step runner is executed
}

// storm is the kind of a linger campaign.
const storm = "linger-storm"

// Routes are the values of --route.
var Routes = []string{"auto", "relay", "streamlocal", "session"}

// viaRelay are the routes with a relay, viaProxy the routes with proxies.
var (
	viaRelay  = []string{"auto", "relay"}
	viaProxy  = []string{"session"}
	everyKind = slices.Sorted(maps.Keys(kinds))
)

const (
	// roundLinger is longer than any fault takes the link away.
	roundLinger = 25 * time.Second
	// shortLinger is for rounds in which no manager comes back.
	shortLinger = 5 * time.Second
	// leastAway and mostAway bound the time for which a link is away.
	leastAway, mostAway = time.Second, 10 * time.Second
	// stormAway is mostAway in a storm. A build may meet a link and a manager that are away one after the other.
	stormAway, stormLinger = time.Minute, 150 * time.Second
)

// kinds are all kinds of faults.
var kinds = map[Kind]*kindSpec{
	"none":  {does: "nothing", inject: func(*rig, injection) {}, weight: 2},
	"cut":   {does: "the connection ends, as if the peer had closed it", proxy: true, inject: (*rig).endConn, weight: 8},
	"reset": {does: "the connection is reset", proxy: true, inject: (*rig).resetConn, weight: 8},
	"stall": {does: "nothing arrives for a while that is shorter than the bound", proxy: true, inject: (*rig).stall},
	"frozen": {
		does: "nothing arrives any more, for longer than the bound", proxy: true, late: true,
		inject: (*rig).freeze,
	},
	"delay": {does: "the VM is suddenly far away", proxy: true, inject: (*rig).delay},
	"slow":  {does: "the link becomes slow", proxy: true, inject: (*rig).narrow},
	"half-open": {
		does: "packets are dropped, without a word to either end", private: true, late: true,
		inject: (*rig).unplug,
	},
	"collapse": {does: "the network's bandwidth collapses", private: true, inject: (*rig).collapse},
	"reorder": {
		does:   "step runners come up in another order than they were started in",
		inject: (*rig).throughout, wrapper: `case $2 in serve|proxy) sleep 0.$(($$ % 7));; esac`,
	},
	"recycle": {does: "connections are recycled under the builds", inject: (*rig).throughout},

	"sshd-restart": {does: "sshd is restarted, the connections that are open go on", inject: (*rig).restartSSHD},
	"sshd-kill":    {does: "sshd is killed with all its connections, and started again", inject: (*rig).killSSHD},
	"sshd-session": {does: "sshd's process for the connection is killed", inject: (*rig).killSession},

	"kill-serve": {does: "kill -9 of a step runner", inject: killOne("serve"), weight: 6},
	"kill-relay": {does: "kill -9 of the relay", routes: viaRelay, inject: killOne("relay"), weight: 6},
	"kill-proxy": {does: "kill -9 of a build's proxy", routes: viaProxy, inject: killOne("proxy")},
	"kill-init":  {does: "kill -9 of the init of a job's process", inject: killOne("init"), weight: 6},

	"kill-ends": {does: "kill -9 of a step runner, its inits and the relay at once", inject: (*rig).killEnds},

	"stop-serve": {does: "kill -STOP of a step runner, and -CONT a moment later", inject: pauseOne("serve")},
	"stop-relay": {does: "kill -STOP of the relay, and -CONT a moment later", routes: viaRelay, inject: pauseOne("relay")},
	"stop-proxy": {
		does: "kill -STOP of a build's proxy, and -CONT a moment later", routes: viaProxy,
		inject: pauseOne("proxy"),
	},
	"stop-init": {does: "kill -STOP of an init, and -CONT a moment later", inject: pauseOne("init")},
	"hang-serve": {
		does: "kill -STOP of a step runner for good; its build is cancelled", slow: true, late: true,
		inject: hangOne("serve"), weight: 1,
	},
	"hang-relay": {
		does: "kill -STOP of the relay for good", slow: true, late: true, routes: viaRelay,
		inject: hangOne("relay"), weight: 1,
	},

	"hang-ends": {
		does: "kill -STOP of a step runner, its inits and the relay for good; its build is cancelled",
		slow: true, late: true, inject: (*rig).hangEnds, weight: 1,
	},

	"kill-manager": {does: "kill -9 of the manager", manager: program, inject: (*rig).killManager, weight: 12},
	"stop-manager": {
		does: "kill -STOP of the manager, and -CONT a moment later", manager: program,
		inject: (*rig).pauseManager,
	},
	"end-manager": {does: "SIGINT of the manager", manager: program, inject: (*rig).interruptManager},
	"fds-manager": {does: "the manager can open no more files", manager: program, inject: (*rig).starveManager},

	"fds-serve": {does: "a step runner can open no more files", inherited: true, slow: true, inject: starveOne("serve")},
	"fds-relay": {does: "the relay can open no more files", inherited: true, routes: viaRelay, inject: starveOne("relay")},
	"fds-sshd":  {does: "sshd's process for the connection can open no more files", inject: (*rig).starveSession},

	"tmp-full": {does: "the VM's temporary directory is full", private: true, tmpfs: true, inject: (*rig).fillTmp},
	"tmp-readonly": {
		does: "the VM's temporary directory is read-only for a while", private: true, tmpfs: true,
		inject: (*rig).lockTmp,
	},

	"cancel":      {does: "a build is cancelled", inject: (*rig).cancelOne},
	"cancel-many": {does: "200 builds are cancelled at once", inject: (*rig).cancelAll, weight: 1},
	"clock": {
		does: "the clock jumps, by up to three days, and back a moment later", global: true,
		inject: (*rig).jump,
	},
	"linger-cut": {
		does: "the connection ends; builds linger", proxy: true, linger: roundLinger, inject: (*rig).endConn,
	},
	"linger-away": {
		does: "the VM cannot be reached for 1 to 10 s; builds linger", proxy: true, linger: roundLinger,
		inject: (*rig).sendAway,
	},
	"linger-unplug": {
		does: "packets are dropped for 1 to 10 s, without a word to either end; builds linger", private: true, late: true,
		manager: program, linger: roundLinger, inject: (*rig).unplugAWhile,
	},
	"linger-relay": {
		does: "kill -9 of the relay; builds linger", routes: viaRelay, linger: roundLinger, inject: killOne("relay"),
	},
	"linger-sshd": {
		does: "sshd is killed with all its connections, and started again; builds linger", linger: roundLinger,
		inject: (*rig).killSSHD,
	},
	"linger-stop": {
		does: "kill -STOP of the manager for 1 to 10 s; builds linger", manager: program, linger: roundLinger,
		inject: (*rig).pauseManagerLong,
	},
	"linger-kill": {
		does: "kill -9 of the manager; builds linger for 5 s", manager: program, linger: shortLinger,
		inject: (*rig).killManager,
	},
	storm: {
		does: "packets of each VM are dropped for 1 to 60 s, sshd and the relay are killed, the manager is stopped; " +
			"builds linger",
		private: true, late: true, campaign: true, linger: stormLinger, away: stormAway, inject: (*rig).unplugAWhile,
	},
	"flood": {does: "a peer floods a stream that has no reader", inject: (*rig).flood},
}
