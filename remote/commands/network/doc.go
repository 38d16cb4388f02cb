// Package network has the commands of the VM's end that speak HTTP with servers, or look after the files that came from
// there, or wait for servers, or pack and unpack files: `steps fetch`, `steps clone`, `steps cache`, `steps await`,
// `steps unpack`, `steps pack`, and the helper commands that the scripts of a GitLab manager call. The helper commands
// exit with 1 if they fail, as those scripts expect.
//
// The program stepmux-fetch has them, so that the programs that every build starts link no TLS and no library of a
// registry. [Commands] is the list.
package network

import "github.com/stepmux/stepmux/remote/commands"

// Commands are the commands that need the network.
var Commands = commands.Set{
	"steps fetch": fetchStep, "steps cache": cache, "steps clone": cloneRepository, "steps await": awaitServers,
	"steps unpack": unpackProject, "steps pack": packArtifacts,
	"artifacts-uploader": artifactsUploader, "artifacts-downloader": artifactsDownloader,
	"cache-archiver": cacheArchiver, "cache-extractor": cacheExtractor,
}
