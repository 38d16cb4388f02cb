package commands

// command has the help texts of one command.
type command struct {
	name  string // with its arguments, as in the help
	short string // one line
	long  string
	args  bool // it takes arguments after its flags
}

// stepsCommands are the commands that a manager starts.
var stepsCommands = []command{
	{
		name:  "serve --socket PATH",
		short: "Run the step service of one build",
		long: `Run the step service of one build on a unix socket. When it listens it prints on standard error:

  step-runner is listening on socket PATH

It makes the directory of <tmp>/gitlab-runner-steps/<build id>/step-runner.sock and removes it at the end. Any other
PATH must be in a directory that you have made, empty and with mode 0700, as 'mktemp -d' does, and that you remove. If
that directory cannot be used, serve makes one of its own, says why, and prints the socket's new path.

It ends with SIGTERM, SIGINT or SIGHUP, and with its standard input if that is a pipe or a socket, with exit code 0.
Its jobs end with it: SIGTERM, then SIGKILL after --grace.

With --secret-stdin it first reads a secret from standard input, a line of 43 to 128 characters of base64url. It
refuses calls without the metadata "authorization: Bearer SECRET". Without a secret every process of the same user can
use the socket; serve prints a warning about that.

With --linger it outlives the connection to its manager: it starts itself again in a session of its own, and ends there
when no manager was attached for that time. A manager needs the secret to attach.

Example:
  stepmux steps serve --socket /tmp/gitlab-runner-steps/build-1/step-runner.sock </dev/null`,
	},
	{
		name:  "proxy --socket PATH",
		short: "Join standard input and output to a build's socket",
	},
	{
		name:  "relay [--temp-dir DIR]",
		short: "Start processes and reach sockets for a manager, all in one session",
		long: `Start the step runners of builds and connect to their sockets, any number at once, for the manager at the
other end of standard input and output. So a build needs no SSH session of its own; a server allows 10 per connection.

A manager starts one relay per VM and speaks the protocol of docs/protocol.md with it. It is not for use by hand. It
ends with its standard input, with SIGTERM, SIGINT or SIGHUP, and when it hears nothing from the manager for 45 s. All
its processes end with it: SIGTERM, then SIGKILL after --grace.`,
	},
	{
		name:  "script --bytes N -- SHELL [ARG]...",
		args:  true,
		short: "Run a script that arrives on standard input, for a manager",
		long: `Run a script in a shell, for the manager at the other end of standard input and output. A relay starts it. It
is not for use by hand.

Standard input has a line with a key and then the script. The script starts after its last byte has arrived. It ends
with standard input, or with SIGTERM, SIGINT or SIGHUP: SIGTERM to its processes, then SIGKILL after --grace. At the
end none of its processes is left.`,
	},
	{
		name:  "end --socket PATH",
		short: "End a build whose step runner does not end by itself",
		long: `End the build with this socket, for a manager: continue its step runner if that was stopped, send it SIGTERM
and, 6 s later, SIGKILL, and kill the processes of step runners that are dead. Prints a list in JSON of the
processes and the directory that are left.`,
	},
	{
		name:  "hold [--idle TIME] [--first TIME]",
		short: "Keep a container alive for a manager, as its first process",
		long: `Keep a container alive for processes that are started from outside, and reap orphans. It ends when no other
process has been there for --idle, or the first did not come within --first. SIGTERM, SIGINT or SIGHUP end all.`,
	},
	{
		name:  "isolation",
		short: "Find out how far this machine isolates builds",
		long: `Start the init of a build, as serve does, end it, and print an object in JSON. It has the level of builds, the
reason if that is off or not available, the remedy, and whether a build's user can read this program. It also says
whether the limits in the flags are available, or without flags limits of each kind. The manager's command is
"stepmux doctor".`,
	},
	{
		name:  "fetch",
		short: "Fetch a step for a step runner",
	},
	{
		name:  "unpack",
		short: "Unpack the files of a project, for a step runner",
	},
	{
		name:  "pack PATTERN...",
		args:  true,
		short: "Pack artifacts of a build, for a step runner",
	},
	{
		name:  "await --tcp HOST:PORT",
		short: "Wait until servers accept connections, for a manager",
	},
	{
		name:  "services --listen HOST:PORT --socket PATH -- PROGRAM...",
		args:  true,
		short: "Run a program with the services of actions, in a container",
	},
	{
		name:  "cache list|prune|verify",
		args:  true,
		short: "Look after the cache of fetched steps, for a manager",
	},
	{
		name:  "clone --url URL",
		short: "Check out a revision of a git repository, for the built-in step git/clone",
	},
}

// ciText is the text of the command for the script of a job with run:.
var ciText = command{
	name:  "ci",
	short: "Run the steps in the environment variable STEPS, for the script of a CI job",
	long: `Run the steps in the environment variable STEPS, which a GitLab runner sets for a job with run:. They run in
CI_PROJECT_DIR, or else in the current directory, and get the variables of the environment, except for those that look
like secrets. The exit code is that of the step that fails, 1 if that step has none, or 3 if the machine failed.`,
}

// helperCommands are the commands that the scripts of a GitLab manager call beside steps.
var helperCommands = []command{
	{
		name:  "artifacts-uploader --id JOB --path PATTERN...",
		short: "Upload files of a job as its artifacts",
	},
	{
		name:  "artifacts-downloader --id JOB",
		short: "Download the artifacts of another job",
	},
	{
		name:  "cache-archiver --file ARCHIVE --path PATTERN...",
		short: "Keep files of a job in a cache",
	},
	{
		name:  "cache-extractor --file ARCHIVE",
		short: "Bring back files of a job from a cache",
	},
}
