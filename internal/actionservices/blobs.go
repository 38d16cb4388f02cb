package actionservices

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"strconv"
)

// handleBlobs handles the calls of Azure's storage that its client makes to upload a file (Put Block, Put Block List,
// Put Blob, Append Block; learn.microsoft.com, "Blob service REST API").
func (s *Server) handleBlobs() {
	s.mux.HandleFunc("PUT /uploads/{id}", s.bySignature(s.putBlob))
}

func (s *Server) putBlob(w http.ResponseWriter, r *http.Request, b *session) error {
	id, _ := strconv.ParseInt(r.PathValue("id"), 10, 64) // 0 is no upload
	s.mu.Lock()
	u := s.uploads[id]
	s.mu.Unlock()
	if u == nil || u.session != b {
		return refuse(http.StatusNotFound, "there is no such upload any more")
	}
	asked := r.URL.Query()
	transfer(w, max(r.ContentLength, 0))
	var err error
	switch comp := asked.Get("comp"); {
	case comp == "block":
		block := asked.Get("blockid")
		if block == "" || len(block) > 256 {
			return refuse(http.StatusBadRequest, "the name of the block is missing or too long")
		}
		err = u.spool.put(r.Body, atEnd, r.ContentLength, block)
	case comp == "blocklist":
		var blocks []string
		if blocks, err = readBlocks(w, r); err == nil {
			err = u.spool.commit(blocks)
		}
	case comp == "appendblock":
		err = u.spool.put(r.Body, atEnd, r.ContentLength, "")
	case comp != "":
		return refuse(http.StatusBadRequest, "%.32q is no part of an upload", comp)
	case r.Header.Get("X-Ms-Blob-Type") == "AppendBlob": // its content follows
	default:
		err = u.spool.put(r.Body, 0, r.ContentLength, "")
	}
	if err != nil {
		return s.checked(u, err)
	}
	w.Header().Set("ETag", fmt.Sprintf(`"%d"`, u.id))
	w.Header().Set("X-Ms-Version", "2025-11-05")
	w.Header().Set("X-Ms-Request-Server-Encrypted", "false")
	w.WriteHeader(http.StatusCreated)
	return nil
}

// readBlocks reads the body of Put Block List: the names of blocks, in order.
func readBlocks(w http.ResponseWriter, r *http.Request) ([]string, error) {
	var list struct {
		Blocks []struct {
			XMLName xml.Name
			Name    string `xml:",chardata"`
		} `xml:",any"`
	}
	body := http.MaxBytesReader(w, r.Body, 8*maxRequest)
	if err := xml.NewDecoder(body).Decode(&list); err != nil {
		return nil, refuse(http.StatusBadRequest, "the list of blocks is not valid, or too long")
	}
	if len(list.Blocks) > maxBlocks {
		return nil, errPieces
	}
	names := make([]string, 0, len(list.Blocks))
	for _, b := range list.Blocks {
		switch b.XMLName.Local {
		case "Latest", "Uncommitted", "Committed":
			names = append(names, b.Name)
		default:
			return nil, refuse(http.StatusBadRequest, "the list of blocks is not valid")
		}
	}
	return names, nil
}
