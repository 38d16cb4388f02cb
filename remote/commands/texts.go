package commands

// command is the text of one command of the command line.
type command struct {
	name  string // with its arguments, as the help shows it
	short string // one line
	long  string
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

With --linger it outlives the connection to its manager: it starts itself anew in a session of its own and ends
itself there when no manager was attached for that time. Managers attach and come back with the secret.

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
		long: `Keep a container alive for processes that come from outside, and reap orphans. It ends when no other process
has been there for --idle, or none came within --first, and with SIGTERM, SIGINT or SIGHUP, which end the others, too.`,
	},
	{
		name:  "isolation",
		short: "Tell how far this machine holds builds apart",
		long: `Start the init of a build, as serve does, end it, and print an object in JSON: the level that builds get, the
reason if it is off or cannot be had, the remedy, and whether a build's user can read this program; and whether the
limits can be had that the flags ask for, or without them limits of each kind. The manager's command is "stepmux
doctor".`,
	},
	{
		name:  "fetch",
		short: "Fetch a step for a step runner",
		long: `Fetch a step for the step runner at the other end of standard input and output, into the cache that all
builds of a user share. It is not for use by hand. It ends with its standard input.`,
	},
	{
		name:  "unpack",
		short: "Unpack the files of a project, for a step runner",
		long: `Unpack the archive on standard input, tar in zstd or zip, in the working directory. It is not for use by hand.
Entries that would be outside of the working directory are refused before a file is made.`,
	},
	{
		name:  "pack PATTERN...",
		short: "Pack artifacts of a build, for a step runner",
		long: `Pack the files below the working directory that the patterns match to standard output, as tar in zstd. It is
not for use by hand. Without files it prints nothing.`,
	},
	{
		name:  "await --tcp HOST:PORT",
		short: "Wait until servers accept connections, for a manager",
		long: `Wait until each HOST:PORT has accepted a TCP connection, for a manager that waits for the services of a build.
It ends with SIGTERM, SIGINT or SIGHUP.`,
	},
	{
		name:  "cache list|prune|verify",
		short: "Look after the cache of fetched steps, for a manager",
		long: `List the components in the cache of fetched steps, remove those that no job uses, or compare them with their
digests and remove those that were changed. Prints an object in JSON with the components that are there, were removed,
or were changed. The manager's command is "stepmux cache".`,
	},
	{
		name:  "clone --url URL",
		short: "Check out a revision of a git repository, for the built-in step git/clone",
		long: `Check out a revision of a git repository with the git of this machine, without hooks. The variable
CI_JOB_TOKEN has the password for the repository's server. Git gets it by a socket, and it is in none of git's arguments
and variables. The built-in step builtin://git/clone runs this command.`,
	},
}

// ciText is the text of the command for the script of a job with run:.
var ciText = command{
	name:  "ci",
	short: "Run the steps in the environment variable STEPS, for the script of a CI job",
	long: `Run the steps in the environment variable STEPS, as a runner of GitLab has them run by a script. They run in
CI_PROJECT_DIR, or else in the current directory, and get the variables of the environment, but for those that look like
secrets. The exit code is that of the step that fails, 1 if it has none, or 3 if the machine failed.`,
}

// helperCommands are the commands that the scripts of a GitLab manager call beside steps.
var helperCommands = []command{
	{
		name:  "artifacts-uploader --id JOB --path PATTERN...",
		short: "Upload files of a job as its artifacts",
		long: `Pack the files that the patterns match and upload them as artifacts of a job of a GitLab server.

The job's token comes from --token or the variable CI_JOB_TOKEN. The archive is not kept: it is packed while it is sent.
Without matching files there is nothing to upload, which is no failure: exit code 0. Otherwise the exit code is 1 for a
failure, and 2 for wrong usage.

Example:
  CI_JOB_TOKEN=... stepmux artifacts-uploader --url https://gitlab.example.com --id 42 --path dist --exclude '*.tmp'`,
	},
	{
		name:  "artifacts-downloader --id JOB",
		short: "Download the artifacts of another job",
		long: `Download the artifacts of a job of a GitLab server and unpack them in the working directory.

The token of that job comes from --token or the variable CI_JOB_TOKEN. Entries that would be outside of the working
directory are refused, and so is an archive with more than --max-extracted-size. Exit codes: 0, 1 for a failure, 2 for
wrong usage.`,
	},
	{
		name:  "cache-archiver --file ARCHIVE --path PATTERN...",
		short: "Keep files of a job in a cache",
		long: `Pack the files that the patterns match into an archive on this machine, and upload it to a presigned URL if
there is one. An archive that is newer than all files is up to date and stays as it is.

Without matching files there is nothing to keep, which is no failure: exit code 0. Otherwise the exit code is 1 for a
failure, and 2 for wrong usage.

Example:
  stepmux cache-archiver --file /cache/project/main/cache.zip --path node_modules`,
	},
	{
		name:  "cache-extractor --file ARCHIVE",
		short: "Bring back files of a job from a cache",
		long: `Unpack an archive that cache-archiver wrote in the working directory, after it was downloaded from a presigned
URL if there is one. If there is no archive, the exit code is 1, as for a failure: the manager's script then tries
another key or goes on without.`,
	},
}
