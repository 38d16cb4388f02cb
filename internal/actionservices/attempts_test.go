package actionservices_test

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/actionservices"
)

// keep makes an artifact, and returns the status and the answer of the last call.
func (c caller) keep(name, text string) (int, map[string]any) {
	c.t.Helper()
	status, said := c.do("POST", artifactService+"CreateArtifact", []byte(`{"name":"`+name+`"}`))
	if status != http.StatusOK {
		return status, said
	}
	status, said = c.do("PUT", said["signed_upload_url"].(string), []byte(text))
	require.Equal(c.t, http.StatusCreated, status, said)
	return c.do("POST", artifactService+"FinalizeArtifact",
		[]byte(`{"name":"`+name+`","size":`+toText(c.t, len(text))+`}`))
}

// As on GitHub, a name is used once in an attempt of a run. An artifact of an earlier attempt makes way for it.
func TestALaterAttemptReplacesTheArtifactOfAnEarlierOne(t *testing.T) {
	s, url := serve(t, actionservices.Config{MaxArtifacts: 10})
	as := func(name, build string, attempt int) caller {
		token, end := s.Begin(actionservices.Job{Run: "1", Name: name, Build: build, Attempt: attempt})
		t.Cleanup(func() { end() })
		return caller{t, url, token}
	}
	first := as("make", "b-1", 0)
	status, made := first.keep("a", "123456")
	require.Equal(t, http.StatusOK, status, made)
	status, again := first.do("POST", artifactService+"FinalizeArtifact", []byte(`{"name":"a","size":6}`))
	require.Equal(t, http.StatusOK, status, "the answer was lost")
	require.Equal(t, made["artifact_id"], again["artifact_id"])
	status, _ = first.do("POST", artifactService+"FinalizeArtifact", []byte(`{"name":"a","size":5}`))
	require.Equal(t, http.StatusConflict, status)
	for _, other := range []caller{first, as("other", "b-2", 0)} {
		status, said := other.keep("a", "x")
		require.Equal(t, http.StatusConflict, status, said)
	}
	for _, later := range []caller{as("make", "b-1.1", 0), as("other", "b-2", 1)} {
		status, said := later.keep("a", "new 78")
		require.Equal(t, http.StatusOK, status, said)
		require.NotEqual(t, made["artifact_id"], said["artifact_id"])
		status, said = first.do("POST", artifactService+"GetSignedArtifactURL", []byte(`{"name":"a"}`))
		require.Equal(t, http.StatusOK, status)
		answer, err := http.Get(said["signed_url"].(string))
		require.NoError(t, err)
		defer answer.Body.Close()
		require.EqualValues(t, 6, answer.ContentLength)
	}
	status, said := first.keep("a", "x")
	require.Equal(t, http.StatusConflict, status, "the attempt is over: %v", said)
}

// Jobs that never finish their uploads cannot fill the disk together.
func TestUploadsThatAreNotCompleteAreBoundedTogether(t *testing.T) {
	s, url := serve(t, actionservices.Config{MaxUploads: 10})
	token, end := s.Begin(actionservices.Job{Run: "1", Name: "a"})
	one := caller{t, url, token}
	status, _ := one.do("PUT", one.upload("a"), []byte("1234567"))
	require.Equal(t, http.StatusCreated, status)
	token, endOther := s.Begin(actionservices.Job{Run: "2", Name: "b"})
	defer endOther()
	other := caller{t, url, token}
	to := other.upload("b")
	status, said := other.do("PUT", to, []byte("1234"))
	require.Equal(t, http.StatusInsufficientStorage, status, said)
	end()
	status, said = other.keep("b", "12345678")
	require.Equal(t, http.StatusOK, status, said)
	status, said = other.keep("c", "12345678")
	require.Equal(t, http.StatusOK, status, "complete ones do not count: %v", said)
	for range 70 {
		if status, said = other.do("POST", artifactService+"CreateArtifact", []byte(`{"name":"many"}`)); status != 200 {
			break
		}
	}
	require.Equal(t, http.StatusRequestEntityTooLarge, status, said)
}

// The same job has the same token and the same signatures in another process, and another job has others.
func TestAJobHasItsTokenInTheNextProcess(t *testing.T) {
	cfg := actionservices.Config{Secret: []byte("secret")}
	job := actionservices.Job{Run: "p-1", Name: "make", Key: "key-of-the-job-1", Began: time.Unix(1e9, 0)}
	var tokens, urls []string
	for range 2 {
		s, url := serve(t, cfg)
		token, end := s.Begin(job)
		defer end()
		c := caller{t, url, token}
		status, said := c.keep("a", "x")
		require.Equal(t, http.StatusOK, status, said)
		_, said = c.do("POST", artifactService+"GetSignedArtifactURL", []byte(`{"name":"a"}`))
		signed := said["signed_url"].(string)
		_, query, _ := strings.Cut(signed, "?")
		query, _, _ = strings.Cut(query, "&sig=") // the ID of the artifact is signed, too
		tokens, urls = append(tokens, token), append(urls, query)
	}
	require.Equal(t, tokens[0], tokens[1])
	require.Equal(t, urls[0], urls[1])
	s, _ := serve(t, cfg)
	job.Key = "key-of-the-job-2"
	token, end := s.Begin(job)
	defer end()
	require.NotEqual(t, tokens[0], token)
}

// The connections of a job are closed with its door. Other jobs have their own.
func TestADoorIsForOneJob(t *testing.T) {
	s, _ := serve(t, actionservices.Config{})
	dial := func(d *actionservices.Door) net.Conn {
		near, far := net.Pipe()
		d.Take(far)
		t.Cleanup(func() { near.Close() })
		return near
	}
	one, other := s.Door(nil), s.Door(nil)
	defer other.Close()
	var held []net.Conn
	for range 500 {
		held = append(held, dial(one))
	}
	refused := dial(one)
	_, err := refused.Read(make([]byte, 1))
	require.Error(t, err, "more than a server of one job has")
	conn := dial(other)
	_, err = conn.Write([]byte("GET /none HTTP/1.1\r\nHost: x\r\n\r\n"))
	require.NoError(t, err)
	answer := make([]byte, 12)
	_, err = conn.Read(answer)
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 404", string(answer))
	one.Close()
	one.Close()
	_, err = held[0].Read(make([]byte, 1))
	require.Error(t, err)
	_, err = dial(one).Read(make([]byte, 1))
	require.Error(t, err, "the job has ended")
	s.Door(nil).Close()
}
