package network

// Long has the texts of --help by the names of the commands.
var Long = map[string]string{
	"steps fetch": `Fetch a step for the step runner at the other end of standard input and output, into the cache
that all builds of a user share. It is not for use by hand. It ends with its standard input.`,
	"steps unpack": `Unpack the archive on standard input, tar in zstd or zip, in the working directory. It is not for
use by hand. Entries that would be outside of the working directory are refused before a file is made.`,
	"steps pack": `Pack the files below the working directory that the patterns match to standard output, as tar in
zstd. It is not for use by hand. Without files it prints nothing.`,
	"steps await": `Wait until each HOST:PORT has accepted a TCP connection, for a manager that waits for the services
of a build. It ends with SIGTERM, SIGINT or SIGHUP.`,
	"steps services": `Run a PROGRAM that finds the services for artifacts and caches at HOST:PORT, in the container of a
docker action. It is the first process there, and not for use by hand. The exit code is that of the program.`,
	"steps cache": `List the components in the cache of fetched steps, remove those that no job uses, or compare them
with their digests and remove changed ones. It prints an object in JSON with the present, the removed or the changed
components. The manager's command is "stepmux cache".`,
	"steps clone": `Check out a revision of a git repository with the git of this machine, without hooks. The variable
CI_JOB_TOKEN has the password for the repository's server. Git gets it by a socket, and it is in none of git's
arguments and variables. The built-in step builtin://git/clone runs this command.`,
	"artifacts-uploader": `Pack the files that the patterns match and upload them as artifacts of a job of a GitLab
server.

The job's token comes from --token or the variable CI_JOB_TOKEN. The archive is not kept: it is packed while it is sent.
Without matching files there is nothing to upload, which is no failure: exit code 0. Otherwise the exit code is 1 for a
failure, and 2 for wrong usage.

Example:
  CI_JOB_TOKEN=... stepmux artifacts-uploader --url https://gitlab.example.com --id 42 --path dist --exclude '*.tmp'`,
	"artifacts-downloader": `Download the artifacts of a job of a GitLab server and unpack them in the working
directory.

The token of that job comes from --token or the variable CI_JOB_TOKEN. Entries that would be outside of the working
directory are refused, and so is an archive with more than --max-extracted-size. Exit codes: 0, 1 for a failure, 2 for
wrong usage.`,
	"cache-archiver": `Pack the files that the patterns match into an archive on this machine, and upload it to a
presigned URL if there is one. An archive that is newer than all files is up to date and stays as it is.

Without matching files there is nothing to keep, which is no failure: exit code 0. Otherwise the exit code is 1 for a
failure, and 2 for wrong usage.

Example:
  stepmux cache-archiver --file /cache/project/main/cache.zip --path node_modules`,
	"cache-extractor": `Unpack an archive that cache-archiver wrote in the working directory, after it was downloaded
from a presigned URL if there is one. If there is no archive, the exit code is 1, as for a failure: the manager's
script then tries another key or goes on without.`,
}
