// Package network has the commands of the VM's end that need HTTP, the network or compression: `steps fetch`,
// `steps clone`, `steps cache`, `steps await`, `steps unpack`, `steps pack`, `steps services`, and the helper commands
// that the scripts of a GitLab manager call. The helper commands exit with 1 if they fail, as those scripts expect.
//
// They are in the program stepmux-fetch. So the programs that every build starts link no TLS and no library of a
// registry. [Commands] is the list. Each command makes one call of another package and owns nothing afterwards.
package network

import "github.com/stepmux/stepmux/remote/commands"

// Commands are the commands that need the network.
var Commands = commands.Set{
	"steps fetch": fetchStep, "steps cache": cache, "steps clone": cloneRepository, "steps await": awaitServers,
	"steps unpack": unpackProject, "steps pack": packArtifacts, "steps services": withServices,
	"artifacts-uploader": artifactsUploader, "artifacts-downloader": artifactsDownloader,
	"cache-archiver": cacheArchiver, "cache-extractor": cacheExtractor,
}
