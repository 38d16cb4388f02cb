package giteadoor

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
)

// maxHook bounds the body of a webhook, in bytes. That of a job has some 10 KiB, most of it about its repository. It is
// read before the sender is known.
const maxHook = 128 << 10

// ServeHTTP takes the webhooks of the server: workflow_job, if a job waits, makes the door look for it at once. It is a
// hint, and nothing else of it is used. The secret of Config.Secret signs them.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if d.cfg.Secret == nil {
		http.Error(w, "this server has no webhook-secret-file", http.StatusNotFound)
		return
	}
	secret, err := d.cfg.Secret()
	if err != nil {
		d.Host().Logger.Warn("cannot read the secret of webhooks", "error", err)
		http.Error(w, "the secret cannot be read", http.StatusInternalServerError)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxHook))
	if err != nil {
		http.Error(w, "the body has more than 128 KiB: send the event Workflow job alone", http.StatusRequestEntityTooLarge)
		return
	}
	made := hmac.New(sha256.New, []byte(secret))
	made.Write(body)
	signed, err := hex.DecodeString(header(r, "Signature"))
	if err != nil || !hmac.Equal(signed, made.Sum(nil)) {
		http.Error(w, "the signature is not that of the secret", http.StatusForbidden)
		return
	}
	var job struct{ Action string }
	if header(r, "Event") == "workflow_job" && json.Unmarshal(body, &job) == nil && job.Action == "queued" {
		d.Wake()
	}
	w.WriteHeader(http.StatusNoContent)
}

// header returns a header of Gitea, or that of Forgejo.
func header(r *http.Request, name string) string {
	if value := r.Header.Get("X-Gitea-" + name); value != "" {
		return value
	}
	return r.Header.Get("X-Forgejo-" + name)
}
