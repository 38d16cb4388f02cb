package jobcache

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/stepmux/stepmux/remote/archive"
)

// writeMetadata writes metadata to metadata.json beside the archive.
func writeMetadata(file string, metadata map[string]string) error {
	lower := map[string]string{}
	for key, value := range metadata {
		if key != "" {
			lower[strings.ToLower(key)] = value
		}
	}
	data, err := json.Marshal(lower)
	if err != nil {
		return err
	}
	return archive.Replace(filepath.Join(filepath.Dir(file), "metadata.json"), func(f *os.File) error {
		_, err := f.Write(data)
		return err
	})
}

// metadataOf returns the metadata that an object store sends with an object, as in X-Amz-Meta-Cachekey.
func metadataOf(h http.Header) map[string]string {
	metadata := map[string]string{}
	for name := range h {
		parts := strings.SplitN(strings.ToLower(name), "-", 4)
		if len(parts) == 4 && parts[0] == "x" && parts[2] == "meta" {
			metadata[parts[3]] = h.Get(name)
		}
	}
	return metadata
}
