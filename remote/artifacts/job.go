package artifacts

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/stepmux/stepmux/remote/transfer"
)

// Job is a job of a GitLab server, and the token for its artifacts.
type Job struct {
	Server string // the server's URL
	ID     int64
	Token  string
}

// endpoint returns the URL of the job's artifacts.
func (j Job) endpoint(query url.Values) (string, error) {
	if j.Server == "" || j.Token == "" {
		return "", errors.New("the server or the job's token is missing: give --url and --token, or CI_SERVER_URL and " +
			"CI_JOB_TOKEN")
	}
	if j.ID <= 0 {
		return "", errors.New("the job's number is missing: give --id, or CI_JOB_ID")
	}
	u, err := transfer.Parse(j.Server)
	if err != nil {
		return "", fmt.Errorf("the server's URL: %w", err)
	}
	u.Path, u.RawPath = strings.TrimSuffix(u.Path, "/")+fmt.Sprintf("/api/v4/jobs/%d/artifacts", j.ID), ""
	u.User, u.Fragment, u.RawQuery = nil, "", query.Encode()
	return u.String(), nil
}

func (j Job) header() http.Header { return http.Header{"Job-Token": {j.Token}} }

// explain says what a refusal by the server means for artifacts. missing is the meaning of the status 404.
func (j Job) explain(err error, doing, missing string) error {
	status, ok := errors.AsType[*transfer.StatusError](err)
	if !ok {
		return err
	}
	hint := ""
	switch status.Code {
	case http.StatusUnauthorized, http.StatusForbidden:
		hint = "the server does not accept the job's token: has the job ended, or does --id belong to another job?"
		if server, err := transfer.Parse(j.Server); err == nil && !strings.HasPrefix(transfer.Plain(j.Server)+"/",
			status.Origin+"/") {
			hint = fmt.Sprintf("%s redirects to this server, which does not get the job's token; use its address as the "+
				"runner's url", server.Host)
		}
	case http.StatusRequestEntityTooLarge:
		hint = "the artifacts are larger than the server's limit (maximum artifacts size, in its CI/CD settings)"
	case http.StatusNotFound:
		hint = missing
	default:
		return fmt.Errorf("%s: %w", doing, err)
	}
	return fmt.Errorf("%s: %w: %s", doing, err, hint)
}
